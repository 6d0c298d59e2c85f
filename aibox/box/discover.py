"""What runs and lies on a box that no deploy has seen: servers of vLLM, weights, listeners.

The standard library, the probe, and decisions that need no more: control sends their texts to a
box without aibox. It only reads. What can't be found out is null; secrets do not leave the box.
"""

import contextlib
import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict
from http.client import HTTPException
from itertools import pairwise
from pathlib import Path
from typing import Any

from aibox.box.probe import replies
from aibox.box.probe.caches import answering, weights_places
from aibox.box.probe.containers import starter_of, starts_container
from aibox.box.probe.drop_ins import surroundings
from aibox.box.probe.files import record_in
from aibox.box.probe.foreign import listeners
from aibox.box.probe.owners import user_name
from aibox.box.probe.processes import is_vllm, manager_of
from aibox.box.probe.unit_files import PLACES_OF_UNITS
from aibox.decide.acceptance import parse_metrics
from aibox.decide.head import Head, standing
from aibox.decide.launch import Launch, launched, of_unit
from aibox.decide.secrecy import without_secrets, words_without_secrets

ROOT = Path("/")  # tests put a made-up one in its place
UNITS = Path("/etc/systemd/system")
ANSWER_S = 3.0  # a server of this box that takes longer has no time for us
MOST_WEIGHTS = 12
MOST_BYTES = 4 << 20  # of an answer of the server
MULTIPLEXERS = ("tmux", "screen", "zellij")


def discovery(asked: dict[str, Any]) -> dict[str, Any]:
    """asked: {"repository", "unit" (with .service), "port", "head": the card's or null}."""
    found = servers(asked)
    folders = [one["folder"] for one in found if one["folder"]]
    return {
        "servers": [{key: one[key] for key in one if key != "folder"} for one in found],
        "weights": weights(asked, folders),
        "listeners": listeners(),
    }


# --- servers -------------------------------------------------------------------------------------


