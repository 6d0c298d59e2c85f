"""The programs of a monitor, which a person may have too."""

import hashlib
from pathlib import Path
from typing import Any

from aibox.box.probe.commands import text_of
from aibox.box.probe.port_owners import owner_of
from aibox.box.probe.unit_files import of_whom


def programs(asked: dict[str, Any]) -> dict[str, Any]:
    """Whose the programs of a monitor are. asked: {package: {"port", "drop_in": as systemd names
    ours}}. "changed": files of the package in /etc that are not as it brought them, null where it
    is not installed."""
    return {
        package: {
            "owner": owner_of(one["port"]),
            "whose": of_whom(Path("/etc/systemd/system", one["drop_in"])),
            "changed": changed_by_hand(package),
        }
        for package, one in asked.items()
    }


def changed_by_hand(package: str) -> list[str] | None:
    form = "${db:Status-Status}\n${Conffiles}\n"
    state, *rows = (text_of(["dpkg-query", "-W", "-f", form, package]) or "").splitlines() or [""]
    if state in ("", "not-installed", "config-files"):
        return None
    told = [row.split()[:2] for row in rows if len(row.split()) >= 2]
    return [path for path, sum_ in told if md5_of(Path(path)) not in (sum_, None)]


def md5_of(path: Path) -> str | None:
    """As dpkg sums its files up."""
    try:
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    except OSError:
        return None


QUESTIONS = {"programs": programs}
