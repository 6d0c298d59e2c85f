"""How far long work on a box is: one line in place on a terminal, a line every 10 s without one."""

from __future__ import annotations

import sys
import time
from typing import Any

import click
from pyinfra.api import Host

from aibox.decide.figures import duration, size

POLL_S = 1.0
WITHOUT_TERMINAL_S = 10.0
BYTES = ("bytes", "")  # units that are shown as sizes


class ProgressLine:
    """Shows a job's reports under the name of its box."""

    def __init__(self, box: Host, name: str) -> None:
        self.box, self.name = box, name
        # several boxes would write over each other's line
        self.in_place = sys.stderr.isatty() and len(box.state.inventory) == 1
        self.said_step, self.said_at = "", 0.0

    def show(self, report: dict[str, Any] | None) -> None:
        """Show one report, when there is something to say, and wait until the next is due."""
        if report is not None:
            if self.in_place:
                click.echo(f"\r\033[K    {self.name}: {described(report)}", err=True, nl=False)
            elif (
                report["step"] != self.said_step
                or time.monotonic() - self.said_at > WITHOUT_TERMINAL_S
            ):
                self.box.log(f"{self.name}: {described(report)}")
                self.said_step, self.said_at = report["step"], time.monotonic()
        time.sleep(POLL_S)

    def end(self) -> None:
        if self.in_place:
            click.echo("\r\033[K", err=True, nl=False)


def described(report: dict[str, Any]) -> str:
    """A report in words: `downloading 42 %, 23.1 of 55.0 GB, 95 MB/s, 5 min left`."""
    step, done, total, rate = (report[key] for key in ("step", "done", "total", "rate"))
    if done is None:
        last = f" ({duration(report['last'])} last time)" if report.get("last") else ""
        return f"{step}, {duration(report['seconds'])}{last}"
    if report["unit"] == "%":
        return f"{step} {done:.0f} %, {duration(report['seconds'])}"
    if not total:
        return f"{step}, {size(done)}, {duration(report['seconds'])}"
    words = [f"{step} {100 * done / total:.0f} %", amount(done, total, report["unit"])]
    if rate:
        words += [f"{size(rate)}/s"] if report["unit"] in BYTES else []
        words.append(f"{duration((total - done) / rate)} left")
    return ", ".join(words)


def amount(done: float, total: float, unit: str) -> str:
    if unit in BYTES:
        return f"{size(done)} of {size(total)}"
    return f"{done:.0f} of {total:.0f} {unit}"
