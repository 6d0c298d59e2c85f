"""Where the driver comes from and what keeps it as it is: files of the stage, by path and text.

Also what must go: other sources of the same repository, which apt cannot tell apart from ours.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aibox.decide.driver import DriverWanted, header_packages, packages_of_loaded
from aibox.decide.driver_evidence import Evidence
from aibox.decide.toolkit import toolkit_package

KEY = "/usr/share/keyrings/aibox-nvidia.asc"
SOURCE = "/etc/apt/sources.list.d/aibox-nvidia.sources"
CONTRIB = "/etc/apt/sources.list.d/aibox-contrib.sources"
PREFERENCES = "/etc/apt/preferences.d/aibox-nvidia"
UNATTENDED = "/etc/apt/apt.conf.d/52aibox-nvidia"
MODPROBE = "/etc/modprobe.d/aibox-nvidia.conf"
MODULES_LOAD = "/etc/modules-load.d/aibox-nvidia.conf"
POWER_UNIT = "aibox-power.service"

# Packages that another driver version may push out. A person's container tools are none of them.
REMOVABLE = (
    r"(?!(lib)?nvidia-(container|docker))"
    r"((lib|linux-(modules|objects|signatures)-|xserver-xorg-video-|firmware-)?nvidia[-.\w]*"
    r"|cuda[-.\w]*|libcuda\w*|libnv\w+|libxnvctrl\w*|glx-alternative-nvidia)(:\w+)?"
)
KEY_PLACEHOLDER = "@KEY@"  # the probe puts the path of a key of its own in its place

_HEADER = "# Written by the deploy, which writes it anew when it differs.\n"
_CODENAMES = {"12": "bookworm", "13": "trixie"}


def repository_url(base: str, os_id: str, os_version: str) -> str:
    """The flat folder of a distribution: ".../repos/ubuntu2404/x86_64/"."""
    return f"{base.rstrip('/')}/{os_id}{os_version.replace('.', '')}/x86_64/"


# --- the files ---------------------------------------------------------------------------------


def source_text(url: str, key_path: str = KEY) -> str:
    """The flat repository for apt, trusted by its own key only."""
    return f"{_HEADER}Types: deb\nURIs: {url}\nSuites: /\nSigned-By: {key_path}\n"


def preferences_text(version: str) -> str:
    """The exact driver before everything, and nothing else of the repository by itself.

    Of apt's records the first that fits a version counts, and this file sorts before NVIDIA's
    own pins: the second record takes their effect away.
    """
    families = "src:*nvidia*:any src:cuda-drivers:any src:cuda-compat:any"
    records = (
        (families, f"version {version}-*", 1000),
        (families, "release l=NVIDIA CUDA", 100),
        ("*", "release l=NVIDIA CUDA", 100),
    )
    return _HEADER + "\n".join(
        f"Package: {package}\nPin: {pin}\nPin-Priority: {priority}\n"
        for package, pin, priority in records
    )


def unattended_text() -> str:
    """Unattended upgrades leave a loaded driver alone: its library must stay at its version."""
    names = ("nvidia-", "libnvidia-", "linux-modules-nvidia-", "libcuda1", "cuda-", "libxnvctrl")
    rows = "".join(f'    "{name}";\n' for name in names)
    comment = _HEADER.replace("#", "//", 1)
    return f"{comment}Unattended-Upgrade::Package-Blacklist {{\n{rows}}};\n"


def modprobe_text(uvm_disable_hmm: bool) -> str:
    """nouveau stays off. uvm_disable_hmm: the way round a cuInit that fails with 3 or 999."""
    option = "options nvidia_uvm uvm_disable_hmm=1\n" if uvm_disable_hmm else ""
    return f"{_HEADER}blacklist nouveau\noptions nouveau modeset=0\n{option}"


def modules_load_text() -> str:
    """Nothing asks for nvidia-uvm on a box without a display."""
    return f"{_HEADER}nvidia-uvm\n"


def power_unit_text(power_limit_w: int, gpu_uuids: Sequence[str]) -> str:
    """The unit POWER_UNIT. A limit is lost at each reboot. gpu_uuids: none for the only card.

    Stopped, as when its setting goes, it gives each card its own limit back.
    """
    smi = "/usr/bin/nvidia-smi"
    asked = [f"{smi} -i {uuid}" for uuid in gpu_uuids] or [smi]
    query = "--query-gpu=power.default_limit --format=csv,noheader,nounits"
    starts = "".join(f"ExecStart={one} -pl {power_limit_w}\n" for one in asked)
    stops = "".join(f"ExecStop=-/bin/sh -c '{one} -pl $$({one} {query})'\n" for one in asked)
    return (
        f"{_HEADER}[Unit]\nDescription=Power limit of the graphics card\n"
        "Wants=nvidia-persistenced.service\nAfter=nvidia-persistenced.service\n\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"{starts}{stops}\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )


# --- what is asked of the repository and of apt ------------------------------------------------


def repository_question(evidence: Evidence, wanted: DriverWanted) -> dict[str, Any]:
    """What the probe is asked under "repository", which tries all this without changing a thing."""
    sources = dict(evidence.sources) | {CONTRIB: None, SOURCE: None}
    sources |= cleaned_sources(evidence.sources, wanted.url)
    sources[CONTRIB] = contrib_source(evidence.sources, wanted.os_id, wanted.os_version)
    return {
        "url": wanted.url,
        "fingerprint": wanted.fingerprint,
        "os": f"{wanted.os_id} {wanted.os_version}",
        "sources": {path: text for path, text in sources.items() if text is not None},
        "source": source_text(wanted.url, KEY_PLACEHOLDER),
        "preferences": preferences_text(wanted.version),
        "packages": [f"{name}={wanted.version}-*" for name in wanted.packages],
        "toolkit": toolkit_package(wanted.cuda) if wanted.cuda else None,
        "headers": list(header_packages(evidence)),
        "also": list(packages_of_loaded(evidence, wanted)),
    }


def packages_spec(evidence: Evidence, wanted: DriverWanted) -> dict[str, Any]:
    """The job "packages" for headers and driver."""
    headers = [{"name": name, "version": None} for name in header_packages(evidence)]
    driver = [{"name": name, "version": f"{wanted.version}-*"} for name in wanted.packages]
    return {
        "refresh": True,
        "install": headers + driver,
        "hold": list(wanted.packages),
        "allow_downgrade": True,
        "protect": REMOVABLE,
    }


def toolkit_spec(wanted: DriverWanted) -> dict[str, Any]:
    """The job "packages" for the toolkit, nothing without CUDA; its patch is the repository's."""
    names = [toolkit_package(wanted.cuda)] if wanted.cuda else []
    return {
        "refresh": True,
        "install": [{"name": name, "version": None} for name in names],
        "hold": [],
        "allow_downgrade": True,
        "protect": REMOVABLE,
    }


