"""What a single value of a setting may be. Each check says in words what it wants."""

import ipaddress
import math
import re
from typing import Annotated
from urllib.parse import urlsplit

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version
from pydantic import AfterValidator, BeforeValidator

from aibox.card import MODEL_NAME
from aibox.decide import driver
from aibox.decide.weights import inside


def matches(pattern: str, expected: str) -> AfterValidator:
    compiled = re.compile(pattern, re.ASCII)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"expected {expected}")
        return text

    return AfterValidator(check)


# ProtectHome, PrivateTmp and a reboot take these away.
HIDDEN_FOLDERS = ("/home/", "/root/", "/run/", "/tmp/", "/var/tmp/")  # noqa: S108  names, not uses


def _folder_on_box(text: str) -> str:
    if not re.fullmatch(r"(?:/[A-Za-z0-9._+@][A-Za-z0-9._+@-]*)+", text, re.ASCII):
        raise ValueError("expected an absolute path of letters, digits and . _ + @ - only")
    if {".", ".."} & set(text.split("/")) or len(text) > 100:
        raise ValueError("expected an absolute path without '..', at most 100 characters")
    if text.startswith(HIDDEN_FOLDERS):
        raise ValueError(
            "expected a folder that the server's unit can see: not below /home, /root,"
            " /run, /tmp or /var/tmp"
        )
    return text


def _source_folder(text: str) -> str:
    if not re.fullmatch(r"(?:/[A-Za-z0-9._+@-]+)+", text, re.ASCII) or len(text) > 500:
        raise ValueError("expected an absolute path of letters, digits and . _ + @ - only")
    if {".", ".."} & set(text.split("/")):
        raise ValueError("expected an absolute path without '..'")
    return text


def _megabits(value: float) -> float:
    if not 0.1 <= value <= 1_000_000:
        raise ValueError("expected megabits a second from 0.1 to 1000000, or None for no limit")
    return value


def _folder_on_control(text: str) -> str:
    if not text.isprintable() or not text or text.startswith("-") or len(text) > 1000:
        raise ValueError("expected a path, not beginning with '-'")
    if ".." in text.split("/"):
        raise ValueError("expected a path without '..'")
    return text


def _url(text: str) -> str:
    wrong = ValueError("expected an http or https URL without a login, '?' and '#'")
    if not re.fullmatch(r"[!-~]+", text):
        raise wrong
    try:
        parts = urlsplit(text)
        named = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise wrong from None
    if not named or "@" in parts.netloc or "?" in text or "#" in text:
        raise wrong
    return text


def _user(text: str) -> str:
    if text == "root":
        raise ValueError("the server must not run as root; expected a user of its own")
    if not re.fullmatch(r"[a-z_][a-z0-9_-]{0,30}", text, re.ASCII):
        raise ValueError("expected a user's name: a-z, 0-9, _ and -, at most 31 characters")
    return text


def _unit(text: str) -> str:
    if text.endswith(".service"):
        raise ValueError("expected the unit's name without .service")
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", text, re.ASCII):
        raise ValueError("expected a unit's name: letters, digits and _ . -")
    if text.startswith("aibox-") or text in ("vllm-stream", "litellm"):
        raise ValueError(
            "expected another name: aibox-…, vllm-stream and litellm are units of ours"
        )
    return text


def _vllm_version(text: str) -> str:
    if not re.fullmatch(r"[0-9][0-9A-Za-z.+]*", text, re.ASCII) or len(text) > 60:
        raise ValueError('expected a version as text, such as "0.31.0"')
    try:
        Version(text)
    except InvalidVersion:
        raise ValueError('expected a version as text, such as "0.31.0"') from None
    return text


def _driver_version(text: str) -> str:
    try:
        driver.version_tuple(text)
    except ValueError:
        raise ValueError('expected a driver version as text, such as "580.178.04"') from None
    return text


def _environment(variables: dict[str, str]) -> dict[str, str]:
    for name, value in variables.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name, re.ASCII):
            raise ValueError(f"{name!r} is not a name for an environment variable")
        if re.search(r"(TOKEN|API_KEY|SECRET|PASSWORD)$", name.upper()):
            raise ValueError(f"{name} looks like a secret, and everyone on the box can read a unit")
        if not value.isprintable():
            raise ValueError(f"{name}: expected text in one line without control characters")
    return variables


