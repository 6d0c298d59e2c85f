"""Fact pipelining on real boxes: the same answers, plans and ends; drift is seen at once."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tasks import fact_pipelining
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import layer_of
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import HERE, HostData, command_line, environment, standin
from tests.rehearsal.terminal import Terminal
from tests.unit.test_fact_pipelining import AWKWARD

UNIT = "/etc/systemd/system/vllm-coder.service"
ROOT = '{"_retry_delay": 5, "_shell_executable": "sh", "_success_exit_codes": [0], "_sudo": true}'
LOGIN = '{"_retry_delay": 5, "_shell_executable": "sh", "_success_exit_codes": [0]}'


@dataclass(frozen=True)
class Ended:
    """One run: exit code, everything said, the counts of fact pipelining, the plan as JSON."""

    code: int
    said: str
    counts: dict[str, int]
    plan: list[str]


class Runs:
    """Runs of pyinfra with a memory of their own."""

    def __init__(self, hub: Hub, folder: Path) -> None:
        self.hub, self.folder = hub, folder

    def data(self, *boxes: Box, **changes: Any) -> dict[Box, HostData]:
        return {box: {**standin(self.hub.url), **changes} for box in boxes}

    def environment(self, boxes: dict[Box, HostData]) -> dict[str, str]:
        return {**environment(boxes, self.folder), "XDG_CACHE_HOME": str(self.folder / "cache")}

    def run(self, boxes: dict[Box, HostData], *words: str) -> Ended:
        done = subprocess.run(
            command_line("--debug", *words),
            cwd=CHECKOUT,
            env=self.environment(boxes),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert "Traceback" not in done.stderr, done.stderr[-5000:]
        counts = re.findall(r"Fact pipelining: (\{.*\})", done.stderr)
        shown = json.loads(done.stdout)["plan"] if "--json" in words else []
        plan = [row["name"] for row in shown if row["hosts_with_change"]]
        assert not any(row["hosts_with_conditional_change"] for row in shown)
        return Ended(done.returncode, done.stderr + done.stdout, json.loads(counts[-1]), plan)

    def plan(self, box: Box, **changes: Any) -> Ended:
        ended = self.run(self.data(box, **changes), "--dry", "--json")
        assert ended.code == 0, ended.said[-3000:]
        return ended

    def compared(
        self, box: Box, questions: list[list[str]], **changes: Any
    ) -> dict[str, list[Any]]:
        """Plain and batched answers of a box to the questions."""
        file = self.folder / "questions.json"
        file.write_text(json.dumps(questions))
        return answers(
            [str(HERE / "inventory.py")], file, self.environment(self.data(box, **changes))
        )

    def remembered(self, box: Box) -> list[list[str]]:
        """Everything that runs of deploy.py have asked a box: [arguments, command]."""
        file = self.folder / "cache/pyinfra-fact-pipelining"
        name = fact_pipelining.memory_file(box.name, ["deploy.py"]).name
        phases = json.loads((file / name).read_text())["phases"].values()
        rows = {(arguments, command): None for rows in phases for arguments, command, *_ in rows}
        return [list(row) for row in rows]


def answers(hosts: list[str], file: Path, environment: dict[str, str]) -> dict[str, list[Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "pyinfra", *hosts, "tests/rehearsal/compare_answers.py"],
        cwd=CHECKOUT,
        env={**environment, "QUESTIONS": str(file), "PYINFRA_YES": "1"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    shown: dict[str, list[Any]] = json.loads(file.with_suffix(".answers").read_text())
    return shown


@pytest.fixture(scope="module")
def serving(hub: Hub) -> Iterator[Box]:
    with Box.up("pipelining", layer=layer_of("serving", hub), owned=True) as box:
        box.run("systemctl start vllm-coder")
        yield box


@pytest.fixture(scope="module")
def runs(hub: Hub, serving: Box, tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """With a memory that has learned what a plan and a run ask."""
    made = Runs(hub, tmp_path_factory.mktemp("runs"))
    first = made.plan(serving)
    assert first.counts["batches"] == 0  # nothing was learned
    assert first.counts["commands"] > 10
    ended = made.run(made.data(serving), "-y")
    assert ended.code == 0, ended.said[-3000:]
    return made


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    """Every single value in a JSON value, by where it stands."""
    if not isinstance(value, dict | list):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found: dict[str, Any] = {path: len(value)}
    for key, one in items:
        found |= leaves(one, f"{path}/{key}")
    return found


CHANGE_BY_THEMSELVES = {"clock", "free_bytes"}


def differences(plain: Any, batched: Any, later: Any) -> set[str]:
    """Where an answer is not the plain one, but for values that change by themselves.

    Free bytes may go down and up again: equal in both plain answers, other in the one between.
    """
    if batched == plain:
        return set()
    if plain == later or plain[0::2] != later[0::2]:
        return {"the whole answer"}
    before, after, between = (leaves(json.loads(one[1][-1])) for one in (plain, later, batched))
    changing = {key for key in before if before[key] != after.get(key)}
    assert len(changing) < 9, changing
    found = {key for key, _ in before.items() ^ between.items()} - changing
    return {key for key in found if key.rpartition("/")[2] not in CHANGE_BY_THEMSELVES}


def assert_same(questions: list[list[str]], found: dict[str, list[Any]], missing: int = 0) -> None:
    rows = zip(questions, found["plain"], found["batched"], found["later"], strict=True)
    left = 0
    for (_, command), plain, batched, later in rows:
        if batched is None:
            left += 1
        else:
            differing = differences(plain, batched, later)
            assert not differing, (command[:200], differing, plain, batched)
    assert left <= missing


# --- the same answers --------------------------------------------------------------------------


def test_every_fact_of_the_deploy_on_an_unchanged_and_a_changed_box(
    runs: Runs, serving: Box
) -> None:
    questions = runs.remembered(serving)
    assert len(questions) > 12
    assert_same(questions, runs.compared(serving, questions))
    with Box.up("pipelining-bare", owned=True) as bare:
        assert_same(questions, runs.compared(bare, questions))
        bare.run(f"mkdir -p /opt/aibox; echo gone >{UNIT}; useradd --system vllm")
        assert_same(questions, runs.compared(bare, questions))


@pytest.mark.parametrize("arguments", [ROOT, LOGIN], ids=["root", "login"])
def test_awkward_commands_over_ssh(runs: Runs, serving: Box, arguments: str) -> None:
    questions = [[arguments, command] for command in AWKWARD]
    # what a signal (or 255) ended is asked again
    assert_same(questions, runs.compared(serving, questions), missing=5)


def test_awkward_commands_on_this_machine(tmp_path: Path) -> None:
    questions = [[LOGIN, command] for command in AWKWARD]
    file = tmp_path / "questions.json"
    file.write_text(json.dumps(questions))
    assert_same(questions, answers(["@local"], file, dict(os.environ)), missing=5)


# --- fewer commands ----------------------------------------------------------------------------


def test_an_unchanged_run_needs_three_commands_at_most(runs: Runs, serving: Box) -> None:
    dry = runs.plan(serving)
    assert dry.plan == []
    assert dry.counts["commands"] == 1, dry.counts
    ended = runs.run(runs.data(serving), "-y")
    assert ended.code == 0
    assert ended.counts["commands"] <= 2, ended.counts
    assert ended.counts["failed_batches"] == 0
    plain = runs.run(runs.data(serving, pipelining=False), "-y")
    assert plain.counts["batches"] == 0
    assert plain.counts["commands"] > 10
    by_word = runs.run(runs.data(serving), "--dry", "--data", "pipelining=False")
    assert by_word.counts["batches"] == 0


def test_what_changes_while_the_plan_is_read_is_seen(runs: Runs, serving: Box) -> None:
    boxes = runs.data(serving)
    words = command_line("--debug")
    with Terminal(words, CHECKOUT, runs.environment(boxes)) as terminal:
        terminal.wait_for("Press enter", 120)
        serving.run("rm /etc/apt/apt.conf.d/90aibox")
        terminal.type("\n")
        assert terminal.ended() == 0
    serving.run("test -e /etc/apt/apt.conf.d/90aibox")
    with Terminal(words, CHECKOUT, runs.environment(boxes)) as terminal:
        terminal.wait_for("Press enter", 120)
        terminal.type("\n")
        assert terminal.ended() == 0
    counts = json.loads(re.findall(r"Fact pipelining: (\{.*?\})", terminal.said)[-1])
    assert counts["commands"] <= 2, counts


@pytest.mark.long
def test_several_boxes_at_once(runs: Runs, serving: Box, hub: Hub) -> None:
    with Box.up("pipelining-two", layer=layer_of("serving", hub), owned=True) as second:
        second.run("systemctl start vllm-coder")
        boxes = runs.data(serving, second)
        assert runs.run(boxes, "--dry").counts["batches"] == 1  # the second has learned nothing
        second.run("rm /etc/apt/apt.conf.d/90aibox")
        dry = runs.run(boxes, "--dry", "--json")
        assert len(dry.plan) == 1
        assert dry.counts["commands"] == 2, dry.counts
        assert runs.run(boxes, "-y").code == 0
        assert runs.run(boxes, "--dry", "--json").plan == []


# --- drift is seen on the first run after it -----------------------------------------------------

APT = "/etc/apt/apt.conf.d/90aibox"
WEIGHTS = "$(ls /srv/models/*/*/*.safetensors | head -n 1)"

# what it is: (how it comes, how it goes, an operation of the plan that must name it)
DRIFT = {
    "a hand-edited unit": (
        f"cp -a {UNIT} /root/unit && sed -i 's/max-num-seqs 4/max-num-seqs 5/' {UNIT}",
        f"mv /root/unit {UNIT}; systemctl daemon-reload",
        "runs what the card says",
    ),
    "a unit's mode": (f"chmod 666 {UNIT}", f"chmod 644 {UNIT}", "Owner of vllm-coder.service"),
    "a stopped server": (
        "systemctl stop vllm-coder",
        "systemctl start vllm-coder",
        "runs what the card says",
    ),
    "a server not started at boot": (
        "systemctl -q disable vllm-coder",
        "systemctl -q enable vllm-coder",
        "starts at boot",
    ),
    "touched weights": (
        f"touch -r {WEIGHTS} /root/stamp && touch {WEIGHTS}",
        f"touch -r /root/stamp {WEIGHTS}",
        "Weights",
    ),
    "a lost setting of apt": (f"mv {APT} /root/apt", f"mv /root/apt {APT}", "apt waits"),
    "half an aibox": (
        "rm /opt/aibox/current/complete",
        "touch /opt/aibox/current/complete",
        "aibox in its own venv",
    ),
    "a release without its record": (
        "cd /opt/vllm/releases/* && mv release.json /root/",
        "cd /opt/vllm/releases/* && mv /root/release.json .",
        "vLLM",
    ),
}
# what another run mends within seconds
MENDED = ("a hand-edited unit", "a stopped server", "touched weights", "a lost setting of apt")


@pytest.mark.parametrize("drift", DRIFT)
def test_drift_is_seen_on_the_first_run_after_it(runs: Runs, serving: Box, drift: str) -> None:
    come, go, named = DRIFT[drift]
    serving.run(come)
    try:
        seen = runs.plan(serving)
    finally:
        serving.run(go)
    assert seen.counts["answered"] > 10, seen.counts
    assert any(named in name for name in seen.plan), seen.plan


@pytest.mark.long
def test_the_same_plan_and_end_with_and_without(runs: Runs, serving: Box) -> None:
    assert runs.plan(serving).plan == []  # all of the above is gone again
    plans, ends = [], []
    for pipelining in (True, False):
        for name in MENDED:
            serving.run(DRIFT[name][0])
        plans.append(runs.plan(serving, pipelining=pipelining).plan)
        ended = runs.run(runs.data(serving, pipelining=pipelining), "-y")
        assert ended.code == 0, ended.said[-3000:]
        ends.append(serving.run(END_STATE).stdout.splitlines())
    assert plans[0] == plans[1]
    assert len(plans[0]) >= len(MENDED)
    assert ends[0] == ends[1]
    assert runs.plan(serving, pipelining=False).plan == []


END_STATE = """find /etc /opt/aibox /opt/vllm/releases /srv/models -xdev ! -name .verified.json \
  -printf '%p %y %m %u:%g %s %l\n' | sort; systemctl show vllm-coder -p ActiveState,UnitFileState"""


# --- where it cannot work ----------------------------------------------------------------------

OBSTACLES = {
    "no room": (
        "mount -t tmpfs -o size=4k,nr_inodes=3 none /dev/shm",
        "umount /dev/shm",
    ),
    "no mktemp": ("chmod -x /usr/bin/mktemp", "chmod +x /usr/bin/mktemp"),
    "no gzip": ("chmod -x /bin/gzip", "chmod +x /bin/gzip"),
}


@pytest.mark.parametrize(
    "obstacle",
    [
        "no room",
        pytest.param("no mktemp", marks=pytest.mark.long),
        pytest.param("no gzip", marks=pytest.mark.long),
    ],
)
def test_where_a_batch_fails_facts_are_plain(runs: Runs, serving: Box, obstacle: str) -> None:
    spoil, mend = OBSTACLES[obstacle]
    serving.run(spoil)
    try:
        ended = runs.plan(serving)
    finally:
        serving.run(mend)
    assert ended.plan == []
    assert ended.counts["plain_facts"] > 10, ended.counts


@pytest.mark.long
def test_a_noexec_folder_is_enough(runs: Runs, serving: Box) -> None:
    serving.run("mount -o remount,noexec /dev/shm && mount -t tmpfs -o noexec none /tmp")
    assert runs.plan(serving).counts["commands"] == 1
    serving.run("umount /tmp")


def test_a_sudo_password_is_given_to_a_batch_too(runs: Runs, serving: Box) -> None:
    serving.run(
        "useradd -m pw && echo pw:secret | chpasswd && cp -r /home/admin/.ssh /home/pw/"
        " && chown -R pw: /home/pw/.ssh && echo 'pw ALL=(ALL) ALL' >/etc/sudoers.d/pw"
    )
    try:
        arguments = json.dumps({**json.loads(ROOT), "_sudo_password": "secret"})
        questions = [[arguments, command] for command in ("id -u", "cat", "exit 3")]
        found = runs.compared(serving, questions, ssh_user="pw")
        assert_same(questions, found)
        assert found["batched"][0] == [True, ["0"], []]
    finally:
        serving.run("userdel -rf pw; rm /etc/sudoers.d/pw")