# --- sources of others -------------------------------------------------------------------------


def cleaned_sources(sources: Mapping[str, str], url: str) -> dict[str, str | None]:
    """Source files that name NVIDIA's CUDA repository, without it; None: the file has to go.

    The same repository twice ends apt with "Conflicting values set for option Signed-By". Our own
    files, and sources that are commented out or switched off, stay as they are.
    """
    changed: dict[str, str | None] = {}
    for path, text in sources.items():
        if path in (SOURCE, CONTRIB):
            continue
        clean = _without_stanzas if path.endswith(".sources") else _without_lines
        cleaned = clean(text, url)
        if cleaned != text:
            empty = not any(_is_active(line) for line in cleaned.splitlines())
            changed[path] = None if empty and path != "/etc/apt/sources.list" else cleaned
    return changed


def _is_active(line: str) -> bool:
    return bool(line.strip()) and not line.lstrip().startswith("#")


def _is_cuda_repository(uri: str, url: str) -> bool:
    """Whether apt gets the driver there: any distribution's folder, a mirror's and a local copy."""
    base = url.rstrip("/").rpartition("/")[0].rpartition("/")[0]
    return (
        "/compute/cuda/repos/" in f"{uri}/"
        or f"{uri.rstrip('/')}/".startswith(f"{base}/")
        or re.match(r"file:/+var/(cuda-repo|nvidia-driver-local-repo)-", uri) is not None
    )


_ONE_LINE = re.compile(r"\s*(?P<type>deb|deb-src)\s+(\[(?P<options>[^]]*)\]\s*)?(?P<rest>\S.*)")


