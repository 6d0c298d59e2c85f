"""`pyinfra inventory deploy.py`, the words of the README, in a copy of this project.

One box for all, which is built already; test_first_run.py builds one by these words.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import standin
from tests.rehearsal.terminal import Terminal

LITERAL = ["pyinfra", "inventory", "deploy.py"]
PROMPT = "Press enter to execute"


@dataclass(frozen=True)
class Control:
    """A person's machine: a copy of the project, and a home with an ssh config."""

    project: Path
    home: Path

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: text for key, text in os.environ.items() if not key.startswith("PYINFRA")}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return {**kept, "HOME": str(self.home), "PATH": path}

    def terminal(self, *words: str) -> Terminal:
        return Terminal([*words], self.project, self.environment)

    def run(
        self, *words: str, folder: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """A run without a terminal; whatever it says, it is no traceback."""
        done = subprocess.run(
            words,
            cwd=folder or self.project,
            env={**self.environment, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done


def copy_of_the_project(target: Path) -> Path:
    """What a clone would have if all of the working tree were committed."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (CHECKOUT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(CHECKOUT / name, target / name)
    return target


def site_settings(hub: Hub) -> str:
    """group_data/site.py as a person would write it for this box: plain names and values."""
    data = {
        **standin(hub.url),
        "locks_folder": "tests/rehearsal/group_data/locks",
        "cards_folder": "tests/rehearsal/group_data/models",
        "model": "tiny-qwen3.5-mtp",
        "disk_reserve_gb": 1,
    }
    return "".join(f"{name} = {value!r}\n" for name, value in data.items())


def ssh_home(home: Path, box: Box) -> Path:
    """A home whose ~/.ssh/config names the box `ai-box`."""
    ssh = home / ".ssh"
    ssh.mkdir(parents=True, mode=0o700)
    shutil.copy(box.private_key, ssh / "id_box")
    (ssh / "id_box").chmod(0o600)
    shutil.copy(box.known_hosts, ssh / "known_hosts")
    (ssh / "config").write_text(
        f"Host ai-box\n  HostName {box.address}\n  User admin\n  IdentityFile {ssh}/id_box\n"
        f"  UserKnownHostsFile {ssh}/known_hosts\n  StrictHostKeyChecking yes\n"
    )
    return home


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("literal-command", layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture(scope="module")
def control(box: Box, hub: Hub, tmp_path_factory: pytest.TempPathFactory) -> Control:
    folder = tmp_path_factory.mktemp("control")
    project = copy_of_the_project(folder / "project")
    (project / "group_data/site.py").write_text(site_settings(hub))
    return Control(project, ssh_home(folder / "home", box))


def asked_for_a_completion(box: Box) -> str:
    """The answer of the server, asked from the box itself by nothing of ours."""
    model = json.loads(asked(box, "models"))["data"][0]["id"]
    messages = [{"role": "user", "content": "Say something."}]
    body = json.dumps({"model": model, "messages": messages, "max_tokens": 8})
    answer = json.loads(asked(box, "chat/completions", body))
    return str(answer["choices"][0]["message"]["content"])


def asked(box: Box, path: str, body: str = "") -> str:
    url = f"http://localhost:8000/v1/{path}"
    program = (
        "import sys, urllib.request as u; body = sys.stdin.buffer.read() or None; "
        f"r = u.Request({url!r}, body, {{'Content-Type': 'application/json'}}); "
        "print(u.urlopen(r, timeout=120).read().decode())"
    )
    return box.run(["python3", "-c", program], text=body).stdout


def test_it_finds_nothing_to_do_from_any_folder(control: Control, tmp_path: Path) -> None:
    """`pyinfra inventory deploy.py --dry`, and the same from elsewhere in two ways."""
    project = control.project
    for done in (
        control.run(*LITERAL, "--dry"),
        control.run(
            *f"pyinfra --chdir {project} --dry inventory deploy.py".split(), folder=tmp_path
        ),
        control.run(
            *f"pyinfra --dry {project}/inventory {project}/deploy.py".split(), folder=tmp_path
        ),
    ):
        assert done.returncode == 0, done.stderr
        assert "[ai-box] Ready" in done.stderr
        plan = [line.split() for line in done.stderr.splitlines() if " | " in line]
        assert {tuple(row[-2:]) for row in plan} == {("-", "-")}, done.stderr  # no change


def test_anything_but_enter_declines(control: Control) -> None:
    with control.terminal(*LITERAL) as run:
        run.wait_for(PROMPT)
        run.type("no\n")
        assert run.ended() == 1, run.said
    assert "Nothing was carried out" in run.said


def test_ctrl_c_is_no_success(control: Control) -> None:
    with control.terminal(*LITERAL) as run:
        run.wait_for(PROMPT)
        run.interrupt(answered_by="Interrupted")
        run.type("\x03")  # and once more, while it ends
        assert run.ended() == 1, run.said
    assert "Traceback" not in run.said


def test_nobody_to_press_enter_is_said_in_words(control: Control) -> None:
    done = control.run(*LITERAL)
    assert done.returncode == 1
    assert "no terminal to press Enter on" in done.stderr
    assert "PYINFRA_YES=1" in done.stderr
    assert not (control.project / "pyinfra-debug.log").exists()
    assert control.run(*LITERAL, PYINFRA_YES="1").returncode == 0


def test_a_box_that_failed_keeps_nobody_from_the_plan_of_the_others(control: Control) -> None:
    """Nobody is asked whether to go on; what is asked is asked once, below the rows of all."""
    inventory = control.project / "inventory"
    named = inventory.read_text()
    refused = ("by-its-settings", {"ssh_hostname": "ai-box", "serve": {"tensor-parallel-size": 2}})
    inventory.write_text(f"site = ['127.0.0.9', 'ai-box', {refused!r}]\n")
    try:
        done = control.run(*LITERAL)
    finally:
        inventory.write_text(named)
    assert done.returncode == 1, done.stderr
    assert "no ssh connection" in done.stderr
    assert "continue?" not in done.stderr
    lines = [line.split() for line in done.stderr.splitlines()]
    rows = {line[0]: " ".join(line[1:]) for line in lines if line}
    assert rows["127.0.0.9"].startswith("not reached: "), done.stderr
    assert rows["by-its-settings"].startswith("refused: "), done.stderr
    assert not rows["ai-box"].startswith(("not reached", "refused")), done.stderr
    assert "no terminal to press Enter on" in done.stderr


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["inventory", "deploy.py", "--limit", "typo"], "--limit typo names no box"),
        (["inventory", "deploy.py", "--exclude", "ai-*"], "no box is left by --exclude ai-*"),
        (["inventory", "deploy.py", "--dry", "--json", "--limit", "typo"], "--limit typo"),
        (["no-such-host", "deploy.py", "-y"], "no box in 'no-such-host'"),
        (["inventroy", "deploy.py", "--dry"], "no box in 'inventroy'"),
    ],
)
def test_no_box_to_look_at_is_never_a_success(
    control: Control, words: list[str], found: str
) -> None:
    done = control.run("pyinfra", *words)
    assert done.returncode == 1, done.stderr
    assert found in done.stderr
    assert done.stdout == ""


def test_an_empty_inventory_is_refused(control: Control) -> None:
    inventory = control.project / "inventory"
    written = inventory.read_text()
    inventory.write_text(written.replace('["ai-box"]', "[]"))
    try:
        done = control.run(*LITERAL, "-y")
    finally:
        inventory.write_text(written)
    assert done.returncode == 1
    assert "no box in 'inventory'" in done.stderr
    assert "name your box in the file `inventory`" in done.stderr


def test_a_failed_unit_may_be_tried_again_by_one_word(control: Control) -> None:
    words = "pyinfra inventory deploy.py --data retry_failed=true"
    done = control.run(*words.split(), "-y")
    assert done.returncode == 0, done.stderr


def test_going_back_is_one_command(control: Control) -> None:
    words = "pyinfra inventory tasks/rollback.py"
    done = control.run(*words.split(), "-y")
    assert done.returncode == 1, done.stderr  # there is nothing before the first
    assert "nothing served here before what runs now" in done.stderr
