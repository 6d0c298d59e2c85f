"""Prometheus' own files: checked by promtool before they are in place, and read without a stop.

The very first ones are there before promtool, which comes with Prometheus: its start checks them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any

from pyinfra import host, state
from pyinfra.api import FactBase, QuoteString, StringCommand, operation

from aibox.decide.watcher import PROMETHEUS_PORT, PROMETHEUS_UNIT
from tasks import ledger
from tasks.drift_report import because, difference, is_due
from tasks.facts import LaidFile, parsed
from tasks.operations import Commands, reasons_to_replace, show_difference, written

READ_S = 30


@operation()
def checked(path: str, content: bytes, check: str) -> Commands:
    """A file as laid_down lays it, behind `promtool check`. check: what it is to promtool."""
    wanted = {"user": "root", "group": "root", "mode": "644", "content": content}
    ledger.of(host).files[path] = ledger.file_of(content)
    found = host.get_fact(LaidFile, path=path)
    if found == wanted:
        host.noop(f"{path} is as it should be")
        return
    differs = difference(path, found["content"] if found else b"", content)
    if state.config.DIFF and not state.is_executing:
        show_difference(differs)
    for reason in reasons_to_replace(path, found, wanted, differs):
        because(host, reason.text, reason.diff)
    target = PurePosixPath(path)
    candidate = str(target.with_name(f".{target.stem}.candidate{target.suffix}"))
    yield written(candidate, content)
    quoted = QuoteString(candidate)
    yield StringCommand(
        *("if command -v promtool >/dev/null; then promtool check", check, quoted, ">&2; fi"),
        *("&& mv -fT", quoted, QuoteString(path), "&& sync", QuoteString(str(target.parent))),
    )


class Read(FactBase[dict[str, Any]]):
    """{"when": Prometheus last read its files, null where it does not answer; "changed": {path:
    when it was laid down}}, seconds since the epoch."""

    def command(self, files: Sequence[str]) -> StringCommand:
        return StringCommand(
            "python3 -c", QuoteString(LOOK), str(PROMETHEUS_PORT), QuoteString(json.dumps(files))
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = parsed(output)
        return found


LOOK = """import json, os, re, sys, urllib.request
opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
name, when = "prometheus_config_last_reload_success_timestamp_seconds", None
try:
    said = opened(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=10).read().decode()
    when = float(re.search(f"^{name} (.+)$", said, re.M)[1])
except (OSError, TypeError):
    pass
paths = [path for path in json.loads(sys.argv[2]) if os.path.exists(path)]
print(json.dumps({"when": when, "changed": {path: os.stat(path).st_mtime for path in paths}}))
"""


@operation()
def read_anew(files: Sequence[str]) -> Commands:
    """Prometheus has read its files since they were laid down; it goes on meanwhile."""
    found = host.get_fact(Read, files=list(files))
    when = found["when"]
    if when is None:  # it is started, or is started anew, by what comes before
        host.noop("it reads them when it starts")
        return
    # its own clock tells whole seconds
    late = [path for path, laid in found["changed"].items() if laid >= int(when) + 1]
    if not is_due(host, [f"it runs since before {path} was laid down" for path in late], "read"):
        return
    yield StringCommand("systemctl reload", PROMETHEUS_UNIT)
    yield StringCommand(
        "python3 -c", QuoteString(UNTIL_READ), str(PROMETHEUS_PORT), str(when), str(READ_S)
    )


UNTIL_READ = """import re, sys, time, urllib.request
opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
name, end = "prometheus_config_last_reload_success_timestamp_seconds", time.monotonic() + float(
    sys.argv[3]
)
while time.monotonic() < end:
    said = opened(f"http://127.0.0.1:{sys.argv[1]}/metrics", timeout=10).read().decode()
    if float(re.search(f"^{name} (.+)$", said, re.M)[1]) > float(sys.argv[2]):
        sys.exit()
    time.sleep(0.2)
sys.exit("Prometheus has not read its files: see `journalctl -u prometheus`")
"""
