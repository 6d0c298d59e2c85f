"""Units of the distribution's packages that run as our drop-ins say."""

from __future__ import annotations

import json
from collections.abc import Sequence

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from aibox.decide import services
from tasks.drift_report import because, is_due
from tasks.facts import LaidFile, Probe
from tasks.operations import Commands

START_S = 60


@operation()
def runs(unit: str, files: Sequence[str], url: str) -> Commands:
    """The unit runs since these files were laid down, and answers 200 there.

    Its package may have started it already, before or after: what counts is what runs.
    """
    asked = {"unit": unit, "paths": list(files), "url": url}
    found = host.get_fact(Probe, "running_unit", json.dumps(asked))
    reasons = services.process_reasons(url, found)
    if not is_due(host, reasons, f"{unit} runs from what is laid down"):
        return
    quoted = QuoteString(unit)
    yield StringCommand(
        "systemctl daemon-reload; systemctl reset-failed", quoted, "2>/dev/null; true"
    )
    yield StringCommand("systemctl restart", quoted)
    yield waited(unit, url)


def waited(unit: str, url: str) -> StringCommand:
    """A command that ends when a URL answers 200, and fails, with the unit's last words, if not."""
    words = QuoteString(WAIT), QuoteString(url), str(START_S)
    said = "journalctl -q --no-pager -n 5 -o cat -u"
    told = StringCommand("{", said, QuoteString(unit), ">&2; exit 1; }")
    return StringCommand("python3 -c", *words, "||", told)


WAIT = """import sys, time, urllib.request
url, end = sys.argv[1], time.monotonic() + float(sys.argv[2])
opened = urllib.request.build_opener(urllib.request.ProxyHandler({})).open
while True:
    try:
        sys.exit(opened(url, timeout=5).status != 200)
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(f"{url} does not answer: {error}")
    time.sleep(0.2)
"""


@operation()
def stopped(unit: str, drop_in: str) -> Commands:
    """Without our drop-in it would be open to everybody: it is stopped, and its package stays."""
    if host.get_fact(LaidFile, path=drop_in) is None:
        host.noop(f"{unit} is none of ours")
        return
    because(host, f"{drop_in} is no longer wanted")
    folder = drop_in.rpartition("/")[0]
    yield StringCommand("systemctl disable --now", QuoteString(unit))
    yield StringCommand("rm -f", QuoteString(drop_in), "&& systemctl daemon-reload")
    yield StringCommand("rmdir --ignore-fail-on-non-empty", QuoteString(folder))


@operation()
def files_gone(paths: Sequence[str]) -> Commands:
    """Files of ours that are no longer wanted."""
    left = host.get_fact(Probe, "paths_there", json.dumps({"paths": list(paths)}))
    if not left:
        host.noop("none of them is there")
        return
    for path in left:
        because(host, f"{path} is no longer wanted")
    yield StringCommand("rm -f", *(QuoteString(path) for path in left))
    folders = {path.rpartition("/")[0] for path in left}
    for folder in sorted(one for one in folders if one.endswith("/aibox")):
        yield StringCommand("rmdir --ignore-fail-on-non-empty", QuoteString(folder))