def _decimal_gb(value: float) -> float:
    if not (math.isfinite(value) and 0 <= value <= 1_000_000):
        raise ValueError("expected decimal GB from 0 to 1000000")
    return value


def _relative(path: str) -> str:
    if not inside(path):
        raise ValueError("expected a path relative to the release, without '..'")
    return path


def _address(text: str) -> str:
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ValueError('expected an IPv4 address of the box, "0.0.0.0" for all of them') from None


def _host_name(text: str) -> str:
    """Also an IPv6 address, without brackets."""
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        pass
    if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?", text, re.ASCII):
        raise ValueError('expected a host name or an IP address, such as "ai-box" or "192.168.1.7"')
    return text


def _network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError:
        raise ValueError(
            'expected an address or a network, such as "192.168.1.7" or "192.168.1.0/24"'
        ) from None


def _accepted(text: str) -> str:
    if not text.strip() or not text.isprintable() or len(text) > 1000:
        raise ValueError("expected one line of text, as a drift check shows it")
    return text


def _specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("expected versions such as '==0.31.0' or '>=0.31,<0.32'") from None
    if not text.strip():
        raise ValueError("expected versions such as '==0.31.0': a patch is for some only")
    return text


def _gpu_uuid(text: str) -> str:
    if not re.fullmatch(r"GPU-[0-9a-fA-F-]{8,40}", text, re.ASCII):
        raise ValueError("expected GPU- and hex digits, see nvidia-smi -L")
    return text[:4] + text[4:].lower()  # as NVML writes it: vLLM asks NVML for what the unit says


def _gpu_uuids(value: object) -> object:
    """One card is named by a text alone."""
    return (_gpu_uuid(value),) if isinstance(value, str) else _list_is_tuple(value)


def _each_once(values: tuple[str, ...]) -> tuple[str, ...]:
    if len({value.lower() for value in values}) < len(values):
        raise ValueError("expected each once")
    return values


def _list_is_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def _not_empty(values: tuple[str, ...]) -> tuple[str, ...]:
    if not values:
        raise ValueError("expected at least one")
    return values


Address = Annotated[str, AfterValidator(_address)]
HostName = Annotated[str, AfterValidator(_host_name)]
Network = Annotated[str, AfterValidator(_network)]
AcceptedText = Annotated[str, AfterValidator(_accepted)]
BoxFolder = Annotated[str, AfterValidator(_folder_on_box)]
SourceFolder = Annotated[str, AfterValidator(_source_folder)]
Megabits = Annotated[float, AfterValidator(_megabits)]
ControlFolder = Annotated[str, AfterValidator(_folder_on_control)]
Url = Annotated[str, AfterValidator(_url)]
DecimalGB = Annotated[float, AfterValidator(_decimal_gb)]
Package = Annotated[str, matches(r"[a-z0-9][a-z0-9+.-]+", "a package's name: a-z, 0-9, + . -")]
ModelName = Annotated[str, matches(MODEL_NAME.pattern, "the name of a model card")]
Environment = Annotated[dict[str, str], AfterValidator(_environment)]
VllmVersion = Annotated[str, AfterValidator(_vllm_version)]
DriverVersion = Annotated[str, AfterValidator(_driver_version)]
UnitName = Annotated[str, AfterValidator(_unit)]
UserName = Annotated[str, AfterValidator(_user)]
GpuUuid = Annotated[str, AfterValidator(_gpu_uuid)]
FINGERPRINT = "a key's fingerprint, 40 hex digits without blanks, as text"
PCI_ID = 'a PCI id in lower case, such as "10de:2bb1" (see `lspci -n -d 10de:`)'
KeyFingerprint = Annotated[str, matches(r"[0-9A-Fa-f]{40}", FINGERPRINT)]
PciId = Annotated[str, matches(r"10de:[0-9a-f]{4}", PCI_ID)]
Sha256 = Annotated[str, matches(r"[0-9a-f]{64}", "64 hex digits")]
PathInRelease = Annotated[str, AfterValidator(_relative)]
Specifier = Annotated[str, AfterValidator(_specifier)]
ListAsTuple = BeforeValidator(_list_is_tuple)
OneUuidOrSeveral = BeforeValidator(_gpu_uuids)
EachOnce = AfterValidator(_each_once)
NotEmpty = AfterValidator(_not_empty)
