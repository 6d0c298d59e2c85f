"""May this box become a server? Decided from one report, all faults in one answer."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aibox.decide import driver, driver_refusals, fitting, vram
from aibox.decide.driver import DriverWanted
from aibox.decide.driver_evidence import Evidence
from aibox.decide.driver_refusals import NvmlAnswer, RepositoryAnswer
from aibox.decide.figures import GB, gigabytes
from aibox.decide.refusal import Refusal
from aibox.decide.report import Part, document, short

SUPPORTED = {("ubuntu", "24.04"), ("debian", "12"), ("debian", "13")}
# Ships glibc 2.43, against which CUDA 13.0's nvcc does not compile.
EXPERIMENTAL = {("ubuntu", "26.04")}
SYSTEMD_FLOOR = 252  # Debian 12's, the oldest supported
# The server's processes took about 4 GB with a tiny model on the CPU; a machine sold with 8 GB
# reports a little less than that.
MEMORY_FLOOR_BYTES = 7_500_000_000
FIRST_PERSON = 1000  # Debian and Ubuntu give people's logins numbers from here on
PACKAGES_FOLDER = "/usr"  # where packages put nearly all of what they hold
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
    """A process that listens, and the systemd unit it belongs to.

    manager: who keeps it, "system", "user", "container" or "none". user: its owner's name. vllm:
    whether it is a server of vLLM. starter: the unit of the system that starts its container.
    ports: all that it listens on, where that was asked.
    """

    pid: int
    name: str
    unit: str | None
    manager: str = "system"
    user: str | None = None
    vllm: bool = False
    starter: str | None = None
    ports: tuple[int, ...] = ()


@dataclass(frozen=True)
class ForeignUnit:
    """A person's own unit of the server's name: where its file lies, what it starts."""

    path: str
    starts_container: bool
    starts_vllm: bool


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
    serving: tuple[PortOwner, ...]  # the server's unit and every vLLM, where they listen
    dpkg_present: bool
    dpkg_broken: tuple[str, ...]
    gpu: Gpu
    account: Account | None  # of the server's user
    foreign_unit: ForeignUnit | None  # of the server's name, which no deploy has written
    sizes: Mapping[str, int]
    units: Mapping[str, str | None]  # whose the files of the doors' units are, see decide/doors.py
    keys: tuple[str, ...]  # the files of the doors' keys that hold any

    @classmethod
    def parse(cls, text: str) -> "BoxReport":
        """The probe's JSON. Raises ValueError that names the place and what stands there."""
        report = document("report", text)
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
            serving=_serving(report),
            dpkg_present=dpkg.truth("present"),
            dpkg_broken=dpkg.texts("broken"),
            gpu=_gpu(report.part("gpu")),
            account=_account(report),
            foreign_unit=_foreign_unit(report),
            sizes=report.part("sizes").counts(),
            units=_units(report.part("units")),
            keys=report.texts("keys"),
        )


@dataclass(frozen=True)
class Wanted:
    """What the settings ask of a box: plain values, so that this file needs the stdlib only."""

    locked_pythons: tuple[str, ...]  # such as "3.11": the Pythons a release can be built for
    vllm_version: str
    server_port: int
    server_unit: str  # without ".service"
    server_user: str
    releases_folder: str
    release_folder: str | None  # of the one release; None when no lock fits the box's Python
    release_bytes: int
    cache_folder: str  # where the release's downloads are unpacked
    models_folder: str
    weights_folder: str | None  # None: not pinned yet
    weights_bytes: int
    reserve_bytes: int  # left free on each filesystem that is written to
    clock: float  # epoch seconds on control when the report arrived
    doors: "tuple[Need, ...]" = ()  # the venvs of the doors that stand and have none yet
    load: "fitting.Load | None" = None  # on the cards; None: not pinned yet


def judge(
    report: BoxReport,
    wanted: Wanted,
    evidence: Evidence,
    driver_wanted: DriverWanted,
    *,
    serving: Sequence[PortOwner],
    offered: RepositoryAnswer | None,
) -> list[Refusal]:
    """Every reason why this box cannot be built; empty when it can.

    serving: whoever a reboot would cut off. offered: what NVIDIA's repository said, None
    where it was not asked. A driver that is missing, too old or of the wrong kind is no reason:
    the driver stage sees to it.
    """
    reboot = driver.reboot_reasons(evidence, driver_wanted)
    changes = driver.install_reasons(evidence, driver_wanted)
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
        _container(report, wanted),
        _no_server(report, wanted),
        _user(report, wanted),
        *driver_refusals.refusals(evidence, driver_wanted, _nvml(report.gpu)),
        driver_refusals.reboot_refusal(
            reboot,
            changes,
            [cut_off(one, wanted.server_unit) for one in serving],
            driver_wanted,
            driver.could_stay(evidence, driver_wanted, offered.offers if offered else {}),
        ),
        _power(report, driver_wanted),
        _weights(report, wanted, evidence, driver_wanted),
        *_repository(report, evidence, driver_wanted, offered),
        *_disk_faults(report, wanted, offered.needed_bytes if offered else 0),
    ]
    return [fault for fault in faults if fault is not None]


