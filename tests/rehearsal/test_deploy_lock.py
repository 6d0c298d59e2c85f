"""One deploy at a time for each box, whatever becomes of the one that is at work."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.deploy_lock import SOURCE
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import command_line, deploy, environment, standin
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.terminal import Terminal

UNIT = "/etc/systemd/system/vllm-coder.service"
LOCK = "/run/aibox-deploy.lock"
FREE = f"flock -n {LOCK} true"


@pytest.fixture
def box(make_box: MakeBox) -> Box:
    return make_box("deploy-lock")


def is_held(box: Box) -> bool:
    """By the box's own flock."""
    return box.run(f"test -e {LOCK} && ! {FREE}", check=False).returncode == 0


def state_of(box: Box) -> str:
    """What a deploy that does anything would change: the unit, its process, what was proven."""
    shown = "systemctl show vllm-coder -p InvocationID -p MainPID"
    return box.run(f"cat {UNIT}; {shown}; stat -c %y {UNIT} /var/lib/aibox/proof.json").stdout


def test_a_second_deploy_names_the_first_and_changes_nothing(box: Box, hub: Hub) -> None:
    other = {**standin(hub.url), "serve": {"max-num-seqs": 3}}
    before = state_of(box)
    with jobs.deploying(box, standin(hub.url)) as first:
        jobs.until(lambda: is_held(box), "the first deploy takes the lock")
        first.process.send_signal(signal.SIGSTOP)  # at work, for as long as we like
        looked = deploy({box: other}, "--dry")
        assert looked.code == 0, looked.said  # whoever only looks waits for nobody
        said = the_one_refusal(deploy({box: other}, "-y"))
        assert f"@{socket.gethostname()}, process {first.process.pid} there, since 20" in said.found
        assert said.expected == "one deploy at a time"
        holder = box.run(["pgrep", "-f", "^python3 -c .*Holds the lock"]).stdout.split()
        assert f"sudo kill {holder[0]}" in said.do
        assert state_of(box) == before

        first.process.kill()
        box.run(f"timeout 60 sh -c 'until {FREE}; do sleep 0.1; done'")
    ended = deploy({box: other}, "-y")
    assert ended.code == 0, ended.said
    jobs.until(lambda: not is_held(box), "the deploy has let go")
    assert "--max-num-seqs 3" in state_of(box)


@pytest.mark.long
def test_it_is_held_where_sudo_wants_a_password(box: Box, hub: Hub, tmp_path: Path) -> None:
    box.run("echo admin:let-me-in | chpasswd")
    box.run("echo 'admin ALL=(ALL) ALL' > /etc/sudoers.d/admin")
    words = command_line()
    with Terminal(words, CHECKOUT, environment({box: standin(hub.url)}, tmp_path)) as run:
        run.wait_for("sudo password:")
        run.type("let-me-in\n")
        run.wait_for("Press enter to execute")
        assert not is_held(box)  # whoever reads the plan keeps nobody waiting
        run.type("\n")
        run.wait_for("One deploy at a time")
        jobs.until(lambda: is_held(box), "the deploy takes the lock")
        holders = [
            line for line in box.run("ps -eo args").stdout.splitlines() if "Holds the" in line
        ]
        assert not any("let-me-in" in line for line in holders)
        assert run.ended() == 0, run.said
        assert "let-me-in" not in run.said
    jobs.until(lambda: not is_held(box), "the deploy has let go")


def test_a_holder_nobody_listens_to_lets_go(tmp_path: Path) -> None:
    """As with a control that lost its power: no end of input, but what is written finds nobody."""
    source = SOURCE.replace(LOCK, str(tmp_path / "lock")).replace("BEAT_S = 15.0", "BEAT_S = 0.1")
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", source, json.dumps({"who": "me", "pid": 1})]
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, text=True) as holder:
        assert holder.stdout is not None
        assert json.loads(holder.stdout.readline()) == {"held": True}
        second = subprocess.run(words, stdin=pipe, capture_output=True, text=True, check=False)
        by = json.loads(second.stdout)["by"]
        assert (second.returncode, by["who"], by["holder"]) == (1, "me", holder.pid)
        holder.stdout.close()
        assert holder.wait(60) == 0