def servers(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Every vLLM that runs, and units that would start one and do not run."""
    table = processes()
    found = [running(pid, words, table) for pid, words in own_processes(table)]
    units = {one["unit"] for one in found if one["manager"] == "system"}
    units |= {one["starter"] for one in found}
    return found + [one for one in idle_units(asked["unit"]) if one["unit"] not in units]


Table = dict[int, tuple[int, list[str]]]  # pid: (parent's pid, words of the command line)


def processes() -> Table:
    found = {}
    for folder in (ROOT / "proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
            status = (folder / "stat").read_text(errors="replace")
        except OSError:  # it went away
            continue
        parent = int(status.rpartition(")")[2].split()[1])
        found[int(folder.name)] = parent, [word.decode(errors="replace") for word in words]
    return found


def own_processes(table: Table) -> list[tuple[int, list[str]]]:
    """The servers themselves: not what starts them (a shell, uv), not what they start."""
    serving = {pid: words for pid, (_, words) in table.items() if is_vllm(words)}
    return [
        (pid, words)
        for pid, words in sorted(serving.items())
        if not any(parent in serving for parent in ancestors(pid, table))
    ]


def ancestors(pid: int, table: Table) -> Iterator[int]:
    seen = set()
    while pid in table and pid not in seen:
        seen.add(pid)
        pid = table[pid][0]
        yield pid


def running(pid: int, words: list[str], table: Table) -> dict[str, Any]:
    start = launched(words) or Launch("", ())
    manager, unit = manager_of(read(ROOT / f"proc/{pid}/cgroup"))
    user = user_of(pid)
    port = published(start.port, table) if manager == "container" else start.port
    return {
        "unit": unit,
        **unit_files(manager, unit, user),
        "manager": manager,
        "starter": starter_of(pid, port) if manager == "container" else None,
        "within": within(pid, table),
        "user": user,
        "pid": pid,
        "since": started(pid),
        "command": [without_secrets(word) for word in words_without_secrets(words)],
        **spoken_with(port),
        "folder": None if manager == "container" else model_folder(start, pid),
    }


def idle_units(asked: str) -> list[dict[str, Any]]:
    """Units of the system that would start a vLLM, and the one that the settings name."""
    found = []
    for path in unit_files_there():
        text = read(path)
        start = of_unit(text)
        if start is None and not (path.name == asked and text.strip()):
            continue
        users = re.findall(r"^User=(\S+)", text, re.MULTILINE)
        found.append(
            {
                "unit": path.name,
                **unit_files("system", path.name, None),
                "manager": "system",
                "starter": path.name if starts_container(text) else None,
                "within": None,
                "user": users[-1] if users else "root",
                "pid": None,
                "since": None,
                "command": [],
                "port": start.port if start else None,
                "health": None,
                "model": None,
                "asks_for_key": False,
                "metrics": None,
                "folder": None,
            }
        )
    return found


def unit_files_there() -> list[Path]:
    """Each unit's file that counts, those in /etc first; a template starts nothing by itself."""
    found: dict[str, Path] = {}
    for folder in PLACES_OF_UNITS:
        for path in sorted((ROOT / folder.lstrip("/")).glob("*.service")):
            if "@." not in path.name:
                found.setdefault(path.name, path)
    return list(found.values())


def within(pid: int, table: Table) -> str | None:
    """The terminal's keeper that a process was started in: it ends with that one."""
    for parent in ancestors(pid, table):
        name = read(ROOT / f"proc/{parent}/comm").strip().partition(":")[0].lower()
        if name in MULTIPLEXERS:
            return name
    return None


def user_of(pid: int) -> str | None:
    try:
        return user_name((ROOT / f"proc/{pid}").stat().st_uid)
    except OSError:
        return None


def started(pid: int) -> float | None:
    """When a process began, in seconds since the epoch."""
    status = read(ROOT / f"proc/{pid}/stat").rpartition(")")[2].split()
    boot = re.search(r"^btime (\d+)", read(ROOT / "proc/stat"), re.MULTILINE)
    if len(status) < 20 or boot is None:
        return None
    return int(boot[1]) + int(status[19]) / os.sysconf("SC_CLK_TCK")


def unit_files(manager: str, unit: str | None, user: str | None) -> dict[str, Any]:
    """{"path", "text", "drop_ins"} of a unit of the system or of a user, without secrets."""
    nothing: dict[str, Any] = {"path": None, "text": None, "drop_ins": {}}
    if unit is None or manager not in ("system", "user"):
        return nothing
    if manager == "system":
        around = surroundings(unit)
        path, drop_ins = around["fragment"] or str(UNITS / unit), around["drop_ins"]
    else:
        path, drop_ins = user_unit(unit, user), {}
    if path is None or not Path(path).is_file():
        return nothing
    return {
        "path": path,
        "text": without_secrets(read(Path(path))),
        "drop_ins": {name: without_secrets(text) for name, text in drop_ins.items()},
    }


def user_unit(unit: str, user: str | None) -> str | None:
    homes = [Path(f"~{user}").expanduser()] if user and not user.isdigit() else []
    folders = [home / ".config/systemd/user" for home in homes]
    folders += [Path("/etc/systemd/user"), Path("/usr/lib/systemd/user")]
    return next((str(one / unit) for one in folders if (one / unit).is_file()), None)


def published(port: int, table: Table) -> int:
    """The box's own port for a container's, where docker hands it on."""
    for _, words in table.values():
        if words and Path(words[0]).name == "docker-proxy":
            pairs = dict(pairwise(words))
            if pairs.get("-container-port") == str(port) and "-host-port" in pairs:
                return int(pairs["-host-port"])
    return port


def model_folder(start: Launch, pid: int) -> str | None:
    """The folder that a server loads from, where it names one and no repository."""
    if not start.model:
        return None
    try:
        folder = Path(f"/proc/{pid}/cwd").resolve() / start.model
        return str(folder) if answering(folder) else None
    except OSError:
        return None


# --- what a server says --------------------------------------------------------------------------


def spoken_with(port: int) -> dict[str, Any]:
    """Health, the model's name and the counters, from the server itself."""
    health = replies.health(port)
    said: dict[str, Any] = {"port": port, "health": health, "model": None, "metrics": None}
    status, models = get(port, "/v1/models") if health else (None, "")
    said["asks_for_key"] = status == 401
    with contextlib.suppress(ValueError, LookupError, TypeError):
        said["model"] = str(json.loads(models)["data"][0]["id"]) if status == 200 else None
    status, metrics = get(port, "/metrics") if health else (None, "")
    with contextlib.suppress(ValueError):
        said["metrics"] = asdict(parse_metrics(metrics)) if status == 200 else None
    return said


def get(port: int, path: str) -> tuple[int | None, str]:
    """(status, text) of one page of a server on this box; no proxy stands between."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(f"http://127.0.0.1:{port}{path}", timeout=ANSWER_S) as answer:
            return int(answer.status), answer.read(MOST_BYTES).decode(errors="replace")
    except urllib.error.HTTPError as error:
        error.close()
        return error.code, ""
    except (OSError, ValueError, HTTPException):
        return None, ""


def read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


# --- weights -------------------------------------------------------------------------------------


def weights(asked: dict[str, Any], folders: list[str]) -> list[dict[str, Any]]:
    """Every model in the usual places and in these folders; the wanted one first, then by size."""
    places = [*folders, *weights_places(asked["repository"])]
    found: dict[Path, dict[str, Any]] = {}
    for place in places:
        for folder in models_below(Path(place)):
            if (where := folder.resolve()) not in found and (one := looked_at(folder, asked)):
                found[where] = one
    wanted = asked["repository"]
    order = sorted(found.values(), key=lambda one: (one["repository"] != wanted, -one["bytes"]))
    return order[:MOST_WEIGHTS]


def models_below(place: Path) -> Iterator[Path]:
    """Folders that may hold a model: HF_HOME, a hub cache, one repository of it, or a folder."""
    yield from sorted(place.glob("snapshots/*"))
    for base in (place, place / "hub"):
        yield from sorted(base.glob("models--*/snapshots/*"))
    yield place


def looked_at(folder: Path, asked: dict[str, Any]) -> dict[str, Any] | None:
    """One model; None for a folder without any weights."""
    files = {path.name: path for path in tensors_in(folder)}
    if not files:
        return None
    repository, commit = named_by(folder.resolve())
    config = record_in(folder / "config.json")
    index = record_in(folder / "model.safetensors.index.json")
    head = Head(**asked["head"]) if asked["head"] else None
    listed = (index or {}).get("weight_map")
    shards = {str(shard) for shard in listed.values()} if isinstance(listed, dict) else set()
    return {
        "folder": str(folder),
        "repository": repository,
        "commit": commit,
        "bytes": sum(path.stat().st_size for path in files.values()),
        "missing": len(shards - set(files)),
        "head": standing(config, index or index_of(files), head),
        "dtype": dtype_of(config, files),
    }


def tensors_in(folder: Path) -> list[Path]:
    try:
        found = sorted(folder.iterdir())
    except OSError:
        return []
    kinds = (".safetensors", ".gguf")
    return [path for path in found if path.suffix in kinds and path.is_file()]


def named_by(folder: Path) -> tuple[str | None, str | None]:
    """(repository, commit) of a snapshot in a hub cache, by its path."""
    found = re.search(r"/models--([^/]+)/snapshots/([^/]+)$", str(folder))
    return (found[1].replace("--", "/", 1), found[2]) if found else (None, None)


def index_of(files: dict[str, Path]) -> dict[str, Any] | None:
    """What an index would say, from the files' own headers; None where one can't be read."""
    names: dict[str, str] = {}
    for name, path in files.items():
        try:
            with path.open("rb") as content:
                size = int.from_bytes(content.read(8), "little")
                header = json.loads(content.read(size)) if 0 < size < 100_000_000 else None
        except (OSError, ValueError):
            return None
        if not isinstance(header, dict):
            return None
        names |= dict.fromkeys((key for key in header if key != "__metadata__"), name)
    return {"weight_map": names}


def dtype_of(config: dict[str, Any] | None, files: dict[str, Path]) -> str | None:
    """The type of the parameters as config.json has it, or how they were quantised."""
    if any(path.suffix == ".gguf" for path in files.values()):
        return "GGUF, quantised"
    text = (config or {}).get("text_config")
    parts = [part for part in (config, text) if isinstance(part, dict)]
    for part in parts:
        quantised = part.get("quantization_config")
        if isinstance(quantised, dict):
            return f"{quantised.get('quant_method', 'somehow')}, quantised"
    named = [part.get(key) for part in parts for key in ("dtype", "torch_dtype") if part.get(key)]
    return str(named[0]) if named else None


# --- what a download would take ------------------------------------------------------------------


def fetching(asked: dict[str, Any]) -> dict[str, Any]:
    """Bytes of a commit that lie on the box already, and the hub's rate for one that does not.

    asked: {"repository", "from": a folder or null for the usual places, "files": {path: [size in
    bytes, patterns below a place]}, "url": of the commit's files, "limit": bytes a second or null,
    "sample": a file to measure by where none is missing, or null}.
    Answers {"lying": bytes, "rate": bytes a second or null, "why": null or why there is none}.
    """
    named = asked["from"]
    places = [named] if named else weights_places(asked["repository"])
    missing = {
        path: size
        for path, (size, patterns) in asked["files"].items()
        if not any(is_there(Path(place), patterns, size) for place in places)
    }
    lying = sum(size for path, (size, _) in asked["files"].items() if path not in missing)
    sample = max(missing, key=lambda path: missing[path]) if missing else asked["sample"]
    if sample is None:
        return {"lying": lying, "rate": None, "why": None}
    return {"lying": lying, **measured(f"{asked['url']}/{sample}", asked["limit"])}


def is_there(place: Path, patterns: list[str], size: int) -> bool:
    for pattern in patterns:
        for name in place.glob(pattern):
            try:
                if name.stat().st_size == size:
                    return True
            except OSError:
                continue
    return False


MEASURE_S = 3.0
MEASURE_BYTES = 32_000_000


def measured(url: str, limit: float | None) -> dict[str, Any]:
    """One connection's rate for the first part of a file, for 3 s at most, within the limit."""
    headers = {"Range": f"bytes=0-{MEASURE_BYTES - 1}", "Accept-Encoding": "identity"}
    request = urllib.request.Request(url, headers={**headers, "User-Agent": "aibox"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            rate = received(answer, limit)
    except urllib.error.HTTPError as error:
        error.close()
        return {"rate": None, "why": f"the hub answers {error.code} without a token"}
    except (OSError, ValueError, HTTPException) as error:
        return {"rate": None, "why": f"the hub gave no answer ({getattr(error, 'reason', error)})"}
    return {"rate": rate, "why": None if rate else "the hub sent nothing"}


def received(answer: Any, limit: float | None) -> float | None:
    began, count = time.monotonic(), 0
    while count < MEASURE_BYTES and time.monotonic() - began < MEASURE_S:
        room = 1 << 18 if limit is None else max(4096, min(1 << 18, int(limit) // 20))
        piece = answer.read(room)
        if not piece:
            break
        count += len(piece)
        if limit is not None:
            time.sleep(max(0.0, began + count / limit - time.monotonic()))
    seconds = time.monotonic() - began
    return count / seconds if count and seconds > 0 else None


QUESTIONS = {"discovery": discovery, "fetching": fetching}
