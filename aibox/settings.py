"""Every setting, typed and checked, and what follows from them: card, weights, flags, lock.

Control only. All faults of all hosts come in one answer, before any host is touched.
"""

import json
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import SpecifierSet
from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from aibox.card import (
    CardError,
    ModelCard,
    flag_faults,
    load_card,
    load_weights_lock,
)
from aibox.decide import driver, driver_sources
from aibox.decide.driver import DriverWanted
from aibox.decide.figures import GB, counted
from aibox.decide.fitting import Load, load_of
from aibox.decide.nearest import did_you_mean, nearest
from aibox.decide.patches import touched
from aibox.decide.preflight import Wanted
from aibox.decide.refusal import Refusal
from aibox.decide.spread import (
    BOXES,
    COUNTED,
    SHARED,
    Choice,
    Spread,
    pinned_by,
    size_of,
    spread_of,
    torn,
)
from aibox.decide.unit import FlagValue
from aibox.decide.weights import WeightsLock
from aibox.faults import faults_of
from aibox.kinds import (
    AcceptedText,
    Address,
    BoxFolder,
    ControlFolder,
    DecimalGB,
    DriverVersion,
    EachOnce,
    Environment,
    GpuUuid,
    HostName,
    KeyFingerprint,
    ListAsTuple,
    Megabits,
    ModelName,
    Network,
    NotEmpty,
    OneUuidOrSeveral,
    Package,
    PathInRelease,
    PciId,
    Sha256,
    SourceFolder,
    Specifier,
    UnitName,
    Url,
    UserName,
    VllmVersion,
)
from aibox.stream.mends import DEFAULTS

__all__ = [
    "ReleaseFile",
    "ReleaseLock",
    "ReleasePatch",
    "Settings",
    "SettingsError",
    "driver_wanted_from",
    "load_settings",
    "release_lock",
    "release_locks",
    "wanted_from",
]

SERVE_SOURCE = "the setting `serve`"
RENAMED = {"scrape_address": "box_address"}
EXPORTER_PORTS = ("node_exporter_port", "gpu_exporter_port")


class SettingsError(Exception):
    """Settings that cannot work.

    faults: each in one line, with the hosts it holds for. faults_of: the same by host. good: the
    settings of the hosts without a fault.
    """

    def __init__(
        self, faults_of: Mapping[str, list[str]], good: "Mapping[str, Settings] | None" = None
    ) -> None:
        self.faults_of = {host: list(faults) for host, faults in faults_of.items() if faults}
        self.good = dict(good or {})
        self.faults = _merged(self.faults_of)
        count = len(self.faults)
        head = f"{count} settings cannot work:" if count > 1 else "a setting cannot work:"
        super().__init__("\n".join([head, *(f"  - {fault}" for fault in self.faults)]))


def _merged(faults_of_hosts: Mapping[str, list[str]]) -> list[str]:
    hosts_of: dict[str, list[str]] = {}
    for host, faults in faults_of_hosts.items():
        for fault in faults:
            hosts_of.setdefault(fault, []).append(host)
    return [f"{', '.join(hosts)}: {fault}" for fault, hosts in hosts_of.items()]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class ReleaseFile(_Strict):
    """A file added to a release: fetched from url, checked by sha256, put at path below it."""

    url: Url = Field(description="an http or https URL, text")
    sha256: Sha256 = Field(description="64 hex digits, text")
    path: PathInRelease = Field(description="a path relative to the release, text")


class ReleasePatch(_Strict):
    """A unified diff applied to a release: file on control, pinned by sha256, made for vllm."""

    file: ControlFolder = Field(description="a path in this project, text")
    sha256: Sha256 = Field(description="64 hex digits, text")
    upstream: Url = Field(description="an http or https URL of the change upstream, text")
    vllm: Specifier = Field(description="versions of vLLM that it is for, such as '==0.31.0'")

    def fits(self, version: str) -> bool:
        """Whether it is for this vLLM. A local version, 0.31.0+own, counts as 0.31.0."""
        public = Version(Version(version).public)
        return SpecifierSet(self.vllm).contains(public, prereleases=True)


