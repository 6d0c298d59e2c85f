"""`aibox doctor`: why the server does not serve, and where the card's memory goes."""

from __future__ import annotations

import io
import json
import os
import pwd
import socket
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aibox.box import good_units, status, surroundings
from aibox.box.journal import KERNEL, LINES, Told, starts_of
from aibox.box.probe import nvml, replies, units
from aibox.box.probe.commands import ran
from aibox.box.probe.files import read_text, record_in
from aibox.box.probe.system import os_release
from aibox.box.prove import exposition
from aibox.decide import manifest, memory_account
from aibox.decide.doctor import Findings, screen
from aibox.decide.fault_about import About
from aibox.decide.faults import Cause, diagnose, root_lines
from aibox.decide.redaction import Redactor
from aibox.decide.refusal import Refusal
from aibox.decide.standing import moment

SERVER = Path(manifest.STATE_FOLDER) / "server"
REPORTS = Path(manifest.STATE_FOLDER) / "reports"
KEPT_REPORTS = 5


def doctor(*, report: bool) -> int:
    """Print cause, remedy and memory account; with report, make a redacted bundle instead.

    0: the server serves and no cause stands, or the bundle is written; 1 otherwise.
    """
    deployed = record_in(status.DEPLOYED) or of_a_first_try()
    refusal = status.refusal_of(os.geteuid(), deployed)
    if refusal is not None or deployed is None:
        print(refusal, file=sys.stderr)
        return 1
    found = findings(deployed)
    lines = screen(found)
    if report:
        try:
            path = bundle(deployed, lines)
        except OSError as error:
            remedy = "make room or mend this on the box, then ask again"
            print(Refusal(str(error), "a report that can be written", remedy), file=sys.stderr)
            return 1
        print(f"written: {path}\nRead it before you give it away; see redacted.txt in it.")
        return 0
    print("\n".join(lines))
    return 0 if found.well else 1


def of_a_first_try() -> dict[str, Any] | None:
    """What a deploy would have recorded that got as far as the server's first start."""
    spec = record_in(SERVER / "spec.json")
    if spec is None:
        return None
    return {"format": manifest.FORMAT, "server": {"unit": spec["unit"], "port": spec["port"]}}


# --- what is looked at -------------------------------------------------------------------------


def findings(deployed: Mapping[str, Any]) -> Findings:
    server = deployed["server"]
    unit, port = str(server["unit"]), int(server["port"])
    shown = units.unit_properties(unit)
    pid = int(shown.get("MainPID") or 0)
    process = units.process(pid, shown["ExecMainStartTimestamp"]) if pid else None
    health = replies.health(port) if process is not None else None
    serves = process is not None and health == 200
    starts = starts_of(unit)
    spec = record_in(SERVER / "spec.json") or {"unit": unit, "port": port}
    about = surroundings.about(spec, serves=serves)
    now, before = split(starts, serves=serves)
    lines = [line for start in now for line in start.lines]
    causes = diagnose([*lines, *surroundings.nvml_complaint()], about)
    return Findings(
        unit=unit,
        port=port,
        state=f"{shown.get('ActiveState', 'unknown')}, {shown.get('SubState', 'unknown')}",
        since=moment(process["started"]) if process else None,
        health=health,
        owner=about.port_owner,
        causes=causes,
        before=past(before, about, causes),
        roots=root_lines(lines),
        memory=memory(starts, about, port if serves else None),
        log=f"sudo journalctl -u {unit}",
    )


def split(starts: Sequence[Told], *, serves: bool) -> tuple[list[Told], list[Told]]:
    """(the starts that count now, those that no longer stand): of a server that serves only the
    running one counts; else the last that said anything, and what began after it."""
    if serves:
        return list(starts[-1:]), list(starts[:-1])
    said = [at for at, start in enumerate(starts) if start.own]
    first = said[-1] if said else max(0, len(starts) - 1)
    return list(starts[first:]), []


def past(before: Sequence[Told], about: About, now: Sequence[Cause]) -> list[Cause]:
    """What earlier starts ended of, the newest first: each by itself, for one's cause is no
    consequence of another's."""
    found: dict[str, Cause] = {cause.kind: cause for cause in now}
    told = [cause for start in reversed(before) for cause in diagnose(start.lines, about)]
    for cause in told:
        found.setdefault(cause.kind, cause)
    return list(found.values())[len({cause.kind for cause in now}) :]


