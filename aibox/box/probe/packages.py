"""The database of the box's packages."""

from typing import Any

from aibox.box.probe.commands import text_of


def dpkg() -> dict[str, Any]:
    listing = text_of(["dpkg-query", "-W", "-f", "${Package} ${Status}\n"])
    if listing is None:
        return {"present": False, "broken": []}
    broken = []
    for line in listing.splitlines():
        name, _, status = line.partition(" ")
        state = status.split()[-1] if status else "?"
        if state in ("half-installed", "unpacked", "half-configured", "triggers-awaited"):
            broken.append(f"{name}: {state}")
    return {"present": True, "broken": broken}


QUESTIONS = {"dpkg": lambda _asked: dpkg()}
