"""Take off a box what deploys laid down: `pyinfra inventory tasks/teardown.py`.

What the person had comes back: their own server unit, as it was found. Weights and driver stay
unless asked for: on a terminal it asks, else `--data remove_weights=true --data
remove_driver=true`.
It goes by the box's own records, so it works while the settings are wrong.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # pyinfra runs it in any folder

from tasks import deploy_lock, taking_down

if taking_down.agreed():
    deploy_lock.held(name="One deploy at a time")
    taking_down.taken_down(name="What is ours")
    taking_down.traces_gone(name="What the teardown itself ran from")
    taking_down.said(name="What comes next")