def gpu_from(text: str) -> Gpu:
    """The probe's answer to "cards". Raises ValueError for one of another form."""
    return _gpu(document("cards", text))


def serving_now(text: str) -> tuple[PortOwner, ...]:
    """The probe's answer to "serving". Raises ValueError for one of another form."""
    return _serving(document("report", f'{{"serving": {text}}}'))


def cut_off(owner: PortOwner, unit: str) -> tuple[str, str]:
    """(who serves, how to stop it) in words. unit: the server's own, without ".service"."""
    ports = ", ".join(map(str, owner.ports))
    on = f"port{'s' if len(owner.ports) > 1 else ''} {ports}"
    if owner.manager == "system" and owner.unit == f"{unit}.service":
        return f"the server ({owner.unit}, {on})", f"`systemctl stop {unit}`"
    if owner.manager == "container":
        if owner.starter:
            return f"a vLLM in a container of {owner.starter}", f"`systemctl stop {owner.starter}`"
        return f"a vLLM in the container {owner.unit}", f"`docker stop {owner.unit or 'NAME'}`"
    if owner.unit:
        whose = f" of {owner.user}" if owner.manager == "user" else ""
        return f"{owner.unit}{whose} ({on})", _stopping(owner, "stop")
    return f"{owner.name} (pid {owner.pid}, {on})", _stopping(owner, "stop")


def can_ask_apt(report: BoxReport) -> bool:
    """Whether NVIDIA's repository has a folder for this box, and the box an apt to read it."""
    known = (report.os_id, report.os_version) in SUPPORTED | EXPERIMENTAL
    return known and report.architecture == "x86_64" and report.root and report.dpkg_present


def warnings(report: BoxReport, evidence: Evidence) -> list[str]:
    """What the person should know although the run goes on."""
    experimental = (
        f"{report.os_name} is experimental: CUDA 13.0's compiler fails on its C library, "
        "so kernels may not build"
    )
    is_experimental = (report.os_id, report.os_version) in EXPERIMENTAL
    return [experimental] * is_experimental + driver.xid_report(evidence)


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
    """What dpkg has not finished is no reason: the base stage finishes it."""
    if report.dpkg_present:
        return None
    return Refusal("no dpkg", "a distribution with dpkg and apt", "use Ubuntu or Debian")


def unfinished(broken: tuple[str, ...]) -> Refusal:
    """broken: packages that dpkg has still not finished, as "name: half-configured"."""
    return Refusal(
        f"packages that dpkg cannot finish: {', '.join(broken)}",
        "every package installed or gone",
        "mend them on the box (`dpkg --configure -a` shows what is wrong), or purge them",
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
    ours = f"{wanted.server_unit}.service"
    if owner is None or (owner.unit == ours and owner.manager == "system"):
        return None
    if owner.starter == ours and report.foreign_unit and report.foreign_unit.starts_container:
        return None  # it is told once
    return Refusal(
        f"port {wanted.server_port} belongs to {shown_owner(owner)}",
        f"a free port, or {ours} on it",
        port_remedy(owner, wanted.server_port, "server_port"),
    )


def port_remedy(owner: PortOwner, port: int, setting: str) -> str:
    """What to do about whoever holds a port of ours; a unit that serves vLLM can be adopted."""
    other = f"or set {setting} to a free one"
    name = (owner.unit or "").removesuffix(".service")
    adoptable = re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name)
    if owner.manager == "system" and owner.vllm and adoptable and setting == "server_port":
        return (
            f'adopt it: set server_unit = "{name}" in group_data/site.py (your unit is kept, and '
            f"one command brings it back); {other}"
        )
    if owner.starter:
        return (
            f"stop it on the box with `systemctl disable --now {owner.starter}`, which starts the "
            f"container (a server in one can't be adopted), {other}"
        )
    if owner.manager == "container":
        return (
            f"stop the container on the box (`docker ps --filter publish={port}` names it, then "
            f"`docker update --restart=no NAME` and `docker stop NAME`), {other}"
        )
    return f"stop it on the box with {_stopping(owner)}, {other}"


