"""What a box serves, what it is made of, and how two boxes differ."""

from __future__ import annotations

import grp
import json
import os
import platform
import pwd
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from aibox.box import contents, found, good_units, lent, surroundings
from aibox.box.probe.commands import text_of
from aibox.box.probe.driver import built_module, library_file, library_version, loaded_module
from aibox.box.probe.files import SERVER_STATE, changed_at, record_in
from aibox.box.probe.processes import unit_of
from aibox.box.probe.replies import health, status_of
from aibox.box.probe.server import last_good
from aibox.box.probe.server import server as look_at_server
from aibox.box.probe.system import os_release
from aibox.box.probe.units import unit_properties
from aibox.box.prove import exposition
from aibox.box.service import Service
from aibox.decide import acceptance, manifest, standing
from aibox.decide.history import Passed
from aibox.decide.manifest import AIBOX, Entry, Readings, Venv
from aibox.decide.refusal import Refusal
from aibox.decide.spread import chosen, pinned_by
from aibox.decide.vram import Card

DEPLOYED = Path(manifest.DEPLOYED)

Deployed = dict[str, Any]


def status(*, as_manifest: bool, full: bool, history: bool, as_json: bool) -> int:
    """Print what the box serves, has served, or is made of. 0; 1 refused, or nothing serves."""
    deployed = record_in(DEPLOYED)
    refusal = refusal_of(os.geteuid(), deployed, history=history)
    if refusal is not None:
        print(refusal, file=sys.stderr)
        return 1
    try:
        if history:
            return print_history(as_json=as_json)
        assert deployed is not None  # refused above
        if as_manifest:
            return print_manifest(deployed, full=full)
        return print_standing(deployed, as_json=as_json)
    except OSError as error:
        remedy = "mend this on the box, then ask again"
        print(Refusal(str(error), "a file that can be read", remedy), file=sys.stderr)
        return 1


def refusal_of(uid: int, deployed: Deployed | None, *, history: bool = False) -> Refusal | None:
    """history: only that is asked for, which is there before any deploy has ended."""
    if uid != 0:
        return Refusal("another user than root", "root", "put sudo before it")
    if history:
        return None
    remedy = "deploy to this box; the record is the deploy's last step"
    if deployed is None:
        return Refusal(f"no record of a deploy in {DEPLOYED}", "a deployed box", remedy)
    if deployed.get("format") != manifest.FORMAT:
        found = f"a record of format {deployed.get('format')} in {DEPLOYED}"
        return Refusal(found, f"format {manifest.FORMAT}, which this aibox writes", remedy)
    return None


# --- for a person ------------------------------------------------------------------------------


def print_standing(deployed: Deployed, *, as_json: bool) -> int:
    facts = looked(deployed)
    if as_json:
        print(json.dumps(standing.as_json(facts), sort_keys=True))
    else:
        for label, text in standing.rows(facts):
            print(f"{label:<9} {text}")
    return 0 if facts.serves else 1


def looked(deployed: Deployed) -> standing.Facts:
    """Everything that `aibox status` tells, read now."""
    server = deployed["server"]
    asked = {
        "unit": server["unit"],
        "port": server["port"],
        "proof": server["proof"],
        "release": deployed["release"]["folder"],
        "weights": deployed["weights"]["folder"],
    }
    found = look_at_server(asked)
    serving = found["process"] is not None and found["health"] == 200
    text = exposition(server["port"]) if serving else ""
    pace = acceptance.mean_of(text, "vllm:request_time_per_output_token_seconds")
    card = memory(server["unit"], pinned_by(server))
    gate = next(iter(good_units.passed(server["unit"])), None)
    proof = found["proof"]
    if proof and gate and proof.get("release", gate.release_id) != gate.release_id:
        proof = None  # of another server: one that was found here proves nothing
    return standing.Facts(
        deployed=deployed,
        gate=gate,
        state=found["unit"].get("ActiveState", "inactive"),
        since=found["process"]["started"] if serving else None,
        driver=standing.driver(loaded_module()),
        counters=counters_in(text),
        requests=pace and pace[0],
        seconds_per_token=pace and pace[1],
        card_bytes=card and card[0],
        used_bytes=card and card[1],
        own_bytes=card and card[2],
        cards=len(pinned_by(server)) or 1,
        proof=proof,
        proven=changed_at(Path(server["proof"])) if proof else None,
        failed=max(found["failed"].values(), key=lambda one: one["when"], default=None),
        doors={
            name: status_of(one["url"] + one["ready"])
            for name, one in deployed.get("doors", {}).items()
        },
        gated=found["file"] is None or found["file"]["sha256"] == found["good"],
        measured=lent.is_at_work(),
        lent=lent.is_lent(),
    )


