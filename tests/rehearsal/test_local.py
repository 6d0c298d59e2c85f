"""`@local`: the project on the box itself, built there by a user who may use sudo."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.by_hand import DRIVER
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.judge import assert_driver, reboots
from tests.rehearsal.provision import Deploy
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.test_literal_command import (
    asked_for_a_completion,
    copy_of_the_project,
    site_settings,
)

pytestmark = pytest.mark.long

DEPLOY = "cd project && . .venv/bin/activate && pyinfra inventory deploy.py"
ELSEWHERE = "project/.venv/bin/pyinfra --chdir project inventory deploy.py"


@pytest.fixture(scope="module")
def box(
    layers: Callable[[str], str | None], hub: Hub, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Box]:
    """A box whose user `admin` has the project in his home, with its control environment."""
    project = copy_of_the_project(tmp_path_factory.mktemp("local") / "project")
    (project / "group_data/site.py").write_text(site_settings(hub))
    inventory = project / "inventory"
    inventory.write_text(inventory.read_text().replace('"ai-box"', '"@local"'))
    with Box.up("local", layer=layers("based"), owned=True) as box:
        send(project, box)
        box.run("apt-get -qy install --no-install-recommends make")  # python3-venv is there
        box.run(["env", "--chdir=project", "make"], user="admin", timeout_s=600)
        yield box


def send(folder: Path, box: Box) -> None:
    packed = subprocess.run(
        ["tar", "-C", str(folder.parent), "-c", folder.name], capture_output=True, check=True
    )
    subprocess.run([*box.ssh("admin"), "--", "tar", "-x"], input=packed.stdout, check=True)


def test_it_asks_for_the_reboot_that_it_cannot_do(box: Box) -> None:
    with reboots(box, 0):
        done = box.run(f"{DEPLOY} -y", user="admin", check=False, timeout_s=600)
    assert done.returncode == 1, done.stderr
    said = the_one_refusal(Deploy(done.returncode, done.stderr, done.stdout))
    assert "nouveau is loaded" in said.found
    assert said.do.startswith("reboot, then run again"), said
    box.reboot()


def test_a_box_builds_itself(box: Box) -> None:
    done = box.run(f"{DEPLOY} -y", user="admin", timeout_s=600)
    assert "draft tokens accepted" in done.stderr
    assert "next        curl -s localhost:8000/v1/chat/completions" in done.stderr
    assert asked_for_a_completion(box)
    assert_driver(box, DRIVER)
    again = box.run(f"{DEPLOY} -y", user="admin", timeout_s=300)
    assert "[@local] Success" not in again.stderr, again.stderr


def test_one_deploy_at_a_time_there_too(box: Box) -> None:
    free = "sudo flock -n /run/aibox-deploy.lock true"
    script = f"""
    {ELSEWHERE} -y >/dev/null 2>&1 & first=$!
    timeout 60 sh -c 'while {free}; do sleep 0.1; done'
    kill -STOP $first
    {ELSEWHERE} -y 2>&1; echo "second $? first $first"
    kill -KILL $first
    timeout 60 sh -c 'until {free}; do sleep 0.1; done' && echo released
    """
    said = box.run(script, user="admin", timeout_s=600).stdout
    assert "second 1" in said, said
    first = said.rsplit("first ", 1)[1].split()[0]
    assert f"by admin@local, process {first} there" in said, said
    assert said.rstrip().endswith("released"), said
