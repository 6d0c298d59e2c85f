"""Go back to what a box served before: `pyinfra inventory tasks/rollback.py`.

`--data to=2` names another one: its number in `aibox status --history`, or how its sum begins.
`--data to=found` is the person's own unit, as a deploy met it last: it is kept for ever. Once two
deploys have passed, nothing else names it.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # pyinfra runs it in any folder

from tasks import deploy_lock, going_back

if going_back.can_work() and going_back.is_well_asked():
    deploy_lock.held(name="One deploy at a time")
    going_back.went_back(name="What served before")
    going_back.said(name="What comes next")
