"""What a teardown takes off a box, and what stays: from the box's records and what lies there.

The same decision makes the plan that a person reads and the work on the box. It looks at what is
there now, so that a run that was killed is made good by the next one.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import Any

from aibox.decide import apt, doors, driver_sources, monitoring, watcher
from aibox.decide.driver import upstream
from aibox.decide.figures import size
from aibox.decide.manifest import DEPLOYED, STATE_FOLDER
from aibox.decide.refusal import Refusal

BROUGHT = f"{STATE_FOLDER}/brought.json"
DUE = "initramfs-due"  # beside the records: boot files are gone, and the initramfs holds them yet
KEPT = "/root/aibox-kept-units"  # a person's older units, which are theirs from then on
CARRIED = ".teardown"  # below aibox's folder: what a teardown itself runs from
POWER_FILE = f"/etc/systemd/system/{driver_sources.POWER_UNIT}"
APT_FILES = (
    driver_sources.KEY,
    driver_sources.SOURCE,
    driver_sources.CONTRIB,
    driver_sources.PREFERENCES,
    driver_sources.UNATTENDED,
)
SERVICES = (*doors.DOORS, monitoring.GPU_EXPORTER)
DOOR_FILES = tuple(
    path
    for one in SERVICES
    for path in (*one.files, *one.keys, f"{one.root}/current", f"{one.root}/.current.new")
)
WATCH_FILES = (*monitoring.FILES, *watcher.FILES)
# Folders of ours in those of packages.
WATCH_FOLDERS = tuple(
    path.rpartition("/")[0]
    for path in WATCH_FILES
    if path.endswith(".d/aibox.conf") or path == watcher.DASHBOARD
)
# A unit of a package that runs with a drop-in of ours, and a timer of ours.
_RUN_BY_US = re.compile(
    r"/etc/systemd/system/(?:([\w-]+\.service)\.d/aibox\.conf|(aibox-\w+\.timer))"
)
OWN_UNITS = (
    *(driver_sources.POWER_UNIT, monitoring.FACTS_TIMER),
    *(one.unit for one in SERVICES),
)
BOOT_FILES = (driver_sources.MODPROBE, driver_sources.MODULES_LOAD)
WHAT_IT_DOES = {
    driver_sources.KEY: "the key of NVIDIA's repository",
    driver_sources.SOURCE: "NVIDIA's repository",
    driver_sources.CONTRIB: "what the driver needs of Debian's contrib",
    driver_sources.PREFERENCES: "apt keeps the driver at its version",
    driver_sources.UNATTENDED: "no unattended upgrade changes the driver",
    driver_sources.MODPROBE: "the driver's module options, nouveau off",
    driver_sources.MODULES_LOAD: "modules that are loaded at boot",
}
COMMAND = "pyinfra inventory tasks/teardown.py"
PACKAGE_JOBS = ("aibox-driver.service", "aibox-cuda.service", "aibox-modules.service")

# Where a file of a deploy may lie, and folders that no setting can mean.
_FILE_ROOTS = ("/etc/", "/usr/local/", "/usr/share/keyrings/", f"{STATE_FOLDER}/")
_SYSTEM = re.compile(
    r"/(bin|boot|dev|etc|home|lib\w*|proc|root|run|sbin|sys|tmp|usr|var)"
    r"|/(bin|boot|dev|etc|lib\w*|proc|run|sbin|sys)/.*"
    r"|/usr/(?!local/.).*|/usr/local/(bin|etc|lib|sbin|share)|/var/(backups|cache|lib|log|mail|opt"
    r"|spool|tmp|www)|/var/lib/(apt|dpkg|systemd)(/.*)?"
)
_FOLDER = re.compile(r"(/[\w.+@-]+)+", re.ASCII)
_UNIT = re.compile(r"[\w][\w@.:-]*\.service", re.ASCII)
_ENABLED = re.compile(r"[\w][\w@.:-]*\.(service|timer)", re.ASCII)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9+.-]+(:[a-z0-9]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")
# A driver, as against its toolkit.
_DRIVER = re.compile(r"(lib)?nvidia[-.\w]*|libcuda1")


@dataclass(frozen=True)
class Wish:
    """What goes beside what always goes."""

    weights: bool = False
    driver: bool = False


@dataclass(frozen=True)
class Plan:
    """What is to be done, in the order of its fields, and the rows (label, text) that say it.

    record: what stays of the record of what was brought; empty where nothing of ours stays.
    """

    wish: Wish
    jobs: tuple[str, ...] = ()
    quiet: tuple[str, ...] = ()  # units of packages that ran as we had told, and timers of ours
    stop: tuple[str, ...] = ()  # units of ours
    traces: tuple[str, ...] = ()  # files of a trial
    back: tuple[str, ...] = ()  # units of a person's own that come back
    start: tuple[str, ...] = ()  # those of them that ran
    older: tuple[tuple[str, str], ...] = ()  # (record, name in KEPT) of units that stand nowhere
    power: bool = False
    disable: tuple[str, ...] = ()  # units of others that we enabled
    unhold: tuple[str, ...] = ()
    purge: tuple[str, ...] = ()
    boot_files: tuple[str, ...] = ()
    initramfs: bool = False  # it holds a copy of boot files that go, or went in an earlier run
    files: tuple[str, ...] = ()
    sources: tuple[str, ...] = ()  # a person's own, as they were
    releases: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()  # whole trees
    users: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    auto: tuple[str, ...] = ()
    aibox: tuple[str, ...] = ()  # names in its folder
    models: tuple[str, ...] = ()  # folders of models, of which empty ones go
    empty: tuple[str, ...] = ()  # folders of ours that go when nothing is left in them
    record: Mapping[str, Any] = field(default_factory=dict)
    records_go: bool = False
    removes: tuple[tuple[str, str], ...] = ()
    comes_back: tuple[tuple[str, str], ...] = ()
    stays: tuple[tuple[str, str], ...] = ()
    kept_weights: str = ""  # what could go and stays, in words
    kept_driver: str = ""
    kept_files: tuple[str, ...] = ()  # files of ours that stay with either
    taken_by: str = ""  # the command that takes all of it
    kept_unrecorded: str = ""  # what stays as nobody knows whose it is

    @property
    def is_done(self) -> bool:
        """Whether nothing is left to do."""
        return not (self.removes or self.comes_back or self.records_go)


# --- where to look -----------------------------------------------------------------------------


def question(
    records: Mapping[str, Any], places: Mapping[str, str]
) -> dict[str, Any] | list[Refusal]:
    """What `ours.look` is asked. records: `ours.records`'s answer; places: the folders and the unit
    of today's settings, and "aibox". Refuses records that name what can be no place of ours."""
    faults = [*damaged(records), *odd_records(records), *odd_places(places, "the settings")]
    if faults:
        return faults
    deployed, brought = records["deployed"] or {}, records["brought"] or {}
    releases = _values("releases_folder", brought, places)
    models = _values("models_folder", brought, places)
    if deployed:
        releases.append(_parent(deployed["release"]["folder"]))
        models.append(_parent(_parent(deployed["weights"]["folder"])))
    units = units_of(records, places)
    caches = [*_values("cache_folder", brought, places), *own_folders(units)]
    homes = [one.home for one in SERVICES]
    made = [path for path, was_there in brought.get("folders", {}).items() if not was_there]
    known = [*APT_FILES, *BOOT_FILES, POWER_FILE, apt.CONF, *DOOR_FILES, *WATCH_FILES]
    releases += [one.root for one in SERVICES if one.root in made]
    return {
        "units": units,
        "others": sorted(set(brought.get("enabled", [])) - {*units, *OWN_UNITS}),
        "files": sorted({*known, *deployed.get("files", {})}),
        "releases": list(dict.fromkeys(releases)),
        "models": list(dict.fromkeys(models)),
        "trees": trees(made, [*caches, *homes], units, [*releases, *models]),
        "sources": brought.get("sources", {}),
        "folders": sorted(made, key=lambda path: (-path.count("/"), path)),
        "users": brought.get("users", []),
        "groups": brought.get("groups", []),
        "packages": [
            *brought.get("packages", []),
            *brought.get("driver_packages", []),
            *brought.get("held", []),
        ],
        "there_before": [
            path for path in dict.fromkeys(caches) if brought.get("folders", {}).get(path)
        ],
        **_of_nobody_knows_whom(records, caches),
        "aibox": places["aibox"],
        "carried": CARRIED,
    }


