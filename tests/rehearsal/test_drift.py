"""Each kind of drift is introduced and seen named, with exit code 2; what cannot be seen is 1.

One serving box for all: a test that changes it puts it back, or deploys.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import until
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import (
    HERE,
    HostData,
    command_line,
    connection,
    deploy,
    environment,
    standin,
)

UNIT = "/etc/systemd/system/vllm-coder.service"
DROP_INS = f"{UNIT}.d"
RUNTIME_DROP_INS = "/run/systemd/system/vllm-coder.service.d"
RELEASE = "/opt/vllm/releases/0.31*"
WEIGHTS = "/srv/models/tiny-qwen3.5-mtp/bdcb591e75efae48f0896d74a6a535b409a8d0e1"
TENSORS = f"{WEIGHTS}/model-00001-of-00001.safetensors"
KEPT = "/root/kept"
NOBODY = "nobody-of-this-name"
APT = "/etc/apt/apt.conf.d/90aibox"
WRONG_SETTINGS = ("server_port", "accepted", "verify_weights")


@dataclass(frozen=True)
class Checked:
    """How one drift check ended."""

    code: int
    table: str
    log: str
    document: dict[str, Any]
    metrics: str

    @property
    def said(self) -> str:
        return self.table + self.log

    def box(self, name: str = "drift") -> dict[str, Any]:
        found: dict[str, Any] = self.document["boxes"][name]
        return found


def command(folder: Path, *words: str, inventory: str = str(HERE / "inventory.py")) -> list[str]:
    outputs = ["--json", str(folder / "found.json"), "--textfile", str(folder / "drift.prom")]
    return [sys.executable, "-m", "tasks.drift", inventory, *outputs, *words]


def check(
    boxes: Mapping[Box, HostData],
    *words: str,
    inventory: str = str(HERE / "inventory.py"),
    more: Mapping[str, HostData] | None = None,
    **variables: str,
) -> Checked:
    """One check. more: data of further hosts, by name. variables: of its environment."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        variables |= environment(boxes, folder)
        hosts = Path(variables["REHEARSAL_BOXES"])
        hosts.write_text(json.dumps({**json.loads(hosts.read_text()), **(more or {})}))
        done = subprocess.run(
            command(folder, *words, inventory=inventory),
            cwd=CHECKOUT,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        return ended(done.returncode, done.stdout, done.stderr, folder)


def ended(code: int, table: str, log: str, folder: Path) -> Checked:
    written, metrics = folder / "found.json", folder / "drift.prom"
    document = json.loads(written.read_text()) if written.exists() else {}
    checked = Checked(code, table, log, document, metrics.read_text() if metrics.exists() else "")
    assert "Traceback" not in checked.said, checked.said
    if document:
        assert document["exit_code"] == code
        assert f"aibox_drift_exit_code {code}\n" in checked.metrics
    return checked


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("drift", layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def look(box: Box, hub: Hub) -> Callable[..., Checked]:
    """Checks the box, with some settings changed."""

    def run(*words: str, **data: object) -> Checked:
        return check({box: {**standin(hub.url), **data}}, *words)

    return run


# --- in sync ------------------------------------------------------------------------------------


def test_a_deployed_box_is_in_sync_and_says_so_everywhere(look: Callable[..., Checked]) -> None:
    found = look()
    assert found.code == 0, found.said
    assert found.table == "drift: in sync\n"
    assert found.log == ""
    assert found.box() == {
        "in_sync": True,
        "mends": [],
        "foreign": [],
        "accepted": [],
        "no_longer_there": [],
    }
    assert samples(found.metrics) | {"aibox_drift_check_timestamp_seconds": 0} == {
        "aibox_drift_exit_code": 0,
        "aibox_drift_check_timestamp_seconds": 0,
        'aibox_drift_operations{box="drift"}': 0,
        'aibox_drift_foreign{box="drift"}': 0,
    }


def test_a_check_changes_nothing_and_pyinfra_yes_does_not_blind_it(box: Box, hub: Hub) -> None:
    state = f"stat -c '%n %Y %Z %i' {UNIT} {WEIGHTS}/* /var/lib/aibox/*; systemctl show vllm-coder"
    state += (
        " -p InvocationID -p MainPID; ls -A /run/aibox /run/systemd/transient | grep -v session"
    )
    before = box.run(state, check=False).stdout
    box.run("systemctl disable -q vllm-coder")
    found = check({box: standin(hub.url)}, PYINFRA_YES="1")
    box.run("systemctl enable -q vllm-coder")
    assert found.code == 2, found.said
    assert box.run(state, check=False).stdout == before


# --- what a deploy mends, and what is foreign to it ---------------------------------------------


@dataclass(frozen=True)
class Drift:
    """A deed on the box, what undoes it, and what a check must name.

    named: "stage: reason", or "foreign: what"; further words are lines of a diff. look: which of
    the checks sees it, together with others that have nothing to do with it.
    """

    look: int
    deed: str
    undo: str
    named: tuple[str, ...]


def edited(path: str, script: str) -> tuple[str, str]:
    """Deed and undoing of an edit; the times of the file come back as well."""
    kept = f"{KEPT}-{hashlib.sha256(script.encode()).hexdigest()[:6]}"
    return f"cp -p {path} {kept} && sed -i '{script}' {path}", f"mv {kept} $(echo {path})"


def gone(path: str, instead: str = "true") -> tuple[str, str]:
    """Deed and undoing of a file that is taken away, on its own file system."""
    kept = f"{Path(path).parent.parent}/kept-{Path(path).name}"
    return f"mv {path} {kept} && {instead}", f"mv -fT {kept} {path}"


def touched(path: str) -> tuple[str, str]:
    kept = f"{KEPT}-{Path(path).name}"
    return f"touch -r {path} {kept} && touch {path}", f"touch -r {kept} {path}; rm {kept}"


RELOAD = "systemctl daemon-reload"
UNTIL_FAILED = "timeout 90 sh -c 'until systemctl is-failed -q vllm-coder; do sleep 0.1; done'"
NO_RESTART = f"{RUNTIME_DROP_INS}/x.conf"
FOR_ALL = "/etc/systemd/system/service.d"
SERVER = "systemd-run -q --unit=strange python3 -m http.server"
LISTENS = "timeout 90 sh -c 'until ss -ltn | grep -q :{port}; do sleep 0.1; done'"

KINDS = {
    "a hand-edited unit": Drift(
        1,
        *edited(UNIT, "s/^RestartSec=5/RestartSec=77/; /^User=/aEnvironment=HF_TOKEN=hunter2"),
        (
            "Server: its unit file is not the wanted one",
            "-RestartSec=77",
            "+RestartSec=5",
            "-Environment=HF_TOKEN=(hidden)",
        ),
    ),
    "a configuration that is gone": Drift(1, *gone(APT), (f"Base: {APT} is not there as a file",)),
    "the release's folder open to all": Drift(
        1,
        f"chmod 777 {RELEASE}",
        f"chmod 755 {RELEASE}",
        ("Release: /opt/vllm/releases/0.31.0+standin-", "is root:root 777, not root:root 755"),
    ),
    "the weights' folder of another owner": Drift(
        1,
        f"chown vllm {WEIGHTS}",
        f"chown root {WEIGHTS}",
        (f"Weights: {WEIGHTS} is vllm:root 755, not root:root 755",),
    ),
    "touched weights": Drift(
        1,
        *touched(TENSORS),
        ("Weights: model-00001-of-00001.safetensors was touched since it was verified",),
    ),
    "a service that is disabled": Drift(
        1,
        "systemctl disable -q vllm-coder",
        "systemctl enable -q vllm-coder",
        ("Server: vllm-coder.service is disabled or masked",),
    ),
    "a user with a shell": Drift(
        1,
        "usermod -s /bin/bash vllm",
        "usermod -s /usr/sbin/nologin vllm",
        ("Server: the user's home is not /var/lib/vllm-coder, or its shell not /usr/sbin/nologin",),
    ),
    "a member of our group": Drift(
        1, "gpasswd -a guest vllm", "gpasswd -d guest vllm", ("foreign: member guest of vllm",)
    ),
    "a port": Drift(
        1,
        f"{SERVER} 9100 && {LISTENS.format(port=9100)}",
        "systemctl stop strange",
        ("foreign: port 9100 python3",),
    ),
    "a drop-in that is not loaded yet": Drift(
        7,
        f"mkdir -p {DROP_INS} && printf '[Service]\\nNice=5\\n' >{DROP_INS}/x.conf",
        f"rm -r {DROP_INS}",
        (
            f"foreign: drop-in {DROP_INS}/x.conf",
            "Server: systemd has not read the unit, or a drop-in of it, as it is now",
        ),
    ),
    "a file with another mode": Drift(
        2,
        f"chmod 666 {UNIT}",
        f"chmod 644 {UNIT}",
        (f"Server: {UNIT} is root:root 666, not root:root 644",),
    ),
    "a file of another owner": Drift(
        2,
        f"chown vllm {APT}",
        f"chown root {APT}",
        (f"Base: {APT} belongs to vllm:root, not root:root",),
    ),
    "a service that is stopped": Drift(
        2,
        "systemctl stop vllm-coder",
        "systemctl start vllm-coder",
        ("Server: it is inactive",),
    ),
    "weights that are gone": Drift(
        2,
        *gone(f"{WEIGHTS}/config.json"),
        ("Weights: config.json is not there, or is another file",),
    ),
    "weights that all may write": Drift(
        2,
        f"chmod 666 {TENSORS}",
        f"chmod 644 {TENSORS}",
        (f"Weights: {TENSORS} is root:root 666, not root:root 644",),
    ),
    "a package that is gone": Drift(
        2,
        *edited(
            "/var/lib/dpkg/status",
            "/^Package: python3-venv$/,/^Status/s/^Status.*/Status: deinstall ok config-files/",
        ),
        ("Base: to be installed: python3-venv",),
    ),
    "a user whose own group is ours": Drift(
        2, "useradd -g vllm alice", "userdel alice", ("foreign: member alice of vllm",)
    ),
    "our user in another group": Drift(
        2, "gpasswd -a vllm sudo", "gpasswd -d vllm sudo", ("foreign: member vllm of sudo",)
    ),
    "a file among the weights": Drift(
        2,
        f"touch {WEIGHTS}/extra.txt",
        f"rm {WEIGHTS}/extra.txt",
        (f"foreign: file {WEIGHTS}/extra.txt",),
    ),
    "weights beside those of the lock": Drift(
        2,
        f"touch {WEIGHTS}/extra.safetensors",
        f"rm {WEIGHTS}/extra.safetensors",
        ("Weights: extra.safetensors is no file of this commit, and vLLM may load it",),
    ),
    "a service older than its file": Drift(
        3, *touched(UNIT), ("Server: it is older than its unit file",)
    ),
    "a release of another lock": Drift(
        3,
        *edited(f"{RELEASE}/release.json", 's/"lock_sha256": "......../"lock_sha256": "deadbeef/'),
        ("Release: /opt/vllm/releases/0.31.0+standin-", "was built from the lock deadbeef…, not "),
    ),
    "another aibox": Drift(
        3,
        *gone("/opt/aibox/current", "ln -s 0.0.1-00000000 /opt/aibox/current"),
        ("Base: aibox (none) is installed, not 0.1.0-",),
    ),
    "aibox's folder in another group": Drift(
        3,
        "chgrp vllm /opt/aibox",
        "chgrp root /opt/aibox",
        ("Base: /opt/aibox is root:vllm 755, not root:root 755",),
    ),
    "a proof that is gone": Drift(
        7,
        *gone("/var/lib/aibox/proof.json"),
        ("Proof: this command line has not been proven yet",),
    ),
    "another record of the deploy": Drift(
        3,
        *edited("/var/lib/aibox/deployed.json", "s/tiny/huge/"),
        ("Proof: /var/lib/aibox/deployed.json has another content",),
    ),
    "a drop-in for all services": Drift(
        3,
        f"mkdir -p {FOR_ALL} && echo '[Service]' >{FOR_ALL}/x.conf",
        f"rm -r {FOR_ALL}",
        (f"foreign: drop-in {FOR_ALL}/x.conf",),
    ),
    "a property that was set": Drift(
        3,
        "systemctl set-property vllm-coder CPUWeight=50",
        "systemctl revert vllm-coder",
        ("foreign: drop-in /etc/systemd/system.control/vllm-coder.service.d/50-CPUWeight.conf",),
    ),
    "a unit that is gone": Drift(4, *gone(UNIT), ("Server: its unit file is gone",)),
    "a service that has failed": Drift(
        5,
        f"mkdir -p {RUNTIME_DROP_INS} && printf '[Service]\\nRestart=no\\n' >{NO_RESTART}"
        f" && {RELOAD} && systemctl kill -s KILL vllm-coder && {UNTIL_FAILED}"
        f" && rm -r {RUNTIME_DROP_INS} && {RELOAD}",
        "systemctl reset-failed vllm-coder; systemctl start vllm-coder",
        ("Server: it is failed",),
    ),
    "a service that is masked": Drift(
        6,
        f"{gone(UNIT, f'ln -s /dev/null {UNIT}')[0]} && {RELOAD}",
        f"{gone(UNIT)[1]} && {RELOAD}",
        (
            "Server: its unit file is not the wanted one",
            "Server: vllm-coder.service is disabled or masked",
        ),
    ),
}


def rows(found: Checked, name: str = "drift") -> str:
    """What a check found as "stage: reason" and "foreign: what", and the lines of its diffs."""
    box = found.box(name)
    reasons = [(mend["stage"], reason) for mend in box["mends"] for reason in mend["reasons"]]
    named = [f"{stage}: {reason['text']}" for stage, reason in reasons]
    named += [f"foreign: {thing['what']}" for thing in box["foreign"]]
    return "\n".join(named + [line for _, reason in reasons for line in reason["diff"]])


@pytest.fixture(scope="module")
def looks(box: Box, hub: Hub) -> Callable[[int], Checked]:
    """A check of everything that belongs to it, each undone at once."""

    @cache
    def run(number: int) -> Checked:
        kinds = [kind for kind in KINDS.values() if kind.look == number]
        box.run("\n".join(["set -e", *(kind.deed for kind in kinds)]))
        found = check({box: standin(hub.url)})
        box.run("\n".join([*(kind.undo for kind in reversed(kinds)), RELOAD]))
        return found

    return run


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_drift_is_named(looks: Callable[[int], Checked], kind: Drift) -> None:
    found = looks(kind.look)
    assert found.code == 2, found.said
    for words in kind.named:
        assert words in rows(found), found.said
        assert words.partition(": ")[2] in found.table
    assert "hunter2" not in found.said + json.dumps(found.document)


@pytest.mark.parametrize("look", sorted({kind.look for kind in KINDS.values()}))
def test_nothing_foreign_is_invented(looks: Callable[[int], Checked], look: int) -> None:
    named = {words for kind in KINDS.values() if kind.look == look for words in kind.named}
    foreign = {f"foreign: {thing['what']}" for thing in looks(look).box()["foreign"]}
    assert foreign == {words for words in named if words.startswith("foreign: ")}


def test_what_was_undone_is_in_sync_again(look: Callable[..., Checked]) -> None:
    found = look()
    assert found.code == 0, found.said


MENDED_TOGETHER = (
    "a configuration that is gone",
    "the release's folder open to all",
    "the weights' folder of another owner",
    "touched weights",
    "weights that are gone",
    "weights that all may write",
    "aibox's folder in another group",
    "a user with a shell",
    "a service that is disabled",
    "a service that is masked",
    "a release of another lock",
    "another record of the deploy",
)


def test_a_deploy_mends_it(box: Box, hub: Hub, look: Callable[..., Checked]) -> None:
    for name in MENDED_TOGETHER:
        box.run(KINDS[name].deed)
    done = deploy({box: standin(hub.url)}, "-y")
    assert done.code == 0, done.said
    after = look()
    assert after.code == 0, after.said


# --- the running process, and settings ----------------------------------------------------------


def test_the_running_command_line_is_held_against_the_card(look: Callable[..., Checked]) -> None:
    found = look(serve={"max-num-seqs": 3})
    assert found.code == 2, found.said
    assert "Server: it runs with --max-num-seqs 4, wanted --max-num-seqs 3" in rows(found)
    assert "-    --max-num-seqs 4 \\" in rows(found)


def test_another_release_is_named(look: Callable[..., Checked]) -> None:
    extra = {"url": "http://nowhere.invalid/x", "sha256": "a" * 64, "path": "x"}
    found = look(release_extra_files=[extra])
    assert found.code == 2, found.said
    assert re.search(r"Release: /opt/vllm/releases/0.31.0\+standin-\w{8} is not there", rows(found))
    assert "Server: it runs /opt/vllm/releases/0.31.0+standin-" in rows(found)


def test_what_changes_the_process_is_shown_without_its_secrets(
    box: Box, look: Callable[..., Checked]
) -> None:
    text = "# by hand\n[Service]\nEnvironment=HF_HUB_OFFLINE=0 HF_TOKEN=hunter2 MY_OWN=1\n"
    box.run(f"mkdir -p {DROP_INS} && cat >{DROP_INS}/mine.conf", text=text)
    box.run(f"systemctl set-environment STRAY=hunter2; {RELOAD}; systemctl restart vllm-coder")
    found = look()
    box.run(f"rm -r {DROP_INS}; systemctl unset-environment STRAY; {RELOAD}")
    box.run("systemctl restart vllm-coder")
    assert found.code == 2, found.said
    assert "Server: its environment has HF_HUB_OFFLINE=0, not 1" in rows(found)
    drop_in, variable = found.box()["foreign"]
    assert drop_in == {
        "what": f"drop-in {DROP_INS}/mine.conf",
        "why": "it changes what vllm-coder.service runs",
        "lines": ["[Service]", "Environment=HF_HUB_OFFLINE=0 HF_TOKEN=(hidden) MY_OWN=1"],
    }
    assert variable["what"] == "variable STRAY of vllm-coder.service"
    assert "HF_TOKEN=(hidden)" in found.table
    assert "hunter2" not in found.said + json.dumps(found.document)


# --- the setting `accepted` ---------------------------------------------------------------------


def test_what_is_accepted_is_in_sync_and_what_has_gone_is_said(
    box: Box, look: Callable[..., Checked]
) -> None:
    inside = SERVER.replace("strange", "inside")  # no door: no other machine reaches it
    box.run(f"{inside} --bind 127.0.0.1 9101 && {LISTENS.format(port=9101)}")
    box.run(KINDS["a port"].deed)
    found = look(accepted=["port 9100 python3", "member guest of vllm"])
    box.run("systemctl stop strange inside")
    assert found.code == 0, found.said
    assert found.box()["accepted"] == ["port 9100 python3"]
    assert found.box()["no_longer_there"] == ["member guest of vllm"]
    assert "no longer there  member guest of vllm" in found.table


# --- every byte of the weights ------------------------------------------------------------------


@pytest.mark.long
def test_corrupt_weights_are_seen_by_a_full_check_and_mended_by_a_full_deploy(
    box: Box, hub: Hub, look: Callable[..., Checked]
) -> None:
    box.run(f"touch -r {TENSORS} {KEPT}")
    box.run(f"printf X | dd of={TENSORS} bs=1 seek=100000 conv=notrunc status=none")
    box.run(f"touch -r {KEPT} {TENSORS}")
    assert look().code == 0  # size, time and inode are as they were: the docs say so
    found = look(verify_weights="full")
    assert found.code == 2, found.said
    assert "Weights: model-00001-of-00001.safetensors has another content" in rows(found)
    assert "check: hashing" in found.log
    done = deploy({box: {**standin(hub.url), "verify_weights": "full"}}, "-y")
    assert done.code == 0, done.said
    whole = look(verify_weights="full")
    assert whole.code == 0, whole.said
    assert "check: hashing" in whole.log


# --- what is neither 0 nor 2 --------------------------------------------------------------------


def test_a_box_that_is_not_reached_is_1(look: Callable[..., Checked]) -> None:
    found = look(ssh_port=1)
    assert found.code == 1, found.said
    assert "no ssh connection" in found.log
    assert found.document["boxes"] == {}
    assert "no ssh connection" in found.document["failure"]


def test_one_box_of_two_that_is_not_reached_is_1(box: Box, hub: Hub) -> None:
    away = {**connection(box), **standin(hub.url), "ssh_port": 1}
    found = check({box: standin(hub.url)}, more={"away": away})
    assert found.code == 1, found.said
    assert found.table == "drift: in sync\n"
    assert list(found.document["boxes"]) == ["drift"]


def test_a_plan_goes_on_without_the_box_that_is_not_reached(box: Box, hub: Hub) -> None:
    """Nobody is asked whether it is to, and a row says how each stands."""
    away = Box("away")
    with tempfile.TemporaryDirectory() as folder:
        variables = environment({box: standin(hub.url)}, Path(folder))
        hosts = Path(variables["REHEARSAL_BOXES"])
        data = json.loads(hosts.read_text())
        hosts.write_text(json.dumps({away.name: {**data[box.name], "ssh_port": 1}, **data}))
        words = command_line("--dry")
        done = subprocess.run(
            words, cwd=CHECKOUT, env=variables, capture_output=True, text=True, check=False
        )
    assert done.returncode == 1, done.stderr
    assert "continue?" not in done.stderr and "Traceback" not in done.stderr
    first, second = done.stderr.rstrip().splitlines()[-2:]
    assert first.split()[:3] == [away.name, "not", "reached:"], done.stderr
    assert second.split() == [box.name, "in", "sync"], done.stderr


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"server_port": "8000", "accepted": "x", "verify_weights": "ful"}, WRONG_SETTINGS),
        ({"ssh_user": "guest"}, ("sudo",)),
    ],
)
def test_a_refusal_is_1(
    look: Callable[..., Checked], data: dict[str, Any], said: tuple[str, ...]
) -> None:
    found = look(**data)
    assert found.code == 1, found.said
    assert all(words in found.log for words in said)
    assert found.table == ""