def counters_in(text: str) -> acceptance.Counters | None:
    try:
        return acceptance.parse_metrics(text) if text else None
    except ValueError:
        return None


def memory(unit: str, pinned: tuple[str, ...]) -> tuple[int, int, int] | None:
    """(all, used, used by the unit's own processes) of the bytes of all cards that serve; None: a
    card does not tell, or it is not known which one serves."""
    cards: list[Card] = chosen(pinned, {one.uuid: one for one in surroundings.cards_now()[0]})
    if len(cards) != (len(pinned) or 1):
        return None
    total = used = own = 0
    for card in cards:
        if card.memory_bytes is None or card.free_bytes is None:
            return None
        total, used = total + card.memory_bytes, used + card.memory_bytes - card.free_bytes
        ours = (one for one in card.processes if unit_of(one.pid) == unit)
        own += sum(one.used_bytes or 0 for one in ours)
    return total, used, own


def print_history(*, as_json: bool) -> int:
    """What has passed its gate here, the newest first. 1 where nothing has."""
    passed, there = good_units.passed(unit_now()), good_units.still_there()
    if as_json:
        print(json.dumps(history_of(passed, there)))
        return 0
    for line in standing.history_rows(passed, there, good_units.found_units(unit_now())):
        print(line)
    if not passed:
        print("nothing has passed its gate on this box yet", file=sys.stderr)
    return 0 if passed else 1


def own_unit() -> Passed | None:
    """A person's own unit as a deploy met it last; None without one that could be tried."""
    return next(iter(good_units.found_units(unit_now())), None)


def unit_now() -> str | None:
    """The unit of the newest candidate: a box can have served by units of two names."""
    spec = record_in(SERVER_STATE / "spec.json") or {}
    return spec.get("unit")


def history_of(passed: list[Passed], there: set[str]) -> dict[str, Any]:
    """For a rollback and a benchmark. serves: whether the installed unit is the last good one, and
    answers; port: its own. benchmark: whether one is at work, or has left something behind."""
    spec = record_in(SERVER_STATE / "spec.json") or {}
    service, own = Service(str(spec.get("unit", ""))), own_unit()
    path = found.standing(service.name) if spec else None
    text = found.text_in(path) if path else None
    name = None if text is None else good_units.sum_of(text)
    unit = unit_properties(service.name) if path else {}
    pid, good = int(unit.get("MainPID") or 0), last_good("sha256")
    kept = good_units.kept(name) if name else None
    port = int((kept or spec).get("port") or 0)
    fragment = unit.get("FragmentPath", "")
    from_there = bool(fragment) and not fragment.startswith("/run/")  # where a candidate stands
    return {
        "history": [asdict(entry) for entry in passed],
        "there": sorted(there),
        "good": good,
        "installed": name,
        "found": asdict(own) if own else None,
        "port": port or None,
        "kept": [asdict(one) for one in good_units.found_units(unit_now())],
        "serves": bool(pid and from_there and name == good and health(port) == 200),
        "benchmark": lent.is_known(),
    }


# --- the manifest ------------------------------------------------------------------------------


def print_manifest(deployed: Deployed, *, full: bool) -> int:
    os.nice(10)  # the server goes first
    built = manifest.build(readings(deployed, full=full))
    print(json.dumps(built, indent=1, sort_keys=True))
    return 0


def readings(deployed: Deployed, *, full: bool) -> Readings:
    """Read everything the deploy laid down. full: hash the weights anew. Raises OSError."""
    aibox = Path(deployed["aibox"]["folder"])
    current = aibox / "current"
    files = [str(DEPLOYED), *deployed["files"]]
    doors = deployed.get("doors", {})
    links = [current, *(Path(one["root"], "current") for one in doors.values())]
    units = {name: unit_properties(name) for name in deployed["units"]}
    installed = packages()
    return Readings(
        deployed=deployed,
        venvs={
            "aibox": venv(aibox / deployed["aibox"]["identity"]),
            "release": venv(Path(deployed["release"]["folder"])),
            **{name: venv(Path(one["folder"])) for name, one in doors.items()},
        },
        weights=weights(Path(deployed["weights"]["folder"]), full=full),
        files={path: contents.one(Path(path)) for path in files},
        links={str(one): str(one.readlink()) if one.is_symlink() else None for one in links},
        units=units,
        drop_ins={name: drop_ins(unit) for name, unit in units.items()},
        users={name: user(name) for name in deployed["users"]},
        groups={name: members(name) for name in deployed["groups"]},
        kernel_settings={name: kernel_setting(name) for name in deployed["kernel_settings"]},
        python=platform.python_version(),
        packages={name: version for name, (version, _) in installed.items()},
        held=tuple(name for name, (_, held) in installed.items() if held),
        driver=driver(),
        recorded={
            "kernel": platform.release(),
            "distribution": os_release()["pretty_name"],
        },
    )


