"""What a box serves, what it is made of, and how two boxes differ."""

from __future__ import annotations

import grp
import json
import os
import platform
import pwd
import sys
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aibox.box import contents, probe
from aibox.box.job import JobError
from aibox.box.prove import counters
from aibox.decide import manifest, standing
from aibox.decide.manifest import Entry, Readings, Venv
from aibox.decide.refusal import Refusal

DEPLOYED = Path(manifest.DEPLOYED)
TIME = "%Y-%m-%d %H:%M:%S UTC"

Deployed = dict[str, Any]


def status(*, as_manifest: bool, full: bool) -> int:
    """Print what the box serves, or what it is made of. 0; 1 refused, or nothing serves."""
    deployed = probe.record_in(DEPLOYED)
    refusal = refusal_of(os.geteuid(), deployed)
    if refusal is not None or deployed is None:
        print(refusal, file=sys.stderr)
        return 1
    try:
        return print_manifest(deployed, full=full) if as_manifest else print_rows(deployed)
    except OSError as error:
        remedy = "mend this on the box, then ask again"
        print(Refusal(str(error), "a file that can be read", remedy), file=sys.stderr)
        return 1


def refusal_of(uid: int, deployed: Deployed | None) -> Refusal | None:
    if uid != 0:
        return Refusal("another user than root", "root", "put sudo before it")
    remedy = "deploy to this box; the record is the deploy's last step"
    if deployed is None:
        return Refusal(f"no record of a deploy in {DEPLOYED}", "a deployed box", remedy)
    if deployed.get("format") != manifest.FORMAT:
        found = f"a record of format {deployed.get('format')} in {DEPLOYED}"
        return Refusal(found, f"format {manifest.FORMAT}, which this aibox writes", remedy)
    return None


# --- for a person ------------------------------------------------------------------------------


def print_rows(deployed: Deployed) -> int:
    server = deployed["server"]
    asked = {
        "unit": server["unit"],
        "port": server["port"],
        "proof": server["proof"],
        "release": deployed["release"]["folder"],
        "weights": deployed["weights"]["folder"],
    }
    found = probe.server(asked)
    serving = found["process"] is not None and found["health"] == 200
    since = moment(found["process"]["started"]) if serving else None
    for label, text in standing.rows(
        deployed,
        standing.driver(probe.loaded_module()),
        since,
        counters_of(server),
        found["proof"],
        proven(found["proof"], server),
    ):
        print(f"{label:<9} {text}")
    return 0 if serving else 1


def counters_of(server: Mapping[str, Any]) -> Any:
    try:
        return counters(dict(server))
    except JobError:
        return None


def proven(proof: object, server: Mapping[str, Any]) -> str | None:
    return moment(Path(server["proof"]).stat().st_mtime) if proof else None


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


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
    units = {name: probe.unit_properties(name) for name in deployed["units"]}
    installed = packages()
    return Readings(
        deployed=deployed,
        venvs={
            "aibox": venv(aibox / deployed["aibox"]["identity"]),
            "release": venv(Path(deployed["release"]["folder"])),
        },
        weights=weights(Path(deployed["weights"]["folder"]), full=full),
        files={path: contents.one(Path(path)) for path in files},
        links={str(current): str(current.readlink()) if current.is_symlink() else None},
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
            "distribution": probe.os_release()["pretty_name"],
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
    record = probe.record_in(folder / manifest.WEIGHTS_RECORD) or {}

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
    rows = (probe.text_of(["dpkg-query", "-W", "-f", form]) or "").splitlines()
    cells = (row.split("\t") for row in rows)
    return {
        name: (version, want == "hold")
        for name, version, want, state in cells
        if state == "installed"
    }


def driver() -> dict[str, str | None]:
    """The NVIDIA driver in its three places: loaded, built for this kernel, and its library."""
    built = probe.module(platform.release())
    library = probe.library_file(probe.text_of(["ldconfig", "-p"]) or "")
    return {
        "loaded": standing.driver(probe.loaded_module()),
        "module": f"{built['version']}, {built['license']}" if built else None,
        "library": probe.library_version(library),
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
    remedy = "make it anew: sudo aibox status --manifest > FILE"
    try:
        return manifest.parse(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(str(Refusal(f"{path}: {error}", expected, remedy))) from None
