"""The rehearsal's boxes, as `provision.py` wrote them down: {name: host data}."""

import json as _json
import os as _os
from pathlib import Path as _Path

_written = _json.loads(_Path(_os.environ["REHEARSAL_BOXES"]).read_text())

rehearsal = list(_written.items())