def _container(report: BoxReport, wanted: Wanted) -> Refusal | None:
    """Its server is no process of the unit, so no gate could tell whether it serves again."""
    if report.foreign_unit is None or not report.foreign_unit.starts_container:
        return None
    unit = f"{wanted.server_unit}.service"
    return Refusal(
        f"{report.foreign_unit.path} starts a container",
        "a unit that runs vLLM by itself, which can be adopted, or none of that name",
        f"on the box: `systemctl disable --now {unit}`; and set server_unit to a name that no unit "
        'has, such as "aibox-vllm", in group_data/site.py: yours stays as it is',
    )


def _no_server(report: BoxReport, wanted: Wanted) -> Refusal | None:
    """A unit of another kind, ssh's or a proxy's, would be gone."""
    his = report.foreign_unit
    if his is None or his.starts_container or his.starts_vllm:
        return None
    unit = f"{wanted.server_unit}.service"
    return Refusal(
        f"{his.path} is a unit of the box that starts no vLLM, as far as its file tells",
        "a unit that runs vLLM, which can be adopted, or none of that name",
        f"set server_unit to another name in group_data/site.py; if {unit} does run a vLLM, start "
        "it first: what runs is looked at too",
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


def shown_owner(owner: PortOwner) -> str:
    """Who holds a port, in words."""
    if owner.pid == 0:  # its process is hidden from the probe
        return owner.name
    if owner.manager == "container":
        kept = f"a container of {owner.starter}" if owner.starter else "a container"
    elif owner.manager == "user" and owner.unit:
        kept = f"{owner.unit}, a unit of the user {owner.user}"
    else:
        kept = f"unit {owner.unit}" if owner.unit else "no systemd unit"
    return f"{owner.name} (pid {owner.pid}, {kept})"


def _stopping(owner: PortOwner, verb: str = "disable --now") -> str:
    if owner.unit and owner.manager == "user":
        return f"`systemctl --user -M {owner.user}@ {verb} {owner.unit}`"
    if owner.unit:
        return f"`systemctl {verb} {owner.unit}`"
    return f"`kill {owner.pid}`" if owner.pid else "its own means (`ss -ltnp` names it)"


def _power(report: BoxReport, wanted: DriverWanted) -> Refusal | None:
    """As far as a driver is there that tells the bounds; else the driver stage finds it."""
    cards = vram.judge(report.gpu.cards, report.gpu.error, wanted.cards_wanted)
    if isinstance(cards, Refusal):
        return None
    return vram.power_refusals(cards, wanted.power_limit_w)


def _weights(
    report: BoxReport, wanted: Wanted, evidence: Evidence, driver_wanted: DriverWanted
) -> Refusal | None:
    """Before the first byte of them. Without a driver the cards' ids tell their memory."""
    cards = vram.judge(report.gpu.cards, report.gpu.error, driver_wanted.cards_wanted)
    if isinstance(cards, Refusal):
        known = [
            fitting.MEMORY_OF[card.id] for card in evidence.pci if card.id in fitting.MEMORY_OF
        ]
        memory = [] if report.gpu.cards else known
    else:
        memory = [card.memory_bytes or 0 for card in cards]
    return fitting.refusal(wanted.load, memory) if wanted.load else None


def _repository(
    report: BoxReport, evidence: Evidence, wanted: DriverWanted, offered: RepositoryAnswer | None
) -> list[Refusal]:
    if offered is None:
        return []
    if report.dpkg_broken:  # apt resolves nothing beside them; the base stage finishes them first
        offered = replace(offered, unresolved=None)
    return driver_refusals.repository_refusals(offered, evidence, wanted)


def _nvml(gpu: Gpu) -> NvmlAnswer | None:
    return NvmlAnswer(gpu.error, gpu.cards) if gpu.library else None


@dataclass(frozen=True)
class Need:
    """Bytes still to be written below a folder. setting: names another folder for it."""

    what: str
    folder: str
    setting: str | None
    size: int


def to_write(report: BoxReport, wanted: Wanted, packages_bytes: int) -> list[Need]:
    """What is still to be written. A release folder is complete or absent, so its size is no
    matter once it is there; weights arrive file by file."""
    present = report.sizes.get(wanted.release_folder or "", 0)
    release = 0 if present > 0 else wanted.release_bytes
    weights = max(0, wanted.weights_bytes - report.sizes.get(wanted.weights_folder or "", 0))
    downloads = release if _apart(report, wanted.cache_folder, wanted.releases_folder) else 0
    needs = [
        Need("driver and CUDA toolkit", PACKAGES_FOLDER, None, packages_bytes),
        Need("the release", wanted.releases_folder, "releases_folder", release),
        Need("the release's downloads", wanted.cache_folder, "cache_folder", downloads),
        Need("the weights", wanted.models_folder, "models_folder", weights),
        *wanted.doors,
    ]
    return [need for need in needs if need.size > 0]


def _apart(report: BoxReport, first: str, second: str) -> bool:
    """Whether two folders are on different disks. On one, uv's files are hard links into its
    cache and take no room twice."""
    disks = report.disks.get(first), report.disks.get(second)
    return None not in disks and len({disk.filesystem for disk in disks if disk}) > 1


def _disk_faults(report: BoxReport, wanted: Wanted, packages_bytes: int) -> list[Refusal]:
    faults: list[Refusal] = []
    shared: dict[str, list[Need]] = {}
    for need in to_write(report, wanted, packages_bytes):
        disk = report.disks.get(need.folder)
        if disk is None:
            faults.append(
                Refusal(
                    f"nothing is known about the disk under {need.folder}",
                    f"room for {need.what} ({gigabytes(need.size)})",
                    f"run again; if it stays, set {need.setting} to a folder that exists"
                    if need.setting
                    else f"see that {need.folder} is there, then run again",
                )
            )
        else:
            shared.setdefault(disk.filesystem, []).append(need)
    for needs in shared.values():
        fault = _room(report.disks[needs[0].folder], needs, wanted.reserve_bytes)
        faults += [fault] if fault else []
    return faults


def _room(disk: Disk, needs: list[Need], reserve: int) -> Refusal | None:
    total = sum(need.size for need in needs) + reserve
    if disk.free_bytes >= total:
        return None
    parts = [f"{gigabytes(need.size)} for {need.what} in {need.folder}" for need in needs]
    parts += [f"{gigabytes(reserve)} kept free"] if reserve else []
    settings = " or ".join(need.setting for need in needs if need.setting)
    # Rounded up: who frees what is written here must not be refused again.
    missing = math.ceil((total - disk.free_bytes) / (GB / 10)) / 10
    return Refusal(
        f"{gigabytes(disk.free_bytes)} free on {disk.mount}",
        f"{gigabytes(total)}: {', '.join(parts)}",
        f"free {missing:.1f} GB on {disk.mount}"
        + (f", or set {settings} to a folder on a larger disk" if settings else ", then run again"),
    )


def _disk(part: Part) -> Disk:
    return Disk(part.text("filesystem"), part.text("mount"), part.count("free_bytes"))


def _ports(part: Part) -> dict[int, PortOwner | None]:
    owners: dict[int, PortOwner | None] = {}
    for port, value in part.value.items():
        if not (port.isascii() and port.isdigit() and len(port) <= 5):
            raise ValueError(f"{part.where}: expected port numbers, found {short(port)}")
        owners[int(port)] = None if value is None else _owner(part.part(port))
    return owners


def _foreign_unit(report: Part) -> ForeignUnit | None:
    part = report.part_or_none("foreign_unit")
    if part is None:
        return None
    what = {one: part.truth(one) for one in ("starts_container", "starts_vllm")}
    return ForeignUnit(part.text("path"), **what)


def _serving(report: Part) -> tuple[PortOwner, ...]:
    return tuple(
        replace(_owner(part), ports=part.whole_numbers("ports"))
        for part in report.list_of_parts("serving")
    )


def _units(part: Part) -> dict[str, str | None]:
    return {name: part.text_or_none(name) for name in part.value}


def _account(report: Part) -> Account | None:
    if report.value.get("account", {}) is None:
        return None
    part = report.part("account")
    return Account(part.count("uid"), part.text("shell"))


def _owner(part: Part) -> PortOwner:
    return PortOwner(
        part.count("pid"),
        part.text("name"),
        part.text_or_none("unit"),
        manager=part.text_or_none("manager") or "none",
        user=part.text_or_none("user"),
        vllm=part.truth("vllm"),
        starter=part.text_or_none("starter"),
    )


def _card(part: Part) -> vram.Card:
    return replace(
        vram.card_from(part),
        power_min_w=part.number_or_none("power_min_w"),
        power_max_w=part.number_or_none("power_max_w"),
    )


def _gpu(part: Part) -> Gpu:
    return Gpu(
        library=part.truth("library"),
        error=part.text_or_none("error"),
        driver=part.text_or_none("driver"),
        cards=tuple(_card(card) for card in part.list_of_parts("cards")),
    )
