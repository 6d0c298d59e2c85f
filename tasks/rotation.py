"""Ask gateways and boxes how they stand, change it, or wait: `python -m tasks.roll` runs it."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # pyinfra runs it in any folder

from pyinfra import config, host

from tasks import roll_step
from tasks.drift_metrics import UserNumber

config.SUDO = host.get_fact(UserNumber, _sudo=False) != 0
roll_step.done(name="A step of a rolling update", folder=os.environ.get(roll_step.FOLDER, ""))
