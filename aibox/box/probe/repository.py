"""What NVIDIA's repository offers the box, and what apt would do with it."""

import contextlib
import fnmatch
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aibox.box.probe.commands import ran
from aibox.box.probe.files import path_of
from aibox.box.probe.openpgp import fingerprint
from aibox.box.probe.replies import fetched

KEY_NAME = "3bf863cc.pub"  # beside NVIDIA's Release file
APT_SECONDS = 60
OTHERS_SECONDS = 150  # the distribution's own lists may have to come along
APT_CONF = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::State::lists "{folder}/lists/";
Dir::Cache "{folder}/cache/";
Dir::Cache::archives "archives/";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources/";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{folder}/preferences/";
Acquire::Languages "none";
Acquire::Retries "0";
Acquire::http::Timeout "15";
Acquire::https::Timeout "15";
APT::Get::List-Cleanup "false";
APT::Ignore-Hold "true";
quiet "1";
"""


def repository(asked: dict[str, Any]) -> dict[str, Any]:
    """What NVIDIA's repository offers this box, and what apt would do with it.

    All in a folder that is thrown away, with the box's own list of installed packages. asked:
    {"url": the flat folder, "fingerprint": of its key, "sources": {path: text} of the other
    sources, "source": the text of ours with @KEY@ where its key's path belongs, "preferences":
    text, "packages": ["name=glob of a version"], "toolkit": name or null, "headers": [names],
    "also": [names whose offers are told, no more]}.
    """
    answer: dict[str, Any] = {
        "key": None,
        "key_fingerprint": None,
        "error": None,
        "offers": {},
        "removes": [],
        "download_bytes": None,
        "disk_bytes": None,
        "unresolved": None,
    }
    key, answer["error"] = fetched(asked["url"].rstrip("/") + f"/{KEY_NAME}")
    if key is None:
        return answer
    answer |= {"key": key, "key_fingerprint": fingerprint(key)}
    if answer["key_fingerprint"] != asked["fingerprint"].upper():
        return answer
    keep = path_of("var/tmp")  # the lists take more than a small /tmp may have
    with tempfile.TemporaryDirectory(
        prefix="aibox-repository-",
        dir=keep if keep.is_dir() else None,
        ignore_cleanup_errors=True,  # an apt that took too long may still be ending
    ) as folder:
        lay_out(Path(folder), asked, key)
        answer["error"] = update_error(Path(folder), asked["url"])
        if answer["error"] is None:
            answer |= tried(str(Path(folder) / "apt.conf"), asked)
    return answer


def lay_out(folder: Path, asked: dict[str, Any], key: str) -> None:
    """A world of its own for apt: the box's configuration without its hooks, other sources."""
    folder.chmod(0o755)  # apt fetches as a user of its own
    places = ("lists/partial", "cache/archives/partial", "preferences", "conf")
    for name in (*places, "sources", "others", "ours"):
        (folder / name).mkdir(parents=True)
    etc = path_of("etc/apt")
    parts = [*sorted((etc / "apt.conf.d").glob("*")), etc / "apt.conf"]
    copy(parts, folder / "conf")
    copy((etc / "preferences.d").glob("*"), folder / "preferences")
    copy([etc / "preferences"], folder / "preferences")
    # what the box has read already need not come again
    copy(path_of("var/lib/apt/lists").glob("*"), folder / "lists")
    (folder / "conf/zzz-probe").write_text(APT_CONF.format(folder=folder))
    (folder / "apt.conf").write_text(
        f'Dir::Etc::Parts "{folder}/conf/";\nDir::Etc::Main "/dev/null";\n'
    )
    (folder / "key.asc").write_text(key)
    ours = asked["source"].replace("@KEY@", str(folder / "key.asc"))
    for place in ("ours", "sources"):
        (folder / place / "aibox-nvidia.sources").write_text(ours)
    for path, text in asked["sources"].items():
        for place in ("others", "sources"):
            (folder / place / Path(path).name).write_text(text)
    (folder / "preferences/aibox-nvidia").write_text(asked["preferences"])


def copy(paths: Iterable[Path], folder: Path) -> None:
    for path in paths:
        if path.is_file() and path.name != "lock":
            with contextlib.suppress(OSError):  # a list that apt has just replaced
                shutil.copy2(path, folder / path.name)


def apt(
    configuration: str, *words: str, seconds: float = APT_SECONDS
) -> subprocess.CompletedProcess[str] | None:
    return ran(list(words), seconds, APT_CONFIG=configuration, DEBIAN_FRONTEND="noninteractive")


def update_error(folder: Path, url: str) -> str | None:
    """Why our repository can't be read, in apt's words.

    The others are read apart from it: their troubles are not ours, and one that does not answer
    must not take the time away.
    """
    ours = update(folder, "ours", APT_SECONDS)
    if ours is None:
        return f"{url}: apt-get update did not end in {APT_SECONDS} s"
    if ours.returncode or complaint_of(ours.stdout + ours.stderr, url):
        said = ours.stdout + ours.stderr
        return complaint_of(said, url) or unresolved(said)
    update(folder, "others", OTHERS_SECONDS)
    return None


def update(folder: Path, place: str, seconds: float) -> subprocess.CompletedProcess[str] | None:
    words = ["apt-get", "update", "-o", f"Dir::Etc::sourceparts={folder}/{place}/"]
    return apt(str(folder / "apt.conf"), *words, seconds=seconds)


