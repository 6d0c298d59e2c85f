"""What starts the containers of the box."""

import re

from aibox.box.probe.files import path_of, read_text
from aibox.box.probe.processes import groups_of_process
from aibox.box.probe.unit_files import PLACES_OF_UNITS
from aibox.box.probe.units import active_state

ENGINES = ("docker.service", "containerd.service", "podman.service")  # all containers' own
# docker and its like, at the start of a command or behind a path, a quote or a blank.
_CONTAINERS = re.compile(
    r"^ExecStart\s*=\s*(?:.*[\s/'\"])?[-@:+!|]*(?:docker|docker-compose|podman|nerdctl)\s",
    re.MULTILINE,
)


def starter_of(pid: int, port: int | None) -> str | None:
    """The unit of the system that started a container: podman's holds it, for docker's the files
    of running units are read. None where it is none, or could be one of several."""
    for line in groups_of_process(pid).splitlines():
        path = line.split(":", 2)[-1]
        units = re.findall(r"(?<=/)[^/]+\.service(?=/)", path)
        if units and "/user@" not in path and units[-1] not in ENGINES:
            return str(units[-1])
    texts: dict[str, str] = {}
    for folder in PLACES_OF_UNITS:
        for file in path_of(folder).glob("*.service"):
            texts.setdefault(file.name, read_text(file) or "")
    starting = {name: text for name, text in texts.items() if starts_container(text)}
    running = [name for name in sorted(starting) if active_state(name) == "active"]
    told = [one for one in running if re.search(rf"vllm|\b{port}\b", starting[one])]
    found = told or running
    return found[0] if len(found) == 1 else None


def starts_container(text: str) -> bool:
    """Whether a unit's file starts a container, which is then in no control group of the unit."""
    return _CONTAINERS.search(joined(text)) is not None


def joined(text: str) -> str:
    """With the lines that go on in the next made one."""
    return re.sub(r"\\\n", " ", text)