class Settings(_Strict):
    """What group_data says of one host. group_data/all.py documents each field.

    The descriptions say what is expected of a value; they end up in the words of a fault.
    """

    model: ModelName = Field(description="the name of a model card, text")
    serve: dict[str, Any] = Field(description="a mapping of flags over the card's")
    server_environment: Environment = Field(description="a mapping of variables to text")
    vllm_version: VllmVersion = Field(description='a version as text, such as "0.31.0"')
    driver_version: DriverVersion = Field(
        description='a driver version as text, such as "580.178.04"'
    )
    server_unit: UnitName = Field(description="a unit's name without .service, text")
    server_user: UserName = Field(description="a user's name, text")
    server_port: int = Field(ge=1, le=65535, description="a port, a whole number 1 to 65535")
    start_timeout_s: int = Field(
        ge=1, le=86400, description="seconds, a whole number from 1 to 86400"
    )
    retry_failed: bool = Field(description="True or False")
    releases_folder: BoxFolder = Field(description="an absolute path, text")
    models_folder: BoxFolder = Field(description="an absolute path, text")
    cache_folder: BoxFolder = Field(description="an absolute path, text")
    stream: bool | None = Field(description="True, False or None")
    stream_port: int = Field(ge=1, le=65535, description="a port, a whole number 1 to 65535")
    stream_mends: dict[str, Literal["on", "count", "off"]] = Field(
        description='a mapping of mends to "on", "count" or "off"'
    )
    gateway: bool | None = Field(description="True, False or None")
    gateway_port: int = Field(ge=1, le=65535, description="a port, a whole number 1 to 65535")
    gateway_upstream: Url | None = Field(description="an http or https URL, text, or None")
    doors_address: Address = Field(description="an IPv4 address, text")
    metrics_from: Annotated[tuple[Network, ...], ListAsTuple] = Field(
        description='a list of addresses or networks, such as ["192.168.1.0/24"]'
    )
    firewall: bool = Field(description="True or False")
    firewall_lan: Annotated[tuple[Network, ...], ListAsTuple] | None = Field(
        description='a list of networks, such as ["192.168.1.0/24"], or None'
    )
    monitoring: bool | None = Field(description="True, False or None")
    box_address: HostName | None = Field(description="a host name or an IP address, text, or None")
    node_exporter_port: int = Field(ge=1, le=65535, description="a port, a whole number 1 to 65535")
    gpu_exporter_port: int = Field(ge=1, le=65535, description="a port, a whole number 1 to 65535")
    grafana: bool = Field(description="True or False")
    grafana_address: Address = Field(description="an IPv4 address, text")
    grafana_port: int = Field(ge=1, le=65535, description="a port, a whole number 1 to 65535")
    grafana_repository: Url = Field(description="an http or https URL, text")
    grafana_key: KeyFingerprint = Field(
        description="a key's fingerprint, 40 hex digits without blanks, as text"
    )
    gpu_uuid: Annotated[tuple[GpuUuid, ...], OneUuidOrSeveral, NotEmpty, EachOnce] | None = Field(
        description="a card's UUID as `nvidia-smi -L` prints it, text, a list of several, or None"
    )
    gpu_pci_ids: Annotated[tuple[PciId, ...], ListAsTuple, NotEmpty] = Field(
        description='a list of at least one PCI id, such as ["10de:2bb1"]'
    )
    power_limit_w: int | None = Field(
        ge=1, le=2000, description="a whole number of watts, at most 2000, or None"
    )
    uvm_disable_hmm: bool = Field(description="True or False")
    reboot_timeout_s: int = Field(
        ge=1, le=86400, description="seconds, a whole number from 1 to 86400"
    )
    reboot_while_serving: bool = Field(description="True or False")
    nvidia_repository: Url = Field(description="an http or https URL, text")
    nvidia_key: KeyFingerprint = Field(
        description="a key's fingerprint, 40 hex digits without blanks, as text"
    )
    hub: Url = Field(description="an http or https URL, text")
    weights_from: SourceFolder | None = Field(
        description="an absolute path on the box, text, or None"
    )
    download_limit_mbps: Megabits | None = Field(
        description="megabits a second, a number above 0, or None"
    )
    release_disk_gb: DecimalGB = Field(description="decimal GB, a number from 0")
    release_fetch_gb: DecimalGB = Field(description="decimal GB, a number from 0")
    disk_reserve_gb: DecimalGB = Field(description="decimal GB, a number from 0")
    release_extra_packages: Annotated[tuple[Package, ...], ListAsTuple] = Field(
        description="a list of package names"
    )
    release_extra_files: Annotated[tuple[ReleaseFile, ...], ListAsTuple] = Field(
        description="a list of {url, sha256, path}"
    )
    release_patches: Annotated[tuple[ReleasePatch, ...], ListAsTuple] = Field(
        description="a list of {file, sha256, upstream, vllm}"
    )
    flashinfer_prebuild: bool = Field(description="True or False")
    release_find_links: Url | None = Field(description="an http or https URL, text, or None")
    cards_folder: ControlFolder = Field(description="a path, text")
    locks_folder: ControlFolder = Field(description="a path, text")
    verify_weights: Literal["stamps", "full"] = Field(description='"stamps" or "full"')
    accepted: Annotated[tuple[AcceptedText, ...], ListAsTuple] = Field(
        description="a list of texts as a drift check shows them"
    )
    pipelining: bool = Field(description="True or False")

    _project: Path = PrivateAttr()
    _card: ModelCard = PrivateAttr()
    _weights: WeightsLock | None = PrivateAttr(default=None)
    _flags: Mapping[str, FlagValue] = PrivateAttr(default_factory=dict)
    _sources: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def card(self) -> ModelCard:
        """The card of the model."""
        return self._card

    @property
    def is_pinned(self) -> bool:
        """Whether there is a lock of the model's files."""
        return self._weights is not None

    def pinned_at(self, lock: WeightsLock) -> "Settings":
        """The same settings with a lock that is not on the disk yet."""
        pinned = self.model_copy()
        pinned._weights = lock
        return pinned

    @property
    def weights(self) -> WeightsLock:
        """The lock of the model's files. LookupError where it was allowed to be missing and is."""
        if self._weights is None:
            raise LookupError(f"{self.model} has no weights lock")
        return self._weights

    @property
    def weights_folder(self) -> str:
        """Where the pinned commit lies on the box. LookupError without a weights lock."""
        return f"{self.models_folder}/{self.model}/{self.weights.commit}"

    @property
    def served_models(self) -> tuple[str, ...]:
        """All names that clients may ask for. LookupError where neither flag nor lock has one."""
        names = self.flags.get("served-model-name") or self.weights_folder
        return tuple(str(one) for one in (names if isinstance(names, list | tuple) else [names]))

    @property
    def flags(self) -> Mapping[str, FlagValue]:
        """The flags of `vllm serve`: the card's, with those of `serve` over them."""
        return self._flags

    def flag_source(self, name: str) -> str:
        """Where a flag's value comes from, or for one not set, the file that would set it."""
        return self._sources.get(name, self.card_file)

    @property
    def context(self) -> int:
        """Tokens that the server takes: its flag, else as many as the model has."""
        value = self.flags.get("max-model-len")
        return (None if value is None else _tokens(value)) or self.card.context

    @property
    def spread(self) -> Spread:
        """Over how many cards and boxes the flags spread the server."""
        return spread_of(self.flags)

    @property
    def cards_wanted(self) -> Choice:
        """The graphics cards that the server is to have."""
        return Choice(self.gpu_uuid or (), self.spread.cards, str(self.spread))

    @property
    def drafts(self) -> int:
        """Tokens that the MTP head drafts in one step; 0 without MTP."""
        config = _drafts(self.flags) or {}
        return int(config.get("num_speculative_tokens", 0))

    @property
    def patches(self) -> tuple[ReleasePatch, ...]:
        """Those of release_patches that are for the wanted vLLM, in the order they are given."""
        return tuple(one for one in self.release_patches if one.fits(self.vllm_version))

    @property
    def patches_left_out(self) -> tuple[ReleasePatch, ...]:
        """Those that are for other versions: an upgrade leaves them behind by itself."""
        return tuple(one for one in self.release_patches if not one.fits(self.vllm_version))

    def patch_text(self, patch: ReleasePatch) -> str:
        """The diff itself, whose sum was checked when the settings were loaded."""
        return (self._project / patch.file).read_bytes().decode()

    @property
    def card_file(self) -> str:
        """The card's file, as a person in the project's folder names it."""
        return f"{self.cards_folder}/{self.model}.yml"

    @property
    def cards(self) -> Path:
        """The folder with cards and weights locks on control."""
        return self._project / self.cards_folder

    @property
    def locks(self) -> Path:
        """The folder with requirement locks on control."""
        return self._project / self.locks_folder