def complaint_of(said: str, url: str) -> str | None:
    """apt's lines that concern a url: Err: with the cause below it, E: and W: that name it."""
    lines, found = said.splitlines(), []
    place = url.rstrip("/")
    for at, line in enumerate(lines):
        if not re.match(r"(Err:\d+|E:|W:|Error:|Warning:) ", line) or place not in line:
            continue
        found.append(line.strip())
        for below in lines[at + 1 :]:
            if not line.startswith("Err:") or not below.startswith(" "):
                break
            if not re.match(r"\s+(?:-|Hashes|Last modification|Release file created)", below):
                found.append(below.strip())
    mild = re.compile(r"(W|Warning): .*(?:weak|SHA1|[Pp]olicy)")
    failing = [line for line in found if not mild.match(line)]
    return "\n".join(failing[:8]) or None


def tried(configuration: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Offers of every package asked for, and a simulated installation of those that fit."""
    globs = dict(one.partition("=")[::2] for one in asked["packages"])
    others = [*([asked["toolkit"]] if asked["toolkit"] else []), *asked["headers"]]
    names = list(dict.fromkeys([*globs, *others, *asked["also"]]))
    done = apt(configuration, "apt-cache", "madison", *names)
    if done is None or done.returncode:
        return {"error": unresolved(done.stderr) if done else "apt-cache does not answer"}
    found = madison(done.stdout)
    offers = {name: found.get(name, []) for name in names}
    exact = {name: fitting(glob, offers[name]) for name, glob in globs.items()}
    if None in exact.values():
        return {"offers": offers}
    wanted = [f"{name}={version}" for name, version in exact.items()]
    wanted += [name for name in others if offers[name]]
    return {"offers": offers, **simulated(configuration, wanted)}


def simulated(configuration: str, wanted: list[str]) -> dict[str, Any]:
    command = ["apt-get", "-y", "--no-install-recommends", "--allow-downgrades"]
    command += ["--allow-change-held-packages", "install", *wanted]
    done = apt(configuration, *command, "-s")
    if done is None:
        return {"unresolved": f"apt-get did not end in {APT_SECONDS} s"}
    if done.returncode:
        return {"unresolved": unresolved(done.stdout + done.stderr)}
    plan = simulation(done.stdout)
    uris = apt(configuration, *command, "-qq", "--print-uris")
    return {
        "removes": plan["removed"],
        "download_bytes": download_size(uris.stdout) if uris and not uris.returncode else None,
        "disk_bytes": disk_size(configuration, plan),
    }


def unresolved(said: str) -> str:
    """apt's account of what can't be satisfied, or its errors."""
    lines = said.splitlines()
    block = [at for at, line in enumerate(lines) if "have unmet dependencies" in line]
    if block:
        return "\n".join(line.rstrip() for line in lines[block[0] :][:12])
    errors = [line for line in lines if re.match(r"(E|Error):", line)]
    return "\n".join(errors[:6] or lines[-3:])


def madison(said: str) -> dict[str, list[str]]:
    """{package: its versions, newest first} from `apt-cache madison`."""
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3 and not cells[2].endswith(" Sources"):
            versions = found.setdefault(cells[0], [])
            if cells[1] not in versions:
                versions.append(cells[1])
    return found


def fitting(glob: str, versions: list[str]) -> str | None:
    """The first version that fits, with or without its epoch."""
    return next(
        (
            version
            for version in versions
            if fnmatch.fnmatchcase(version, glob)
            or fnmatch.fnmatchcase(version.partition(":")[2], glob)
        ),
        None,
    )


def simulation(said: str) -> dict[str, Any]:
    """{"installed": {name: version}, "removed": [names]} from `apt-get -s`."""
    installed = re.findall(r"^Inst (\S+)(?: \[[^]]*\])? \((\S+)", said, re.MULTILINE)
    removed = re.findall(r"^(?:Remv|Purg) (\S+)", said, re.MULTILINE)
    return {"installed": dict(installed), "removed": sorted(set(removed))}


def download_size(said: str) -> int:
    """Bytes, from `apt-get --print-uris`: 'URL' NAME SIZE SUM."""
    return sum(int(size) for size in re.findall(r"^'[^']*' \S+ (\d+)", said, re.MULTILINE))


def disk_size(configuration: str, plan: dict[str, Any]) -> int | None:
    """Bytes that the disk will hold more (never less than 0), by Installed-Size in KiB."""
    wanted = [f"{name}={version}" for name, version in plan["installed"].items()]
    if not wanted:
        return 0
    shown = apt(configuration, "apt-cache", "show", *wanted)
    if shown is None or shown.returncode:
        return None
    sizes = re.findall(r"^Installed-Size: (\d+)", shown.stdout, re.MULTILINE)
    leaving = [*plan["installed"], *plan["removed"]]
    # it fails for names that are not installed, and still prints the others
    there = ran(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Installed-Size}\n", *leaving])
    freed = re.findall(r"^installed (\d+)", there.stdout if there else "", re.MULTILINE)
    return max(0, 1024 * (sum(map(int, sizes)) - sum(map(int, freed))))


QUESTIONS = {"repository": repository}