def venv(folder: Path) -> Venv | None:
    found = contents.entries(folder, manifest.left_out_of_venv)
    if found is None:
        return None
    config = folder / manifest.VENV_CONFIG
    return Venv(tuple(found), config.read_text() if config.exists() else "")


def weights(folder: Path, *, full: bool) -> tuple[Entry, ...] | None:
    """The weights, with the sums of their last verification where a file is as it was then."""
    record = record_in(folder / manifest.WEIGHTS_RECORD) or {}

    def known(path: str, status: os.stat_result) -> str | None:
        file = record.get("files", {}).get(path)
        stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
        return file["sha256"] if file and file["stamp"] == stamp and not full else None

    found = contents.entries(folder, manifest.left_out_of_weights, known)
    return None if found is None else tuple(without_owners(folder, entry) for entry in found)


def without_owners(folder: Path, entry: Entry) -> Entry:
    """A file that is hard-linked with a person's own counts as ours: its owner is the person's."""
    if entry.kind == "file" and (folder / entry.path).lstat().st_nlink > 1:
        return replace(entry, user="root", group="root", mode="644")
    return entry


def drop_ins(unit: Mapping[str, str]) -> tuple[Entry, ...]:
    paths = (Path(path) for path in unit.get("DropInPaths", "").split())
    found = ((path, contents.one(path)) for path in paths)
    return tuple(replace(entry, path=str(path)) for path, entry in found if entry)


def user(name: str) -> tuple[str, str] | None:
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return found.pw_dir, found.pw_shell


def members(name: str) -> tuple[str, ...] | None:
    """Everybody in a group, by name or because it is their own."""
    try:
        group = grp.getgrnam(name)
    except KeyError:
        return None
    own = {one.pw_name for one in pwd.getpwall() if one.pw_gid == group.gr_gid}
    return tuple(sorted(own | set(group.gr_mem)))


def kernel_setting(name: str) -> str | None:
    file = Path("/proc/sys", *name.split("."))
    return file.read_text().strip() if file.exists() else None


def packages() -> dict[str, tuple[str, bool]]:
    """{name: (version, whether it is held)} of the distribution's packages that are installed."""
    form = "${Package}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"
    rows = (text_of(["dpkg-query", "-W", "-f", form]) or "").splitlines()
    cells = (row.split("\t") for row in rows)
    return {
        name: (version, want == "hold")
        for name, version, want, state in cells
        if state == "installed"
    }


def driver() -> dict[str, str | None]:
    """The NVIDIA driver in its three places: loaded, built for this kernel, and its library."""
    built = built_module(platform.release())
    library = library_file(text_of(["ldconfig", "-p"]) or "")
    return {
        "loaded": standing.driver(loaded_module()),
        "module": f"{built['version']}, {built['license']}" if built else None,
        "library": library_version(library),
    }


# --- comparison --------------------------------------------------------------------------------


def compare(first: Path, second: Path) -> int:
    """Print how two manifests differ: 0 what was promised is the same, 1 unreadable, 2 not."""
    try:
        a, b = (loaded(path) for path in (first, second))
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    found = manifest.compare(a, b)
    print(f"A is {first}, B is {second}")
    for difference in found:
        print(difference)
    same = manifest.are_the_same(found)
    promised = sum(one.tier in manifest.PROMISED for one in found)
    print("the same" if same else f"{promised} differences", end="")
    print(f"; {len(found) - promised} in what is only recorded")
    return 0 if same else 2


def loaded(path: Path) -> manifest.Manifest:
    """Raises ValueError, in words."""
    expected = "the output of `aibox status --manifest`"
    remedy = f"make it anew: sudo {AIBOX} status --manifest > FILE"
    try:
        return manifest.parse(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(str(Refusal(f"{path}: {error}", expected, remedy))) from None
