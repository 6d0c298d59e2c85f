"""Measure a box's server: `pyinfra inventory tasks/bench.py`, see docs/bench.md.

`--data mode=seed` (without any mode), `cross` or `quality`, and what each measures. The report, its
tables and a chart come into reports/; at the end the box serves what it served before.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # pyinfra runs it in any folder

from tasks import deploy_lock, going_back, measuring

if going_back.can_work() and measuring.is_well_asked():
    deploy_lock.held(name="One deploy at a time")
    measuring.measured(name="What the server does")
    measuring.said(name="What was measured")
