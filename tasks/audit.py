"""What a drift check has pyinfra read behind deploy.py, in the same run that only looks."""

from tasks import foreign

foreign.looked_for()