# --- Loading: data of each host -> settings, or every fault. ---


def load_settings(
    data_by_host: Mapping[str, Mapping[str, object]],
    project: Path,
    foreign_names: Collection[str],
    *,
    need_weights: bool = True,
    serve_source: str = SERVE_SOURCE,
) -> dict[str, Settings]:
    """The settings of every host.

    project: the folder that relative ones are taken from. foreign_names: names in the data that
    are not ours. need_weights=False: a missing weights lock is no fault (it is about to be made).
    Raises SettingsError with every fault of every host.
    """
    good: dict[str, Settings] = {}
    faults_of_hosts: dict[str, list[str]] = {}
    for host, data in data_by_host.items():
        loading = _Loading(project, need_weights, serve_source)
        settings = loading.settings(data, foreign_names)
        faults_of_hosts[host] = loading.faults
        if settings is not None:
            good[host] = settings
    if any(faults_of_hosts.values()):
        raise SettingsError(faults_of_hosts, good)
    return good


class _Loading:
    """One host's settings in the making; gathers the faults."""

    def __init__(self, project: Path, need_weights: bool, serve_source: str) -> None:
        self.project = project
        self.need_weights = need_weights
        self.serve_source = serve_source
        self.faults: list[str] = []

    def settings(
        self, data: Mapping[str, object], foreign_names: Collection[str]
    ) -> Settings | None:
        values = self._known(data, foreign_names)
        settings, wrong = self._validated(values)
        settings._project = self.project
        self._serve(settings, wrong)
        for needed, check in _CHECKS:
            if not needed & wrong:
                self.faults += check(settings)
        return None if self.faults else settings

    def _known(
        self, data: Mapping[str, object], foreign_names: Collection[str]
    ) -> dict[str, object]:
        known = Settings.model_fields
        values = {str(name): value for name, value in data.items() if str(name) in known}
        for name in data:
            text = str(name)
            foreign = text in foreign_names or text.startswith(("_", "ssh_"))
            if text not in known and not foreign:
                new = f"; it is called {RENAMED[text]} now" if text in RENAMED else None
                self.faults.append(f"{text}: unknown setting{new or did_you_mean(text, known)}")
        return values

    def _validated(self, values: dict[str, object]) -> tuple[Settings, set[str]]:
        """The settings, and the names of those that are wrong and must not be looked at."""
        try:
            return Settings.model_validate(values), set()
        except ValidationError as error:
            for key, fault in faults_of(error, Settings):
                self.faults.append(f"{key}: {fault}")
            wrong = {str(one["loc"][0]) for one in error.errors()}
        right: dict[str, Any] = {name: values[name] for name in values if name not in wrong}
        return Settings.model_construct(**right), wrong

    def _serve(self, settings: Settings, wrong: set[str]) -> None:
        """Card, weights and flags; what cannot be had makes the checks on it impossible."""
        if {"model", "cards_folder"} & wrong:
            wrong |= {"card", "flags"}
            return
        try:
            settings._card = load_card(settings.cards, settings.model)
        except CardError as error:
            self.faults += [self._without_project(fault) for fault in error.faults]
            wrong |= {"card", "flags"}
            return
        try:
            settings._weights = load_weights_lock(settings.cards, settings.model)
        except CardError as error:
            self.faults += [self._without_project(fault) for fault in error.faults]
        else:
            self.faults += _weights_faults(settings, self.need_weights)
        if "serve" in wrong:
            wrong.add("flags")
            return
        faults = _override_faults(settings)
        self.faults += faults
        settings._flags, settings._sources = _merged_flags(settings, self.serve_source)
        wrong |= {"flags"} if faults else set()

    def _without_project(self, fault: str) -> str:
        return fault.replace(f"{self.project}/", "")