def is_unrecorded(records: Mapping[str, Any]) -> bool:
    """Whether deploys were here before it was written down what they brought."""
    brought = records["brought"] or {}
    return bool(brought.get("late") or (not brought and records["state"] is not None))


def _of_nobody_knows_whom(
    records: Mapping[str, Any], caches: Iterable[str]
) -> dict[str, list[str]]:
    """Users and folders of a box without such a record, that a deploy may have made or not."""
    if not is_unrecorded(records):
        return {"left_users": [], "left_folders": []}
    brought, deployed = records["brought"] or {}, records["deployed"] or {}
    users = {*brought.get("left_users", []), *deployed.get("users", {})}
    return {
        "left_users": sorted(users - set(brought.get("users", []))),
        "left_folders": [path for path in caches if path not in brought.get("folders", {})],
    }


def units_of(records: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
    """Every name that the server's unit has had, as far as anything tells."""
    deployed = records["deployed"] or {}
    names = [f"{name}.service" for name in _values("server_unit", records["brought"] or {}, places)]
    names += [deployed["server"]["unit"]] if deployed else []
    names += [one["unit"] for one in records["found"]]
    return sorted(set(names))


def _values(name: str, brought: Mapping[str, Any], places: Mapping[str, str]) -> list[str]:
    told = brought.get("places", {}).get(name, [])
    return [*told, *([places[name]] if name in places else [])]


def _parent(folder: str) -> str:
    return str(PurePosixPath(folder).parent)


# --- records that can't be ours ----------------------------------------------------------------


def damaged(records: Mapping[str, Any]) -> list[Refusal]:
    read = [(DEPLOYED, records["deployed"]), (BROUGHT, records["brought"])]
    read += [(one["file"], one) for one in records["found"]]
    return [
        Refusal(
            f"{path} can't be read ({one['damaged']})",
            "the record that a deploy wrote",
            f"move it aside on the box (`mv {path} /root/`) and run again: the teardown then goes "
            "by what it finds in the usual places",
        )
        for path, one in read
        if one and "damaged" in one
    ]


def odd_records(records: Mapping[str, Any]) -> list[Refusal]:
    """What a teardown would act on, and no deploy can have written."""
    if damaged(records):
        return []
    brought, found = records["brought"] or {}, records["found"]
    try:
        odd = [*_odd_in_deployed(records["deployed"] or {}), *_odd_in_brought(brought)]
        odd += [(one["file"], one["unit"]) for one in found if not _UNIT.fullmatch(one["unit"])]
        odd += [(one["file"], one["odd"]) for one in found if one["odd"] is not None]
    except (KeyError, TypeError, AttributeError) as error:
        odd = [(DEPLOYED, f"no {error}")]
    return [_odd(where, what) for where, what in odd]


def odd_places(places: Mapping[str, str], where: str) -> list[Refusal]:
    return [
        _odd(where, f"{name} {path}")
        for name, path in places.items()
        if name != "server_unit" and is_odd(path)
    ]


def _odd(where: str, what: str) -> Refusal:
    return Refusal(
        f"{where} names {what!r}",
        "a folder, file or name that a deploy can have made, or has found as a unit's own",
        "correct it, or move that record aside on the box, and run again; nothing was changed",
    )


def is_odd(path: object) -> bool:
    """Whether a path can be no folder of ours: the system's own, or not a plain absolute path."""
    if not isinstance(path, str) or not _FOLDER.fullmatch(path):
        return True
    return bool({".", ".."} & set(path.split("/")) or _SYSTEM.fullmatch(path))


def _odd_in_deployed(deployed: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    if not deployed:
        return
    release, weights = deployed["release"]["folder"], deployed["weights"]["folder"]
    for folder, root in ((release, _parent(release)), (weights, _parent(_parent(weights)))):
        if is_odd(folder) or is_odd(root):
            yield DEPLOYED, folder
    if not _UNIT.fullmatch(deployed["server"]["unit"]):
        yield DEPLOYED, deployed["server"]["unit"]
    for user in deployed.get("users", {}):
        if not _USER.fullmatch(user):
            yield DEPLOYED, user
    for path in deployed["files"]:
        inside = path.startswith(_FILE_ROOTS) and _FOLDER.fullmatch(path)
        if not inside or {".", ".."} & set(path.split("/")):
            yield DEPLOYED, path


def _odd_in_brought(brought: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    kinds = {"users": _USER, "groups": _USER, "packages": _PACKAGE, "driver_packages": _PACKAGE}
    kinds |= {"held": _PACKAGE, "enabled": _ENABLED, "left_users": _USER}
    for key, pattern in kinds.items():
        yield from ((BROUGHT, one) for one in brought.get(key, []) if not pattern.fullmatch(one))
    for name, values in brought.get("places", {}).items():
        yield from ((BROUGHT, one) for one in values if name != "server_unit" and is_odd(one))
    for path in brought.get("folders", {}):
        if not _FOLDER.fullmatch(path) or {".", ".."} & set(path.split("/")):
            yield BROUGHT, path
    for path in brought.get("sources", {}):
        if not path.startswith("/etc/apt/") or ".." in path:
            yield BROUGHT, path


# --- the plan ----------------------------------------------------------------------------------


def plan(records: Mapping[str, Any], found: Mapping[str, Any], wish: Wish) -> Plan:
    """records and found: what `ours.records` and `ours.look` answer, the latter to `question`."""
    brought = records["brought"] or {}
    his: dict[str, Mapping[str, Any]] = {}
    for one in records["found"]:  # the newest of each counts, and stands last
        his.pop(one["unit"], None)
        his[one["unit"]] = one
    unrecorded = is_unrecorded(records)
    met = tuple(records["found"])
    whole = Teardown(records["deployed"] or {}, brought, his, met, found, wish, unrecorded)
    return whole.plan(records["state"])


@dataclass(frozen=True)
class Teardown:
    """Everything the decision goes by; each property is one part of it.

    unrecorded: nobody knows what was there before, see is_unrecorded. Then the driver and all that
    belongs to it stay together: half of it would leave the card to nouveau, or to another version.
    """

    deployed: Mapping[str, Any]
    brought: Mapping[str, Any]
    his: Mapping[str, Mapping[str, Any]]  # by name, a person's units as they were last met
    met: tuple[Mapping[str, Any], ...]  # every record of them, the oldest first
    found: Mapping[str, Any]
    wish: Wish
    unrecorded: bool = False

    @property
    def stop(self) -> tuple[str, ...]:
        return tuple(
            name for name, unit in self.found["units"].items() if unit["ours"] or unit["tried"]
        )

    @property
    def start(self) -> tuple[str, ...]:
        """A person's own unit that ran when it was found, and is to run again: one card, one
        server. None where one of theirs serves."""
        if any(self.serves_already(name) for name in self.his):
            return ()
        return tuple(
            name for name, one in self.his.items() if one["active"] and self.is_back(name)
        )[-1:]

    @property
    def quiet(self) -> tuple[str, ...]:
        """Without our drop-in a package's unit would be open to everybody: it is stopped."""
        found = (_RUN_BY_US.fullmatch(path) for path in self.found["files"])
        return tuple(one[1] or one[2] for one in found if one)

    def is_back(self, name: str) -> bool:
        """Whether a person's own unit is put back, or made to run again after a trial of ours."""
        unit = self.found["units"][name]
        return bool(unit["tried"] or unit["his"] != "changed")

    def serves_already(self, name: str) -> bool:
        """Whether a person's own unit is what runs, as after a rollback to it."""
        unit = self.found["units"][name]
        return bool(unit["his"] and not unit["tried"] and unit["state"] == "active")

    def stands_changed(self, name: str) -> bool:
        """Whether a person has changed their own unit since it was met: it stays as it stands."""
        return bool(self.found["units"][name]["his"] == "changed")

    @property
    def older(self) -> dict[str, Mapping[str, Any]]:
        """{name of a copy: record} of a person's units that would be lost with the records: each
        text that is not what stands in the end, once."""
        newest: dict[tuple[str, str], Mapping[str, Any]] = {}
        for one in self.met:
            unit = one["unit"]
            stands = self.found["units"][unit] if self.stands_changed(unit) else self.his[unit]
            if one["content"] not in (None, stands["content"]):
                newest[unit, one["content"]] = one
        return {copy_name(one): one for one in newest.values()}

    # --- packages -------------------------------------------------------------------------------

    def there(self, key: str) -> list[str]:
        """What of a list of the record is installed."""
        return [name for name in self.brought.get(key, []) if name in self.found["packages"]]

    @property
    def driver(self) -> list[str]:
        """Packages that came with driver or toolkit."""
        return self.there("driver_packages")

    @property
    def deployed_packages(self) -> list[str]:
        return list(self.deployed.get("packages", {}))

    @property
    def replaced(self) -> dict[str, str]:
        """What a person had in the place of our driver: {name: version}."""
        if self.keeps_packages:
            return {}
        told = self.brought.get("replaced", {})
        return {name: one for name, one in told.items() if name not in self.brought_by_driver}

    @property
    def brought_by_driver(self) -> list[str]:
        return list(self.brought.get("driver_packages", []))

    @property
    def keeps_packages(self) -> bool:
        return self.unrecorded or (bool(self.driver) and not self.wish.driver)

    @property
    def keeps_driver(self) -> bool:
        brought = any(_DRIVER.fullmatch(name) for name in self.driver)
        return self.unrecorded or (self.keeps_packages and brought)

    @property
    def driver_files(self) -> list[str]:
        return [path for path in (*APT_FILES, *BOOT_FILES) if path in self.found["files"]]

    @property
    def files_that_stay(self) -> dict[str, str]:
        """{path: what it does} of the deploy's files that stay with driver, toolkit or weights."""
        kept: dict[str, str] = {}
        if self.keeps_packages and not self.unrecorded:
            going = {*self.files, *self.boot_files}
            kept = {path: WHAT_IT_DOES[path] for path in self.driver_files if path not in going}
            kept |= dict.fromkeys(self.found["sources"], "your own source, as the deploy left it")
        if self.record:
            kept[BROUGHT] = "what the next teardown goes by"
        return kept

    @property
    def taken_by(self) -> str:
        """The command that takes what stays on request."""
        words = ["--data remove_weights=true"] if self.kept_weights else []
        if self.keeps_packages and not self.unrecorded:
            words.append("--data remove_driver=true")
        return " ".join([COMMAND, *words]) if words else ""

    @property
    def unrecorded_driver(self) -> list[str]:
        """Its packages, as far as a record names them."""
        named = [*self.deployed_packages, *self.brought_by_driver]
        ours = (one for one in named if _DRIVER.fullmatch(one) or one.startswith("cuda-toolkit-"))
        return list(dict.fromkeys(ours))

    @property
    def unhold(self) -> tuple[str, ...]:
        if self.keeps_driver:
            return ()
        return tuple(one for one in self.there("held") if self.found["packages"][one]["held"])

    @property
    def disable(self) -> tuple[str, ...]:
        """Units of others that were not enabled before us."""
        if self.keeps_driver:
            return ()
        return tuple(self.found["enabled"])

    @property
    def auto(self) -> tuple[str, ...]:
        packages = self.found["packages"]
        return tuple(one for one in self.there("packages") if packages[one]["manual"])

    # --- files ----------------------------------------------------------------------------------

    @property
    def boot_files(self) -> tuple[str, ...]:
        kept = self.keeps_driver
        return () if kept else tuple(path for path in BOOT_FILES if path in self.found["files"])

    @property
    def files(self) -> tuple[str, ...]:
        known = (apt.CONF, *DOOR_FILES, *WATCH_FILES)
        known += () if self.keeps_packages else APT_FILES
        ours = [path for path in known if path in self.found["files"]]
        return (*ours, *(path for path in self.other_files if self.is_as_laid(path)))

    @property
    def other_files(self) -> list[str]:
        """Of the deploy's record, what no part of the teardown knows by itself."""
        units = {f"/etc/systemd/system/{name}" for name in self.found["units"]}
        known = {*APT_FILES, *BOOT_FILES, POWER_FILE, apt.CONF, *DOOR_FILES, *WATCH_FILES, *units}
        rest = self.deployed.get("files", {}).keys() - known
        return sorted(
            path
            for path in rest
            if path in self.found["files"] and not path.startswith(STATE_FOLDER)
        )

    def is_as_laid(self, path: str) -> bool:
        return bool(self.found["files"][path]["sha256"] == self.deployed["files"][path]["sha256"])

    @property
    def sources(self) -> tuple[str, ...]:
        """A person's own apt sources that we had cleaned, and nobody has changed since."""
        return () if self.keeps_packages else tuple(self.found["sources"])

    # --- folders --------------------------------------------------------------------------------

    @property
    def weights(self) -> list[Mapping[str, Any]]:
        """Those that go: all that was asked for, and what an earlier removal had begun."""
        return [
            one
            for one in self.found["weights"]
            if self.wish.weights or PurePosixPath(one["folder"]).name.startswith(".removed-")
        ]

    @property
    def kept_weights(self) -> list[Mapping[str, Any]]:
        return [one for one in self.found["weights"] if one not in self.weights]

    @property
    def folders(self) -> tuple[str, ...]:
        return (
            *(one["folder"] for one in self.weights),
            *self.found["trees"],
            *self.found["left_overs"],
        )

    # --- the record -----------------------------------------------------------------------------

    @property
    def record(self) -> dict[str, Any]:
        """What a later teardown must know of what stays."""
        keys = ["driver_packages", "replaced", "held", "enabled", "sources", "nouveau_was_on"]
        kept = {
            key: self.brought[key] for key in keys if self.keeps_packages and key in self.brought
        }
        if self.unrecorded:
            kept = self.unrecorded_rest(kept)
        if self.kept_weights:
            kept["places"] = {"models_folder": self.found["models"]}
            folders = self.brought.get("folders", {})
            above = {path for path in folders if any(_holds(path, m) for m in self.found["models"])}
            kept["folders"] = {path: folders[path] for path in sorted(above)}
        return kept

    def unrecorded_rest(self, kept: dict[str, Any]) -> dict[str, Any]:
        """What a later teardown must know where nobody knows what was there before."""
        users = self.found["left_users"]
        if not (self.driver_files or users or self.found["left_folders"]):
            return {}
        return {**kept, "late": True, **({"left_users": users} if users else {})}

    def plan(self, state: list[str] | None) -> Plan:
        """state: the names in the folder of the records; None where it is not there."""
        names = ["brought.json"] if self.record else None
        return Plan(
            wish=self.wish,
            jobs=tuple(self.found["jobs"]),
            quiet=self.quiet,
            stop=self.stop,
            traces=tuple(one for unit in self.found["units"].values() for one in unit["traces"]),
            back=tuple(self.his),
            start=self.start,
            older=tuple((one["file"], name) for name, one in self.older.items()),
            power=POWER_FILE in self.found["files"],
            disable=self.disable,
            unhold=self.unhold,
            purge=() if self.keeps_packages else tuple(self.driver),
            boot_files=self.boot_files,
            initramfs=bool(self.boot_files) or DUE in (state or ()),
            files=self.files,
            sources=self.sources,
            releases=tuple(self.found["releases"]),
            folders=self.folders,
            users=tuple(self.found["users"]),
            groups=tuple(self.found["groups"]),
            auto=self.auto,
            aibox=tuple(self.found["aibox"]),
            models=tuple(one for one in self.found["models"] if one in self.found["folders"]),
            empty=tuple(self.found["folders"]),
            record=self.record,
            records_go=state != names or (bool(names) and self.record != dict(self.brought)),
            removes=tuple(removed_rows(self)),
            comes_back=tuple(back_rows(self)),
            stays=tuple(stays_rows(self)),
            kept_weights="; ".join(weights_words(one) for one in self.kept_weights),
            kept_driver=driver_words(self) if self.keeps_packages and not self.unrecorded else "",
            kept_files=tuple(self.files_that_stay),
            taken_by=self.taken_by,
            kept_unrecorded=unrecorded_words(self) if self.unrecorded else "",
        )


def _holds(folder: str, path: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


def own_folders(units: Iterable[str]) -> list[str]:
    """The folders of the server itself, by the names that its unit had."""
    stems = [name.removesuffix(".service") for name in units]
    return [f"/var/{kind}/{stem}" for stem in stems for kind in ("lib", "cache")]


def trees(
    made: Iterable[str], cache: Iterable[str], units: Iterable[str], places: Iterable[str]
) -> list[str]:
    """Folders that go with all that is in them: caches and the server's own, which we have made.

    Never one that holds another place of ours, or a person's folder of the system. made: folders
    that were not there before us; cache, places: folders of settings.
    """
    return [
        path
        for path in dict.fromkeys([*cache, *own_folders(units)])
        if path in made
        and not is_odd(path)
        and path.count("/") > 1
        and not any(_holds(path, other) for other in places if other != path)
    ]


# --- in words ----------------------------------------------------------------------------------

Row = tuple[str, str]


def removed_rows(whole: Teardown) -> Iterable[Row]:
    """What goes, a row each: (label, text). None where nothing of ours is left."""
    yield from _server_rows(whole)
    if whole.driver and not whole.keeps_packages:
        label = "driver" if any(map(_DRIVER.fullmatch, whole.driver)) else "toolkit"
        yield label, f"{driver_words(whole)}, and its repository"
        if whole.brought.get("nouveau_was_on"):
            yield "driver", "nouveau takes the card at the next reboot; the teardown does none"
    for folder in dict.fromkeys(_parent(path) for path in whole.found["releases"]):
        paths = [PurePosixPath(path) for path in whole.found["releases"]]
        names = ", ".join(path.name for path in paths if str(path.parent) == folder)
        yield "release", f"{names} in {folder}"
    for one in whole.weights:
        yield "weights", weights_words(one)
    files = [*whole.boot_files, *whole.files, *([POWER_FILE] if has_power(whole) else [])]
    for path in files:
        yield "file", path
    for path in whole.sources:
        yield "file", f"{path} becomes what it was before the deploy"
    if whole.unhold:
        yield "holds", f"apt may change again: {', '.join(whole.unhold)}"
    for name in whole.disable:
        yield "unit", f"{name} no longer starts at boot, as before"
    for user in sorted({*whole.found["users"], *whole.found["groups"]}):
        yield "user", f"{user}, unless files of it lie elsewhere"
    for path in (*whole.found["trees"], *whole.found["left_overs"]):
        yield "folder", path
    if whole.found["aibox"]:
        yield "aibox", "its own venvs and records"


def _server_rows(whole: Teardown) -> Iterable[Row]:
    for job in whole.found["jobs"]:
        yield "job", f"{job} is waited for" if job in PACKAGE_JOBS else f"{job} is ended"
    for name in whole.stop:
        if name not in whole.his:
            yield "server", f"{name} is stopped and removed"
    for name in whole.quiet:
        yield "unit", f"{name} is stopped, and starts at no boot"


def back_rows(whole: Teardown) -> Iterable[Row]:
    """What a person had, and has again."""
    for name, one in whole.his.items():
        if whole.is_back(name) and not whole.serves_already(name):
            stood = "stands" if whole.stands_changed(name) else f"stood at {moment(one['when'])}"
            yield "server", f"your own {name}, as it {stood}, {_then(whole, name, one)}"


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M UTC")


def copy_name(record: Mapping[str, Any]) -> str:
    """How a copy of a person's unit is called: when it was met, and how its text's sum begins."""
    stem = record["unit"].removesuffix(".service")
    when = datetime.fromtimestamp(record["when"], UTC).strftime("%Y-%m-%d-%H%M%S")
    return f"{stem}-{when}-{record['sha256'][:8]}.service"


def _then(whole: Teardown, name: str, one: Mapping[str, Any]) -> str:
    if name in whole.start:
        return "and started"
    if not one["active"]:
        return "and left stopped, as it was then"
    return f"and left stopped, as another of yours serves (`systemctl start {name}`)"


def has_power(whole: Teardown) -> bool:
    return POWER_FILE in whole.found["files"]


def stays_rows(whole: Teardown) -> Iterable[Row]:
    """What is left on the box and could be taken for ours, and why."""
    for one in whole.kept_weights:
        yield "weights", f"{weights_words(one)} (--data remove_weights=true takes them too)"
    yield from unrecorded_rows(whole) if whole.unrecorded else _driver_stays(whole)
    for path, text in whole.files_that_stay.items():
        yield "file", f"{path}: {text}"
    for name, version in sorted(whole.replaced.items()):
        yield "package", f"{name} {version} was there before; it is not put back"
    if whole.auto:
        names = ", ".join(whole.auto)
        yield "packages", f"marked as not asked for, so that `apt autoremove` takes them: {names}"
    for path in whole.other_files:
        if not whole.is_as_laid(path):
            yield "file", f"{path} was changed since the deploy"
    for name, unit in whole.found["units"].items():
        if unit["file"] and not unit["ours"] and name not in whole.his:
            yield "unit", f"{name} was not written by a deploy"
        if name in whole.his and whole.serves_already(name):
            yield "server", f"{name} is your own and serves: it is left as it is"
        if name in whole.his and whole.stands_changed(name):
            yield "unit", f"{name} is your own, changed since it was found: it stays as it stands"
    for copy, one in whole.older.items():
        stood = f"your own {one['unit']} as it stood at {moment(one['when'])}"
        yield "server", f"{stood} goes to {KEPT}/{copy}"
    for path in sorted(whole.found["there_before"]):
        yield "folder", f"{path} was there before the deploy"


def _driver_stays(whole: Teardown) -> Iterable[Row]:
    if whole.keeps_packages:
        label = "driver" if whole.keeps_driver else "toolkit"
        yield label, f"{driver_words(whole)} (--data remove_driver=true takes it and its files too)"
    if whole.keeps_driver:
        for name in whole.found["enabled"]:
            yield "unit", f"{name} starts at boot, since the deploy"
        if held := [name for name in whole.there("held") if whole.found["packages"][name]["held"]]:
            yield "holds", f"apt does not change {', '.join(held)}"
    ours = any(_DRIVER.fullmatch(one) for one in whole.brought_by_driver)
    if not ours and any(_DRIVER.fullmatch(one) for one in whole.deployed_packages):
        kept = "; our pin stays with the toolkit" if whole.keeps_packages else " and pin"
        yield "driver", f"it was there before the deploy: it stays, without our holds{kept}"


def unrecorded_rows(whole: Teardown) -> Iterable[Row]:
    """What stays as a deploy may have found it, and how it is taken away by hand."""
    unknown = "nobody wrote down whether the first deploy found it there"
    if whole.driver_files:
        names, files = " ".join(whole.unrecorded_driver), " ".join(whole.driver_files)
        kept = "with its holds, pin, repository and module options"
        yield "driver", f"{unknown}: it stays, {kept}"
        if names:
            yield "driver", f"by hand: apt-mark unhold {names}; apt purge {names}"
        yield "driver", f"then its files: rm {files}; update-initramfs -u -k all"
    for user in whole.found["left_users"]:
        yield "user", f"{user}: {unknown} (by hand: userdel {user})"
    for path in whole.found["left_folders"]:
        yield "folder", f"{path}: {unknown} (by hand: rm -r {path})"


def unrecorded_words(whole: Teardown) -> str:
    parts = ["the driver and its files in /etc"] if whole.driver_files else []
    parts += [f"the user {name}" for name in whole.found["left_users"]]
    return ", ".join([*parts, *whole.found["left_folders"]])


def weights_words(one: Mapping[str, Any]) -> str:
    shared = one["bytes"] - one["own"]
    yours = ""
    if shared and not one["own"]:
        yours = ", all of it yours too under another name: taking it frees nothing"
    elif shared:
        yours = f", {size(shared)} of it yours too: taking it frees {size(one['own'])}"
    return f"{size(one['bytes'])} of {one['model']}, {one['folder']}{yours}"


def driver_words(whole: Teardown) -> str:
    """What came with driver and toolkit: its version, and how many packages that are."""
    count = f"{len(whole.driver)} package{'' if len(whole.driver) == 1 else 's'}"
    packages = whole.found["packages"]
    versions = [packages[one]["version"] for one in whole.driver if _DRIVER.fullmatch(one)]
    toolkit = [one for one in whole.driver if one.startswith("cuda-toolkit-")]
    named = [f"the driver {upstream(versions[0])}"] if versions else []
    named += ["the CUDA toolkit"] if toolkit else []
    what = " and ".join(named) or "what came with the driver"
    return f"{what} ({', '.join([*toolkit, count])})"


def families(packages: Iterable[str]) -> str:
    """What a list of packages is, in two words."""
    names = list(packages)
    found = ["the driver"] if any(map(_DRIVER.fullmatch, names)) else []
    found += ["the toolkit"] if any(one.startswith("cuda-toolkit-") for one in names) else []
    return " and ".join(found) or "what came with the driver"


def nothing(plan: Plan) -> list[str]:
    """What is said of a box that holds nothing more to be removed, line by line."""
    kept = [one for one in (plan.kept_weights, plan.kept_driver, plan.kept_unrecorded) if one]
    but = f" but what was kept: {'; '.join(kept)}" if kept else ""
    lines = [f"nothing of ours is on this box{but}"]
    if kept and plan.kept_files:
        lines.append(f"files of ours that stay with it: {', '.join(plan.kept_files)}")
    return [*lines, *([f"all of this goes with: {plan.taken_by}"] if plan.taken_by else [])]