def memory(starts: Sequence[Told], about: About, port: int | None) -> list[tuple[str, str]]:
    """Rows of the account of the last start that has any."""
    for start in reversed(starts):
        found = memory_account.account(start.lines)
        if port is not None:
            found = memory_account.with_metrics(found, exposition(port))
        shown = memory_account.rows(found, about.card_bytes, about.flags, serves=port is not None)
        if found.kv_cache is not None or found.kv_tokens is not None:
            return shown
    kept = [memory_account.of_record(entry.account) for entry in good_units.passed()[:1]]
    if not kept:
        return []
    return memory_account.rows(kept[0], about.card_bytes, about.flags, serves=True)


# --- the report --------------------------------------------------------------------------------


def bundle(deployed: Mapping[str, Any], told: Sequence[str]) -> Path:
    """Write the redacted bundle, 0600, and drop the oldest ones. Raises OSError."""
    hide = Redactor(people(), socket.gethostname())
    texts = {name: hide(text) for name, text in contents(deployed, told).items()}
    said = hide.said() or ["nothing"]
    texts["redacted.txt"] = "\n".join(["Hidden in these files:", *said, ""])
    REPORTS.mkdir(mode=0o700, parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S", time.gmtime())
    path = REPORTS / f"aibox-report-{stamp}.tar.gz"
    aside = path.with_suffix(".new")
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        with tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, text in texts.items():
                add(archive, f"aibox-report-{stamp}/{name}", text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)
    for old in sorted(REPORTS.glob("aibox-report-*.tar.gz"))[:-KEPT_REPORTS]:
        old.unlink(missing_ok=True)
    return path


def add(archive: tarfile.TarFile, name: str, text: str) -> None:
    content = text.encode(errors="replace")
    member = tarfile.TarInfo(name)
    member.size, member.mode, member.mtime = len(content), 0o600, int(time.time())
    archive.addfile(member, io.BytesIO(content))


def contents(deployed: Mapping[str, Any], told: Sequence[str]) -> dict[str, str]:
    """{file in the bundle: its text}, nothing hidden yet."""
    unit = str(deployed["server"]["unit"])
    files = {
        "doctor.txt": "\n".join([*told, ""]),
        "journal.txt": journal_text(["-b", "-u", unit]),
        "journal-before-this-boot.txt": journal_text(["-b", "-1", "-u", unit]),
        "kernel.txt": journal_text(["-b", "-k", "--grep", f"{KERNEL}|nvidia|nouveau"]),
        "unit.txt": said_by(["systemctl", "cat", unit]),
        "status.txt": said_by(["systemctl", "status", unit, "--no-pager", "-n", "0"]),
        "properties.txt": said_by(["systemctl", "show", unit]),
        "driver.json": json.dumps(driver_facts(), indent=1),
        "disks.txt": said_by(["df", "-h"]),
        "memory.txt": said_by(["free", "-m"]),
        "deployed.json": json.dumps(summary(deployed), indent=1),
    }
    for name in ("spec.json", "history.json", "failed.json", "judged.json"):
        files[name] = text_in(SERVER / name)
    return {name: text for name, text in files.items() if text}


def journal_text(words: Sequence[str]) -> str:
    command = ["journalctl", *words, "-o", "short-iso", "--no-pager", "-q", "-n", str(LINES)]
    return said_by(command)


def said_by(command: list[str]) -> str:
    done = ran(command, 60)
    return done.stdout + done.stderr if done else ""


def text_in(path: Path) -> str:
    return read_text(path) or ""


def driver_facts() -> dict[str, Any]:
    return {
        "driver": status.driver(),
        "nvml": nvml.gpu(),
        "module": text_in(Path("/proc/driver/nvidia/version")),
        "kernel": os.uname().release,
        "system": os_release()["pretty_name"],
    }


def summary(deployed: Mapping[str, Any]) -> dict[str, Any]:
    """The record of the deploy without the texts and lists of what it laid down."""
    return {
        name: f"{len(part)} entries" if isinstance(part, list) else part
        for name, part in deployed.items()
    }


def people() -> list[str]:
    """The people of this box: users with a login of their own."""
    return [one.pw_name for one in pwd.getpwall() if 1000 <= one.pw_uid < 60000]