def _weights_faults(settings: Settings, needed: bool) -> list[str]:
    weights, name = settings._weights, settings.model
    if weights is None:
        return [
            f"model: {name} has no weights lock ({settings.cards_folder}/{name}.lock.json); "
            f"make it with `make lock-model MODEL={name}`"
        ] * needed
    if weights.repository != settings.card.repository:
        return [
            f"model: the weights lock of {name} is of {weights.repository}, the card names "
            f"{settings.card.repository}; make the lock anew with `make lock-model MODEL={name}`"
        ]
    return []


def _override_faults(settings: Settings) -> list[str]:
    faults = [f"serve.{flag}: {fault}" for flag, fault in flag_faults(settings.serve)]
    for flag, value in settings.serve.items():
        if value is None and flag not in settings.card.serve:
            faults.append(
                f"serve.{flag}: None takes a flag of the card away, but {settings.card_file} has "
                f"no such flag{did_you_mean(flag, settings.card.serve)}"
            )
    return faults


def _merged_flags(
    settings: Settings, serve_source: str
) -> tuple[Mapping[str, FlagValue], Mapping[str, str]]:
    """Flags in the card's order, new ones behind, and the source of each.

    A card whose prefix_cache_with_mtp is off loses the prefix cache while MTP is on, unless
    `serve` asks for the cache by name: the person's own word stands over the card's.
    """
    flags = {**settings.card.serve, **settings.serve}
    sources = dict.fromkeys(settings.card.serve, settings.card_file)
    sources |= dict.fromkeys(settings.serve, serve_source)
    flags = {name: value for name, value in flags.items() if value is not None}
    cache = "enable-prefix-caching"
    off = settings.card.prefix_cache_with_mtp == "off" and _drafts(flags) is not None
    if off and cache not in settings.serve:
        flags[cache] = False
        sources[cache] = f"prefix_cache_with_mtp in {settings.card_file}"
    return flags, sources


