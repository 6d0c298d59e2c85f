"""May this box become a server? Decided from one report, all faults in one answer."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aibox.decide import driver, vram
from aibox.decide.figures import GB, gigabytes
from aibox.decide.refusal import Refusal

SUPPORTED = {("ubuntu", "24.04"), ("debian", "12"), ("debian", "13")}
# Ships glibc 2.43, against which CUDA 13.0's nvcc does not compile.
EXPERIMENTAL = {("ubuntu", "26.04")}
SYSTEMD_FLOOR = 252  # Debian 12's, the oldest supported
# The server's processes took about 4 GB with a tiny model on the CPU; a machine sold with 8 GB
# reports a little less than that.
MEMORY_FLOOR_BYTES = 7_500_000_000
FIRST_PERSON = 1000  # Debian and Ubuntu give people's logins numbers from here on
NO_LOGIN = ("/nologin", "/false")
CLOCK_TOLERANCE_S = 600  # beyond ten minutes certificates start to look wrong


@dataclass(frozen=True)
class Disk:
    """The filesystem under one folder; two folders share it when `filesystem` is equal."""

    filesystem: str
    mount: str
    free_bytes: int


@dataclass(frozen=True)
class PortOwner:
    """The process that listens on a port, and the systemd unit it belongs to."""

    pid: int
    name: str
    unit: str | None


@dataclass(frozen=True)
class Account:
    """A user that exists on the box."""

    uid: int
    shell: str


@dataclass(frozen=True)
class Gpu:
    """What NVML says. library: whether libnvidia-ml.so.1 is there at all."""

    library: bool
    error: str | None
    driver: str | None
    cards: tuple[vram.Card, ...]


@dataclass(frozen=True)
class BoxReport:
    """What the probe read on a box. Sizes in bytes, the clock in epoch seconds."""

    os_id: str
    os_version: str
    os_name: str
    architecture: str
    python: str | None
    root: bool
    systemd: int | None
    memory_bytes: int
    clock: float
    disks: Mapping[str, Disk]
    ports: Mapping[int, PortOwner | None]
    dpkg_present: bool
    dpkg_broken: tuple[str, ...]
    gpu: Gpu
    account: Account | None  # of the server's user
    foreign_unit: bool  # a unit file of the server's name that no deploy has written
    sizes: Mapping[str, int]

    @classmethod
    def parse(cls, text: str) -> "BoxReport":
        """The probe's JSON. Raises ValueError that names the place and what stands there."""
        try:
            document = json.loads(text)
        except RecursionError:
            raise ValueError("the report is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"the report is not JSON: {error}") from None
        report = _Part("report", document)
        system, dpkg = report.part("os"), report.part("dpkg")
        return cls(
            os_id=system.text("id"),
            os_version=system.text("version_id"),
            os_name=system.text("pretty_name"),
            architecture=report.text("architecture"),
            python=report.text_or_none("python"),
            root=report.truth("root"),
            systemd=report.count_or_none("systemd"),
            memory_bytes=report.count("memory_bytes"),
            clock=report.seconds("clock"),
            disks={path: _disk(part) for path, part in report.parts("disks").items()},
            ports=_ports(report.part("ports")),
            dpkg_present=dpkg.truth("present"),
            dpkg_broken=dpkg.texts("broken"),
            gpu=_gpu(report.part("gpu")),
            account=_account(report),
            foreign_unit=report.truth("foreign_unit"),
            sizes=report.part("sizes").counts(),
        )


@dataclass(frozen=True)
class Wanted:
    """What the settings ask of a box: plain values, so that this file needs the stdlib only."""

    locked_pythons: tuple[str, ...]  # such as "3.11": the Pythons a release can be built for
    vllm_version: str
    driver_version: str  # what the settings install
    driver_floor: str | None  # what the release's CUDA demands; None: no CUDA in it
    gpu_uuid: str | None
    server_port: int
    server_unit: str  # without ".service"
    server_user: str
    releases_folder: str
    release_folder: str | None  # of the one release; None when no lock fits the box's Python
    release_bytes: int
    models_folder: str
    weights_folder: str
    weights_bytes: int
    reserve_bytes: int  # left free on each filesystem that is written to
    clock: float  # epoch seconds on control when the report arrived


def judge(report: BoxReport, wanted: Wanted) -> list[Refusal]:
    """Every reason why this box cannot be built; empty when it can."""
    faults = [
        _operating_system(report),
        _architecture(report),
        _root(report),
        _systemd(report),
        _python(report, wanted),
        _dpkg(report),
        _memory(report),
        _clock(report, wanted),
        _port(report, wanted),
        _user(report, wanted),
        _unit(report, wanted),
        *_gpu_faults(report, wanted),
        *_disk_faults(report, wanted),
    ]
    return [fault for fault in faults if fault is not None]


def warnings(report: BoxReport) -> list[str]:
    """What the person should know although the run goes on."""
    if (report.os_id, report.os_version) in EXPERIMENTAL:
        return [
            f"{report.os_name} is experimental: CUDA 13.0's compiler fails on its C library, "
            "so kernels may not build"
        ]
    return []


def _operating_system(report: BoxReport) -> Refusal | None:
    if (report.os_id, report.os_version) in SUPPORTED | EXPERIMENTAL:
        return None
    return Refusal(
        report.os_name or f"{report.os_id} {report.os_version}",
        "Ubuntu 24.04, Debian 12 or Debian 13",
        "install one of them on the box",
    )


def _architecture(report: BoxReport) -> Refusal | None:
    if report.architecture == "x86_64":
        return None
    return Refusal(
        f"architecture {report.architecture}",
        "x86_64, which the locked packages are built for",
        "use an x86_64 box",
    )


def _root(report: BoxReport) -> Refusal | None:
    if report.root:
        return None
    return Refusal(
        "commands on the box do not run as root",
        "root, or a login that may use sudo",
        "let the login use sudo (on the box: `usermod -aG sudo NAME`) and log in anew",
    )


def _systemd(report: BoxReport) -> Refusal | None:
    if report.systemd is not None and report.systemd >= SYSTEMD_FLOOR:
        return None
    found = "no systemd" if report.systemd is None else f"systemd {report.systemd}"
    return Refusal(
        found,
        f"systemd {SYSTEMD_FLOOR} or newer as the first process",
        "use a whole machine, not a container without an init system",
    )


def _python(report: BoxReport, wanted: Wanted) -> Refusal | None:
    if report.python is None:
        return Refusal("no python3", "python3", "on the box: `apt-get install python3`")
    if report.python in wanted.locked_pythons:
        return None
    return Refusal(
        f"Python {report.python}",
        f"a Python with a lock for vLLM {wanted.vllm_version}: "
        + (", ".join(wanted.locked_pythons) or "there is none"),
        f"make a lock for Python {report.python} (vllm-{wanted.vllm_version}-py"
        f"{report.python.replace('.', '')}.txt in locks_folder), or use a distribution whose "
        "python3 has one",
    )


def _dpkg(report: BoxReport) -> Refusal | None:
    if not report.dpkg_present:
        return Refusal("no dpkg", "a distribution with dpkg and apt", "use Ubuntu or Debian")
    if not report.dpkg_broken:
        return None
    return Refusal(
        f"packages that dpkg has not finished: {', '.join(report.dpkg_broken)}",
        "every package installed or gone",
        "on the box: `dpkg --configure -a && apt-get -f install`",
    )


def _memory(report: BoxReport) -> Refusal | None:
    if report.memory_bytes >= MEMORY_FLOOR_BYTES:
        return None
    return Refusal(
        f"{gigabytes(report.memory_bytes)} of memory",
        f"at least {gigabytes(MEMORY_FLOOR_BYTES)} (a machine with 8 GB)",
        "give the box more memory",
    )


def _clock(report: BoxReport, wanted: Wanted) -> Refusal | None:
    ahead = report.clock - wanted.clock
    if abs(ahead) <= CLOCK_TOLERANCE_S:
        return None
    direction = "ahead of" if ahead > 0 else "behind"
    return Refusal(
        f"the box's clock is {_span(abs(ahead))} {direction} this machine's",
        "at most 10 minutes between them, or certificates look invalid",
        "set whichever clock is wrong (on the box: `timedatectl set-ntp true`)",
    )


def _span(seconds: float) -> str:
    if seconds < 2 * 3600:
        return f"{seconds / 60:.0f} minutes"
    if seconds < 2 * 86400:
        return f"{seconds / 3600:.0f} hours"
    return f"{seconds / 86400:.0f} days"


def _port(report: BoxReport, wanted: Wanted) -> Refusal | None:
    if wanted.server_port not in report.ports:
        return Refusal(
            f"nothing is known about port {wanted.server_port}",
            "a report of the port's owner",
            "run again; the probe was asked about other ports",
        )
    owner = report.ports[wanted.server_port]
    if owner is None or owner.unit == f"{wanted.server_unit}.service":
        return None
    return Refusal(
        f"port {wanted.server_port} belongs to {_shown_owner(owner)}",
        f"a free port, or {wanted.server_unit}.service on it",
        f"stop it on the box with {_stopping(owner)}, or set server_port to a free one",
    )


def _user(report: BoxReport, wanted: Wanted) -> Refusal | None:
    """A person's login would lose its shell and its home to the service."""
    account = report.account
    if account is None or account.uid < FIRST_PERSON or account.shell.endswith(NO_LOGIN):
        return None
    return Refusal(
        f"{wanted.server_user} is a login on the box (uid {account.uid}, {account.shell})",
        "a user for the server alone",
        "set server_user to a name that nobody has, such as vllm",
    )


def _unit(report: BoxReport, wanted: Wanted) -> Refusal | None:
    if not report.foreign_unit:
        return None
    name = f"{wanted.server_unit}.service"
    return Refusal(
        f"/etc/systemd/system/{name} is there, and no deploy has written it",
        "a unit that a deploy laid down, or none",
        f"keep yours: on the box `systemctl disable --now {name}`, and rename the file; "
        "or set server_unit to another name and server_port to a free one",
    )


def _shown_owner(owner: PortOwner) -> str:
    if owner.pid == 0:  # its process is hidden from the probe
        return owner.name
    unit = f"unit {owner.unit}" if owner.unit else "no systemd unit"
    return f"{owner.name} (pid {owner.pid}, {unit})"


def _stopping(owner: PortOwner) -> str:
    if owner.unit:
        return f"`systemctl disable --now {owner.unit}`"
    return f"`kill {owner.pid}`" if owner.pid else "its own means (`ss -ltnp` names it)"


def _gpu_faults(report: BoxReport, wanted: Wanted) -> list[Refusal]:
    gpu = report.gpu
    if not gpu.library:
        floor = wanted.driver_floor
        return [
            Refusal(
                "no NVIDIA driver (libnvidia-ml.so.1 is missing)",
                f"a driver from {floor} on" if floor else "a driver",
                f"install driver {wanted.driver_version} with the open kernel modules, reboot",
            )
        ]
    judged = vram.judge(gpu.cards, gpu.error, wanted.gpu_uuid)
    faults = [judged] if isinstance(judged, Refusal) else []
    old = _driver(gpu, wanted)
    return [old, *faults] if old is not None else faults


def _driver(gpu: Gpu, wanted: Wanted) -> Refusal | None:
    if wanted.driver_floor is None or (gpu.driver is None and gpu.error is not None):
        return None  # nothing demanded, or NVML's own error says it better
    try:
        if gpu.driver is not None and not driver.too_old(gpu.driver, wanted.driver_floor):
            return None
    except ValueError:
        pass  # an unreadable version is refused below, as it was found
    return Refusal(
        f"NVIDIA driver {gpu.driver or 'of unknown version'}",
        f"{wanted.driver_floor} or newer, which the CUDA of vLLM {wanted.vllm_version} needs",
        f"install driver {wanted.driver_version} with the open kernel modules and reboot",
    )


@dataclass(frozen=True)
class _Need:
    what: str
    folder: str
    setting: str
    size: int


def _needs(report: BoxReport, wanted: Wanted) -> list[_Need]:
    """What is still to be written. A release folder is complete or absent, so its size is no
    matter once it is there; weights arrive file by file."""
    present = report.sizes.get(wanted.release_folder or "", 0)
    release = 0 if present > 0 else wanted.release_bytes
    weights = max(0, wanted.weights_bytes - report.sizes.get(wanted.weights_folder, 0))
    needs = [
        _Need("the release", wanted.releases_folder, "releases_folder", release),
        _Need("the weights", wanted.models_folder, "models_folder", weights),
    ]
    return [need for need in needs if need.size > 0]


def _disk_faults(report: BoxReport, wanted: Wanted) -> list[Refusal]:
    faults: list[Refusal] = []
    shared: dict[str, list[_Need]] = {}
    for need in _needs(report, wanted):
        disk = report.disks.get(need.folder)
        if disk is None:
            faults.append(
                Refusal(
                    f"nothing is known about the disk under {need.folder}",
                    f"room for {need.what} ({gigabytes(need.size)})",
                    f"run again; if it stays, set {need.setting} to a folder that exists",
                )
            )
        else:
            shared.setdefault(disk.filesystem, []).append(need)
    for needs in shared.values():
        fault = _room(report.disks[needs[0].folder], needs, wanted.reserve_bytes)
        faults += [fault] if fault else []
    return faults


def _room(disk: Disk, needs: list[_Need], reserve: int) -> Refusal | None:
    total = sum(need.size for need in needs) + reserve
    if disk.free_bytes >= total:
        return None
    parts = [f"{gigabytes(need.size)} for {need.what} in {need.folder}" for need in needs]
    parts += [f"{gigabytes(reserve)} kept free"] if reserve else []
    settings = " or ".join(need.setting for need in needs)
    # Rounded up: who frees what is written here must not be refused again.
    missing = math.ceil((total - disk.free_bytes) / (GB / 10)) / 10
    return Refusal(
        f"{gigabytes(disk.free_bytes)} free on {disk.mount}",
        f"{gigabytes(total)}: {', '.join(parts)}",
        f"free {missing:.1f} GB on {disk.mount}, or set {settings} to a folder on a larger disk",
    )


class _Part:
    """One object of the report and where it stands; every reader checks the type it promises."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, found {_short(value)}")
        self.where = where
        self.value: dict[str, Any] = value

    def _get(self, key: str, kinds: type | tuple[type, ...], words: str) -> Any:
        where = f"{self.where}.{key}"
        if key not in self.value:
            raise ValueError(f"{where}: missing, expected {words}")
        value = self.value[key]
        if isinstance(value, bool) and kinds is not bool:
            raise ValueError(f"{where}: expected {words}, found {_short(value)}")
        if not isinstance(value, kinds):
            raise ValueError(f"{where}: expected {words}, found {_short(value)}")
        return value

    def text(self, key: str) -> str:
        return str(self._get(key, str, "text"))

    def text_or_none(self, key: str) -> str | None:
        value = self._get(key, (str, type(None)), "text or null")
        return None if value is None else str(value)

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._get(key, list, "a list of texts")
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{self.where}.{key}: expected texts, found {_short(values)}")
        return tuple(values)

    def truth(self, key: str) -> bool:
        return bool(self._get(key, bool, "true or false"))

    def count(self, key: str) -> int:
        value = self._get(key, int, "a whole number")
        if value < 0:
            raise ValueError(f"{self.where}.{key}: expected 0 or more, found {_short(value)}")
        return int(value)

    def count_or_none(self, key: str) -> int | None:
        return None if self.value.get(key, 0) is None else self.count(key)

    def counts(self) -> dict[str, int]:
        return {key: self.count(key) for key in self.value}

    def seconds(self, key: str) -> float:
        value = self._get(key, (int, float), "seconds")
        # Neither infinity nor a number too large for a float is a time.
        if not abs(value) < 1e15:
            raise ValueError(f"{self.where}.{key}: expected seconds, found {_short(value)}")
        return float(value)

    def part(self, key: str) -> "_Part":
        return _Part(f"{self.where}.{key}", self._get(key, dict, "an object"))

    def parts(self, key: str) -> dict[str, "_Part"]:
        whole = self.part(key)
        return {name: whole.part(name) for name in whole.value}

    def list_of_parts(self, key: str) -> list["_Part"]:
        values = self._get(key, list, "a list of objects")
        return [_Part(f"{self.where}.{key}[{at}]", value) for at, value in enumerate(values)]


def _short(value: object) -> str:
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 1e18 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."


def _disk(part: _Part) -> Disk:
    return Disk(part.text("filesystem"), part.text("mount"), part.count("free_bytes"))


def _ports(part: _Part) -> dict[int, PortOwner | None]:
    owners: dict[int, PortOwner | None] = {}
    for port, value in part.value.items():
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ValueError(f"{part.where}: expected port numbers, found {_short(port)}")
        owners[int(port)] = None if value is None else _owner(part.part(port))
    return owners


def _account(report: _Part) -> Account | None:
    if report.value.get("account", {}) is None:
        return None
    part = report.part("account")
    return Account(part.count("uid"), part.text("shell"))


def _owner(part: _Part) -> PortOwner:
    return PortOwner(part.count("pid"), part.text("name"), part.text_or_none("unit"))


def _gpu(part: _Part) -> Gpu:
    return Gpu(
        library=part.truth("library"),
        error=part.text_or_none("error"),
        driver=part.text_or_none("driver"),
        cards=tuple(_card(card) for card in part.list_of_parts("cards")),
    )


def _card(part: _Part) -> vram.Card:
    mig = part.text_or_none("mig")
    if mig not in ("enabled", "disabled", None):
        raise ValueError(f"{part.where}.mig: expected enabled, disabled or null, found {mig!r}")
    return vram.Card(
        index=part.count("index"),
        name=part.text("name"),
        uuid=part.text("uuid"),
        memory_bytes=part.count_or_none("memory_bytes"),
        capability=_capability(part),
        mig=mig,
    )


def _capability(part: _Part) -> tuple[int, int] | None:
    value = part.value.get("capability", "missing")
    if value is None:
        return None
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in value)
    ):
        return value[0], value[1]
    raise ValueError(f"{part.where}.capability: expected two numbers or null, found {value!r:.60}")