def is_connected(check: int) -> bool:
    """Whether the pyinfra that this check started has an ssh connection: it is at work."""
    children = Path(f"/proc/{check}/task/{check}/children").read_text().split()
    return any(sockets(child) & ssh_connections() for child in children)


def sockets(pid: str) -> set[str]:
    """The inodes of a process's sockets."""
    found = set()
    with contextlib.suppress(OSError):  # closed in the meantime: the next look shows more
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            found |= set(re.findall(r"socket:\[(\d+)\]", str(descriptor.readlink())))
    return found


def ssh_connections() -> set[str]:
    """The inodes of established connections to port 22; the columns are those of proc(5)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return {row[9] for row in rows if row[2].endswith(":0016") and row[3] == "01"}


@pytest.mark.parametrize("to_all", [True, False], ids=["Ctrl-C", "SIGINT to the check alone"])
def test_an_interrupted_check_is_1(box: Box, hub: Hub, tmp_path: Path, to_all: bool) -> None:
    with subprocess.Popen(
        command(tmp_path),
        cwd=CHECKOUT,
        env=environment({box: standin(hub.url)}, tmp_path),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as run:
        until(lambda: is_connected(run.pid), "pyinfra reaches the box")
        if to_all:
            os.killpg(run.pid, signal.SIGINT)
        else:
            run.send_signal(signal.SIGINT)
        table, log = run.communicate(timeout=600)
    found = ended(run.returncode, table, log, tmp_path)
    assert found.code == 1, found.said
    assert found.document["failure"] == "interrupted"
    assert found.table == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--limit", NOBODY], "names no box of the inventory"),
        (["--nonsense"], "unrecognized arguments"),
        (["--textfile", "drift.txt"], ".prom"),
        (["--json", "/nowhere/at/all.json"], "/nowhere/at"),
    ],
)
def test_what_looks_at_nothing_is_1(box: Box, hub: Hub, words: list[str], said: str) -> None:
    found = check({box: standin(hub.url)}, *words)
    assert found.code == 1, found.said
    assert said in found.log


def test_an_empty_inventory_is_1() -> None:
    found = check({})
    assert found.code == 1, found.said
    assert "no box in" in found.log


def test_a_mistyped_inventory_is_1(box: Box, hub: Hub) -> None:
    found = check({box: standin(hub.url)}, inventory="inventroy.invalid")
    assert found.code == 1, found.said
    assert "no box in" in found.log


# --- for machines -------------------------------------------------------------------------------


def test_json_alone_is_all_that_is_printed(box: Box, hub: Hub) -> None:
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [sys.executable, "-m", "tasks.drift", str(HERE / "inventory.py"), "--json", "-"],
            cwd=CHECKOUT,
            env=environment({box: standin(hub.url)}, Path(folder)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["boxes"]["drift"]["in_sync"] is True


SAMPLE = re.compile(r'([a-z_:][a-z0-9_:]*(?:\{[a-z_]+="(?:[^"\\\n]|\\[\\"n])*"\})?) (\d+)')


def samples(text: str) -> dict[str, int]:
    """The samples of a text in Prometheus' format 0.0.4, strictly read."""
    assert text.endswith("\n")
    found: dict[str, int] = {}
    family = ""
    for line in text.splitlines():
        if line.startswith("# HELP "):
            family = line.split()[2]
        elif line.startswith("# TYPE "):
            assert line == f"# TYPE {family} gauge"
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert re.split(r"[{]", match[1])[0] == family
            assert match[1] not in found
            found[match[1]] = int(match[2])
    return found