# --- Combinations that cannot work. Each check sees values that are right by themselves. ---


def _drafts(flags: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The speculative configuration when it asks for the MTP head."""
    config = flags.get("speculative-config")
    if isinstance(config, str):
        try:
            config = json.loads(config)
        except (ValueError, RecursionError):
            return None
    if not isinstance(config, Mapping):
        return None
    method = config.get("method")
    is_mtp = isinstance(method, str) and (method == "mtp" or method.endswith("_mtp"))
    return config if is_mtp else None


def _whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_drafts(settings: Settings) -> list[str]:
    config = _drafts(settings.flags)
    if config is None:
        return []
    source = settings.flag_source("speculative-config")
    if settings.card.head is None:
        return [
            f"speculative-config ({source}) asks for MTP, but {settings.card_file} says that "
            f"{settings.model} has no head; take the flag away, or choose a model with a head"
        ]
    tokens = config.get("num_speculative_tokens")
    if not _whole(tokens) or tokens < 1:  # type: ignore[operator]
        return [
            f"speculative-config ({source}): num_speculative_tokens is {tokens!r:.40}; expected "
            "a whole number from 1"
        ]
    return []


def _check_names(settings: Settings) -> list[str]:
    """What clients ask for, at LiteLLM too."""
    flag = "served-model-name"
    value = settings.flags.get(flag, "model")
    names = value if isinstance(value, list | tuple) else [value]
    fine = all(isinstance(one, str) and one.strip() and "*" not in one for one in names)
    if fine and len({*names}) == len(names):
        return []
    return [
        f"{flag} ({settings.flag_source(flag)}) is {value!r:.60}; expected a name or a list of "
        "names, each once, as text without *"
    ]


def _check_utilization(settings: Settings) -> list[str]:
    faults = []
    for name in ("gpu-memory-utilization", "device-memory-utilization"):
        value = settings.flags.get(name, 0.5)
        try:
            fine = not isinstance(value, bool) and 0 < float(value) <= 1  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            fine = False
        if not fine:
            faults.append(
                f"{name} ({settings.flag_source(name)}) is {value!r:.40}; expected a share of the "
                "card's memory, above 0 and at most 1"
            )
    return faults


def _check_spread(settings: Settings) -> list[str]:
    """Sizes that are numbers, whole cards on each box, and as many cards named as are needed."""
    faults = _wrong_sizes(settings)
    if faults:
        return faults
    wrong = torn(settings.flags)
    if wrong:
        name, words = wrong
        return [f"{name} ({settings.flag_source(name)}) is {words}"]
    spread, named = settings.spread, pinned_by({"gpu_uuid": settings.gpu_uuid})
    if spread.parts * spread.context * spread.replicas % spread.boxes:
        source = settings.flag_source(BOXES)
        return [f"{BOXES} ({source}): {spread} give no whole number of cards to each box"]
    if named and len(named) != spread.cards:
        asked = f"{spread} take {spread.cards}" if str(spread) else "the server takes 1"
        return [
            f"gpu_uuid: found {counted(len(named), 'card')}, and {asked}; name as many cards as "
            "the flags ask for, or set tensor-parallel-size with `serve`"
        ]
    return []


def _wrong_sizes(settings: Settings) -> list[str]:
    faults = []
    for name in (*COUNTED, SHARED):
        try:
            size_of(settings.flags.get(name, 1))
        except ValueError as error:
            source = settings.flag_source(name)
            faults.append(f"{name} ({source}) is {error}; expected a whole number from 1")
    return faults


def _check_visible(settings: Settings) -> list[str]:
    """Over the cards that the unit pins a variable would win, and nobody would have judged it."""
    name = "CUDA_VISIBLE_DEVICES"
    if name not in settings.server_environment or _wrong_sizes(settings):
        return []
    if settings.spread.cards == 1:
        return []
    return [
        f"server_environment: {name} chooses the cards; name them in gpu_uuid, which are judged"
    ]


# vLLM reads 256k as 256,000 and 256K as 262,144.
_SUFFIX = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}


def _tokens(value: object) -> int | None:
    """A length as vLLM reads it; None for one that vLLM chooses. ValueError for anything else."""
    if value in ("auto", -1):
        return None
    match = re.fullmatch(r"(\d{1,12})(?:(\.\d{1,6})?([kKmMgG]))?", str(value), re.ASCII)
    if not isinstance(value, int | str) or isinstance(value, bool) or match is None:
        raise ValueError
    tokens = int(float(match[1] + (match[2] or "")) * _SUFFIX.get(match[3], 1))
    if tokens < 1:
        raise ValueError
    return tokens


def _check_context(settings: Settings) -> list[str]:
    value = settings.flags.get("max-model-len")
    if value is None:
        return []
    named = f"max-model-len ({settings.flag_source('max-model-len')}) is {value!r:.40}"
    limit = settings.card.context
    try:
        tokens = _tokens(value)
    except ValueError:
        return [f"{named}; expected tokens, a whole number up to {limit}"]
    if tokens is not None and tokens > limit:
        return [f"{named}; {settings.card_file} gives {settings.model} at most {limit} tokens"]
    return []


def _check_ports(settings: Settings) -> list[str]:
    """A port serves one of us; what is turned off has none."""
    ports = {"server_port": settings.server_port}
    ports |= {"stream_port": settings.stream_port} if settings.stream is not False else {}
    ports |= {"gateway_port": settings.gateway_port} if settings.gateway is not False else {}
    if settings.monitoring is not False:
        ports |= {name: getattr(settings, name) for name in EXPORTER_PORTS}
    taken: dict[int, str] = {}
    faults = []
    for name, port in ports.items():
        first = taken.setdefault(port, name)
        if first != name:
            faults.append(f"{name}: {port} is {first} too; expected a port of its own")
    return faults


def _check_mends(settings: Settings) -> list[str]:
    return [
        f"stream_mends.{name}: no mend has this name{did_you_mean(name, DEFAULTS)}"
        for name in settings.stream_mends
        if name not in DEFAULTS
    ]


def _check_needs(settings: Settings) -> list[str]:
    floor, version = settings.card.needs.vllm, settings.vllm_version
    # A local version such as 0.31.0+patched counts as 0.31.0.
    if SpecifierSet(floor).contains(Version(Version(version).public), prereleases=True):
        return []
    return [
        f"vllm_version: {settings.model} needs vLLM {floor} ({settings.card_file}), found "
        f"{version}; set vllm_version to one that fits, or choose another model"
    ]


def _check_locks(settings: Settings) -> list[str]:
    if _lock_paths(settings):
        return []
    pattern = re.compile(r"vllm-(.+)-py\d+\.txt")
    found = (pattern.fullmatch(path.name) for path in _files(settings.locks))
    versions = sorted({match[1] for match in found if match})
    close = nearest(settings.vllm_version, versions)
    hint = f'set vllm_version = "{close}"' if close else "make a lock for it"
    return [
        f"vllm_version: no lock for vLLM {settings.vllm_version} in {settings.locks_folder}; "
        f"there are locks for {', '.join(versions) or 'none'}; {hint}"
    ]


def _check_patches(settings: Settings) -> list[str]:
    faults = []
    for patch in settings.patches:
        try:
            content = (settings._project / patch.file).read_bytes()
            touched(content.decode())
        except OSError as error:
            faults.append(f"release_patches: {patch.file} can't be read ({error.strerror})")
            continue
        except ValueError as error:
            faults.append(f"release_patches: {patch.file}: {error}")
            continue
        found = sha256(content).hexdigest()
        if found != patch.sha256:
            faults.append(
                f"release_patches: {patch.file} has sha256 {found}, expected {patch.sha256}; "
                "read what changed in it, then write the new sum, or restore the file"
            )
    return faults


def _check_driver(settings: Settings) -> list[str]:
    floors = {
        lock.cuda: driver.floor_for_cuda(lock.cuda) for lock in release_locks(settings).values()
    }
    return [
        f"driver_version: {settings.driver_version} is older than {floor}, which CUDA {cuda} of "
        f"vLLM {settings.vllm_version} needs; set driver_version to {floor} or newer"
        for cuda, floor in floors.items()
        if driver.too_old(settings.driver_version, floor)
    ]


_CHECKS: tuple[tuple[frozenset[str], Callable[[Settings], list[str]]], ...] = (
    (frozenset({"card", "flags"}), _check_drafts),
    (frozenset({"card", "flags"}), _check_names),
    (frozenset({"card", "flags"}), _check_utilization),
    (frozenset({"card", "flags"}), _check_context),
    (frozenset({"card", "flags", "gpu_uuid"}), _check_spread),
    (frozenset({"card", "flags", "server_environment"}), _check_visible),
    (
        frozenset(
            {
                *("server_port", "stream", "stream_port", "gateway", "gateway_port"),
                *("monitoring", *EXPORTER_PORTS),
            }
        ),
        _check_ports,
    ),
    (frozenset({"stream_mends"}), _check_mends),
    (frozenset({"card", "vllm_version"}), _check_needs),
    (frozenset({"vllm_version", "locks_folder"}), _check_locks),
    (frozenset({"vllm_version", "release_patches"}), _check_patches),
    (
        frozenset(
            {
                "vllm_version",
                "locks_folder",
                "driver_version",
                "release_extra_files",
                "release_patches",
            }
        ),
        _check_driver,
    ),
)


# --- The release's lock. ---


@dataclass(frozen=True)
class ReleaseLock:
    """One hash-locked list of packages for one Python.

    sha256 is of the text alone. lock8 names the release: the first 8 hex digits of a sum over the
    text, the extra files (by sum and path) and the patches (by sum, in their order). cuda: such
    as "13.0"; None for a lock without CUDA.
    """

    path: Path
    text: str
    sha256: str
    lock8: str
    release_id: str
    cuda: str | None


def release_lock(settings: Settings, python: str) -> ReleaseLock | Refusal:
    """The lock for a box's Python, such as "3.11"."""
    locks = release_locks(settings)
    if python in locks:
        return locks[python]
    return Refusal(
        f"Python {python} on the box",
        f"one with a lock for vLLM {settings.vllm_version} in {settings.locks_folder}: "
        + (", ".join(locks) or "there is none"),
        f"make vllm-{settings.vllm_version}-py{python.replace('.', '')}.txt there, or use a "
        "distribution whose python3 has a lock",
    )


def release_locks(settings: Settings) -> dict[str, ReleaseLock]:
    """Every lock for the wanted vLLM, by Python, oldest first. An unreadable one is left out."""
    locks: dict[str, ReleaseLock] = {}
    for python, path in _lock_paths(settings).items():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        lock8 = _lock8(text, settings.release_extra_files, settings.patches)
        locks[python] = ReleaseLock(
            path=path,
            text=text,
            sha256=sha256(text.encode()).hexdigest(),
            lock8=lock8,
            release_id=f"{settings.vllm_version}-{lock8}",
            cuda=_cuda(text),
        )
    return locks


def _lock_paths(settings: Settings) -> dict[str, Path]:
    pattern = re.compile(rf"vllm-{re.escape(settings.vllm_version)}-py(\d)(\d+)\.txt")
    paths = ((pattern.fullmatch(path.name), path) for path in _files(settings.locks))
    found = {(int(match[1]), int(match[2])): path for match, path in paths if match}
    return {f"{major}.{minor}": path for (major, minor), path in sorted(found.items())}


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except (OSError, ValueError):
        return []


def _lock8(
    text: str, extra_files: Collection[ReleaseFile], patches: Collection[ReleasePatch]
) -> str:
    parts = [text, *sorted(f"\nfile {file.path} {file.sha256}" for file in extra_files)]
    parts += [f"\npatch {patch.sha256}" for patch in patches]
    return sha256("".join(parts).encode()).hexdigest()[:8]


def _cuda(lock_text: str) -> str | None:
    """The CUDA minor of a lock. The runtime decides; the toolkit meta package only without it."""
    for package in (r"nvidia-cuda-runtime(?:-cu\d+)?", "cuda-toolkit"):
        match = re.search(rf"^{package}(?:\[[^\]]*\])?==(\d+)\.(\d+)", lock_text, re.MULTILINE)
        if match:
            return f"{match[1]}.{match[2]}"
    return None


def wanted_from(settings: Settings, lock: ReleaseLock | None, clock: float | None = None) -> Wanted:
    """What preflight asks of a box.

    lock: None when none fits the box's Python. clock: epoch seconds when the report arrived,
    now by default. Weights that are not pinned yet take no room.
    """
    folder = f"{settings.releases_folder}/{lock.release_id}" if lock else None
    return Wanted(
        locked_pythons=tuple(release_locks(settings)),
        vllm_version=settings.vllm_version,
        server_port=settings.server_port,
        server_unit=settings.server_unit,
        server_user=settings.server_user,
        releases_folder=settings.releases_folder,
        release_folder=folder,
        release_bytes=round(settings.release_disk_gb * GB),
        cache_folder=settings.cache_folder,
        models_folder=settings.models_folder,
        weights_folder=settings.weights_folder if settings.is_pinned else None,
        weights_bytes=settings.weights.total_bytes if settings.is_pinned else 0,
        reserve_bytes=round(settings.disk_reserve_gb * GB),
        clock=time.time() if clock is None else clock,
        load=load_on_cards(settings),
    )


def load_on_cards(settings: Settings) -> Load | None:
    """What of the pinned weights comes to lie on each card; None where nothing is pinned."""
    if not settings.is_pinned:
        return None
    # vLLM halves these when it loads them
    known = settings.card.dtype != "float32"
    return load_of(settings.flags, settings.weights.loaded_bytes if known else 0)


def driver_wanted_from(
    settings: Settings, lock: ReleaseLock | None, os_id: str, os_version: str
) -> DriverWanted:
    """What the driver stage asks of a box with an operating system such as ("debian", "13").

    lock: None when none fits the box's Python; the CUDA of another one counts then.
    """
    cudas = [each.cuda for each in release_locks(settings).values()]
    return DriverWanted(
        version=settings.driver_version,
        os_id=os_id,
        os_version=os_version,
        url=driver_sources.repository_url(settings.nvidia_repository, os_id, os_version),
        fingerprint=settings.nvidia_key.upper(),
        cuda=lock.cuda if lock else next(iter(cudas), None),
        pci_ids=settings.gpu_pci_ids,
        gpu_uuids=settings.cards_wanted.uuids,
        cards=settings.cards_wanted.count,
        cards_for=settings.cards_wanted.why,
        power_limit_w=settings.power_limit_w,
        uvm_disable_hmm=settings.uvm_disable_hmm,
        reboot_while_serving=settings.reboot_while_serving,
        server_unit=settings.server_unit,
    )
