"""pyinfra reads this before the inventory."""

from pyinfra import config

from tasks import exit_codes, fact_pipelining

config.REQUIRE_PYINFRA_VERSION = "==3.10.0"
config.SUDO = True

fact_pipelining.enable()
exit_codes.watch()