def _without_lines(text: str, url: str) -> str:
    def is_one(line: str) -> bool:
        match = _ONE_LINE.match(line)
        return match is not None and _is_cuda_repository(match["rest"].split()[0], url)

    return "".join(line for line in text.splitlines(keepends=True) if not is_one(line))


def _without_stanzas(text: str, url: str) -> str:
    kept, changed = [], False
    for stanza in re.split(r"\n(?:[ \t]*\n)+", text):
        uris = _field(stanza, "URIs").split()
        others = [uri for uri in uris if not _is_cuda_repository(uri, url)]
        if len(others) == len(uris) or _is_off(stanza):
            kept.append(stanza)
            continue
        changed = True
        if others:
            kept.append(_with_field(stanza, "URIs", " ".join(others)))
    return "\n\n".join(kept) if changed else text


def _is_off(stanza: str) -> bool:
    return _field(stanza, "Enabled").strip().lower() in ("no", "false", "0", "off", "without")


def _field_pattern(name: str) -> re.Pattern[str]:
    """A field and the lines that go on with it, comments between them included."""
    return re.compile(rf"^{name}:(.*(?:\n(?:[ \t]+\S|#).*)*)$", re.IGNORECASE | re.MULTILINE)


def _field(stanza: str, name: str) -> str:
    match = _field_pattern(name).search(stanza)
    lines = match[1].splitlines() if match else []
    return "\n".join(line for line in lines if not line.startswith("#"))


def _with_field(stanza: str, name: str, value: str) -> str:
    return _field_pattern(name).sub(lambda _: f"{name}: {value}", stanza, count=1)


# --- Debian's component contrib ----------------------------------------------------------------


def contrib_source(sources: Mapping[str, str], os_id: str, os_version: str) -> str | None:
    """The text of CONTRIB: Debian's own sources once more with contrib, which the driver needs.

    None where it is not needed: on other distributions, and where a source has it. CONTRIB itself
    does not count, so that the answer stays the same once it is laid down.
    """
    codename = _CODENAMES.get(os_version)
    if os_id != "debian" or codename is None:
        return None
    stanzas = [
        stanza
        for path, text in sorted(sources.items())
        if path not in (SOURCE, CONTRIB)
        for stanza in (_stanzas(text) if path.endswith(".sources") else _lines_as_stanzas(text))
        if _is_debians(stanza, codename)
    ]
    if not stanzas or any(_has(stanza, "contrib") for stanza in stanzas):
        return None
    texts = dict.fromkeys(_with_contrib(stanza) for stanza in stanzas)
    return _HEADER + "\n".join(texts)


def _stanzas(text: str) -> Iterator[str]:
    for stanza in re.split(r"\n(?:[ \t]*\n)+", text):
        lines = [line for line in stanza.splitlines() if _is_active(line)]
        if lines and not _is_off(stanza):
            yield "\n".join(lines) + "\n"


# Options of one-line sources that deb822 names otherwise (sources.list(5)).
_NAMES = {"arch": "Architectures", "lang": "Languages", "target": "Targets"}


def _lines_as_stanzas(text: str) -> Iterator[str]:
    for match in map(_ONE_LINE.match, text.splitlines()):
        if match is None:
            continue
        words = str(match["rest"]).partition("#")[0].split()
        fields = {"Types": match["type"], "URIs": words[0], "Suites": "".join(words[1:2])}
        fields["Components"] = " ".join(words[2:])
        for option in (match["options"] or "").split():
            name, _, value = option.partition("=")
            fields[_NAMES.get(name, name.title())] = value.replace(",", " ")
        yield "".join(f"{name}: {value}\n" for name, value in fields.items())


def _is_debians(stanza: str, codename: str) -> bool:
    """Whether a source is the distribution's own, not a third party's with the same words."""
    key = _field(stanza, "Signed-By").strip()
    suites = _field(stanza, "Suites").split()
    return (
        "deb" in _field(stanza, "Types").split()
        and _has(stanza, "main")
        and (not key or "debian-archive" in key)
        and any(re.fullmatch(rf"{codename}(-updates|-security)?/?", suite) for suite in suites)
    )


def _has(stanza: str, component: str) -> bool:
    return component in _field(stanza, "Components").split()


def _with_contrib(stanza: str) -> str:
    return _with_field(_with_field(stanza, "Components", "contrib"), "Types", "deb")
