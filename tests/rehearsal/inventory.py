"""The rehearsal's boxes, as `provision.py` wrote them down: {name: host data}.

`_monitor` in its data puts a host into the group `monitor`: "too", or "only" where it is no box;
`_gateway` into the group `gateways`.
"""

import json as _json
import os as _os
from pathlib import Path as _Path

_written = _json.loads(_Path(_os.environ["REHEARSAL_BOXES"]).read_text())

rehearsal = [(_name, _of) for _name, _of in _written.items() if _of.get("_monitor") != "only"]
gateways = [(_name, _of) for _name, _of in _written.items() if _of.get("_gateway")]
monitor = [(_name, _of) for _name, _of in _written.items() if _of.get("_monitor")]
