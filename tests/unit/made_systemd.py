"""A made-up systemd's folders with a person's unit in them, for tests of what becomes of it."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aibox.box import adoption
from aibox.box.found import Record, text_in
from aibox.box.service import Service

UNIT = "vllm-coder.service"
HIS = "[Service]\nExecStart=/home/me/vllm-env/bin/vllm serve /srv/w\n"
OURS = "# Laid down by the deploy: change the model card.\n[Service]\nExecStart=/opt/vllm\n"
DROP_INS = {"10-mine.conf": "[Service]\nNice=5\n", "90-more.conf": "[Service]\nUser=me\n"}


class Systemd:
    """The folders of a made-up systemd, and what it would start after a reboot."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.etc, self.run = root / "etc/systemd/system", root / "run/systemd/system.control"
        self.control, self.turning = root / "etc/systemd/system.control", root / "etc/systemd/aibox"
        self.local, self.usr = (
            root / "usr/local/lib/systemd/system",
            root / "usr/lib/systemd/system",
        )
        for folder in (self.etc, self.run, self.usr):
            folder.mkdir(parents=True)
        self.shown = {"MainPID": "0", "ExecMainStartTimestamp": "", "ActiveState": "inactive"}

    @property
    def service(self) -> Service:
        return Service(UNIT, self.etc, self.run)

    def lay(self, text: str = HIS, drop_ins: dict[str, str] = DROP_INS) -> Record:
        """His unit as it stands before any deploy, and what is kept of it."""
        write(self.etc / UNIT, text)
        for name, content in drop_ins.items():
            write(self.etc / f"{UNIT}.d" / name, content)
        record = adoption.keep(self.service)
        assert record is not None
        return record

    def starts(self, seconds: float) -> None:
        """A process of the unit is up that began so long after now, or before it."""
        began = datetime.now(UTC) + timedelta(seconds=seconds)
        stamp = began.strftime("%a %Y-%m-%d %H:%M:%S.%f UTC")
        self.shown |= {"MainPID": str(os.getpid()), "ExecMainStartTimestamp": stamp}
        self.shown["ActiveState"] = "active"

    def boots(self) -> tuple[str | None, dict[str, str]]:
        """(the unit's text, {name: text} of drop-ins that are not empty), /run being empty."""
        folders = (self.control, self.etc, self.local, self.usr)
        units = [text_in(one / UNIT) for one in folders if (one / UNIT).exists()]
        drop_ins: dict[str, str] = {}
        for folder in folders:
            for path in (folder / f"{UNIT}.d").glob("*.conf"):
                drop_ins.setdefault(path.name, text_in(path) or "")
        return next(iter(units), None), {name: text for name, text in drop_ins.items() if text}

    def is_clean(self) -> bool:
        left = [self.turning, self.control, self.run / UNIT, self.run / f"{UNIT}.d"]
        return not list(self.root.rglob("*.new")) and not [
            path for path in left if os.path.lexists(path)
        ]


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode(errors="surrogateescape"))
