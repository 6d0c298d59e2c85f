"""A first run as people have their boxes: logins, shells, locales, ways in, nothing pinned yet."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.terminal import Terminal
from tests.rehearsal.test_literal_command import (
    LITERAL,
    PROMPT,
    Control,
    asked_for_a_completion,
    copy_of_the_project,
    site_settings,
)

CARDS = "tests/rehearsal/group_data/models"
LOCK = f"{CARDS}/tiny-qwen3.5-mtp.lock.json"
PASSWORD = "let-me-in"
GERMAN = "de_DE.UTF-8"


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """A box whose person is `dora`: her shell is fish, sudo wants her password, all is German."""
    with Box.up("first-run", layer=layers("driven"), owned=True) as box:
        box.run("apt-get -q update && apt-get -qy install --no-install-recommends fish locales")
        box.run(f"sed -i 's/^# {GERMAN}/{GERMAN}/' /etc/locale.gen && locale-gen")
        box.run(f"printf 'LANG={GERMAN}\\nLC_ALL={GERMAN}\\n' > /etc/default/locale")
        box.run("useradd -m -s /usr/bin/fish dora && usermod -aG sudo dora")
        box.run(f"echo dora:{PASSWORD} | chpasswd")
        box.run("install -d -o dora -m 700 ~dora/.ssh")
        box.run("install -o dora ~admin/.ssh/authorized_keys ~dora/.ssh/")
        yield box


@pytest.fixture(scope="module")
def jump(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """The host that one has to go through."""
    with Box.up("first-jump", layer=layers("bare"), owned=True) as jump:
        yield jump


@pytest.fixture
def control(box: Box, hub: Hub, tmp_path: Path) -> Control:
    """A clone with settings for this box, and a home without any ssh config yet."""
    project = copy_of_the_project(tmp_path / "project")
    (project / "group_data/site.py").write_text(site_settings(hub))
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True, mode=0o700)
    shutil.copy(box.private_key, home / ".ssh/id_box")
    (home / ".ssh/id_box").chmod(0o600)
    return Control(project, home)


def ssh_config(control: Control, box: Box, names: str, user: str, jump: Box | None = None) -> None:
    """~/.ssh/config with an entry for the box, and one for the host before it."""
    ssh = control.home / ".ssh"
    same = f"  IdentityFile {ssh}/id_box\n  UserKnownHostsFile {ssh}/known_hosts\n"
    text = f"Host {names}\n  HostName {box.address}\n  User {user}\n{same}"
    known = box.known_hosts.read_text()
    if jump is not None:
        text += f"  ProxyJump doorstep\nHost doorstep\n  HostName {jump.address}\n"
        text += f"  User guest\n{same}"
        known += jump.known_hosts.read_text()
    (ssh / "config").write_text(text)
    (ssh / "known_hosts").write_text(known)


def assert_planned(done_said: str) -> None:
    assert "Server | vllm-coder.service runs what the card says" in done_said, done_said
    assert "Traceback" not in done_said


def give_password(run: Terminal) -> None:
    run.wait_for("sudo password:")
    run.type(f"{PASSWORD}\n")


def test_from_a_clone_to_a_token(control: Control, box: Box, jump: Box) -> None:
    """Everything at once: through another host, fish, German, sudo with a password, no lock."""
    ssh_config(control, box, "ai-box", "dora", jump)
    (control.project / LOCK).unlink()
    with control.terminal(*LITERAL) as run:
        give_password(run)
        run.wait_for(PROMPT)
        assert_planned(run.said)
        tables, plan = map(run.said.index, ("--> Detected changes", "what this run would do"))
        assert tables < plan < run.said.index(PROMPT), run.said  # what is read stands last
        assert not (control.project / LOCK).exists()  # whoever reads the plan has pinned nothing
        run.type("\n")
        assert run.ended() == 0, run.said
    assert PASSWORD not in run.said
    assert run.said.count("sudo password:") == 1, run.said
    last_screen = run.said[run.said.index("--> Results:") :]
    for words in (
        "http://localhost:8000/v1",
        "draft tokens accepted",
        "ssh -fNL 8000:localhost:8000 ai-box",
        "curl -s localhost:8000/v1/chat/completions",
        "ssh -t ai-box sudo /opt/aibox/current/bin/aibox status",
    ):
        assert words in last_screen, last_screen
    assert asked_for_a_completion(box)
    assert (control.project / LOCK).read_text() == (CHECKOUT / LOCK).read_text()
    entered = "journalctl -o cat -t sshd --grep 'Accepted publickey for dora'"
    assert f"from {jump.address} " in box.run(entered).stdout


def test_a_plan_without_a_lock_is_a_plan_and_writes_nothing(control: Control, box: Box) -> None:
    ssh_config(control, box, "ai-box", "admin")
    (control.project / LOCK).unlink()
    done = control.run(*LITERAL, "--dry")
    assert done.returncode == 0, done.stderr
    assert_planned(done.stderr)
    assert "Weights | tiny-qwen3.5-mtp is pinned" in done.stderr
    assert not (control.project / LOCK).exists()


@pytest.mark.parametrize("words", [["-y"], ["--dry", "--json"]], ids=["yes", "json"])
def test_what_nobody_reads_pins_nothing(control: Control, box: Box, words: list[str]) -> None:
    ssh_config(control, box, "ai-box", "admin")
    (control.project / LOCK).unlink()
    done = control.run(*LITERAL, *words)
    assert done.returncode == 1, done.stderr
    assert "`make lock-model MODEL=tiny-qwen3.5-mtp`" in done.stderr
    assert not (control.project / LOCK).exists()


@pytest.mark.long
def test_whoever_declines_the_plan_has_pinned_nothing(control: Control, box: Box) -> None:
    ssh_config(control, box, "ai-box", "admin")
    (control.project / LOCK).unlink()
    with control.terminal(*LITERAL) as run:
        run.wait_for(PROMPT)
        run.type("no\n")
        assert run.ended() == 1, run.said
    assert not (control.project / LOCK).exists()


def test_a_hub_that_wants_a_token_says_where_it_goes(control: Control, box: Box, hub: Hub) -> None:
    ssh_config(control, box, "ai-box", "admin")
    (control.project / LOCK).unlink()
    hub.ctl(token="open-sesame")
    done = control.run(*LITERAL, "--dry")
    assert done.returncode == 1, done.stderr
    assert "needs a token (401)" in done.stderr
    assert "secrets/hub-token" in done.stderr
    secret = control.project / "secrets/hub-token"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("open-sesame\n")
    secret.chmod(0o600)
    done = control.run(*LITERAL, "--dry")
    assert done.returncode == 0, done.stderr
    assert_planned(done.stderr)
    assert "open-sesame" not in done.stderr


@pytest.mark.parametrize(
    "shell", ["/usr/bin/fish", pytest.param("/bin/dash", marks=pytest.mark.long)]
)
def test_any_login_shell_will_do(control: Control, box: Box, shell: str) -> None:
    ssh_config(control, box, "ai-box", "admin")
    box.run(f"usermod -s {shell} admin")
    try:
        done = control.run(*LITERAL, "--dry")
    finally:
        box.run("usermod -s /bin/bash admin")
    assert done.returncode == 0, done.stderr
    assert_planned(done.stderr)


def test_a_shell_that_greets_is_told_to_be_silent(control: Control, box: Box) -> None:
    ssh_config(control, box, "ai-box", "admin")
    box.run("cp ~admin/.bashrc /root/kept; cat > ~admin/.bashrc", text="echo Willkommen\n")
    try:
        done = control.run(*LITERAL, "--dry")
    finally:
        box.run("cp /root/kept ~admin/.bashrc")
    assert done.returncode == 1, done.stderr
    assert "the login shell says 'Willkommen' before each answer" in done.stderr
    assert "only where the shell is interactive" in done.stderr


@pytest.mark.parametrize("locale", ["C", pytest.param("tr_TR.UTF-8", marks=pytest.mark.long)])
def test_any_locale_here_will_do(control: Control, box: Box, locale: str) -> None:
    ssh_config(control, box, "ai-box", "root")
    done = control.run(*LITERAL, "--dry", LC_ALL=locale, LANG=locale, LANGUAGE="de:tr")
    assert done.returncode == 0, done.stderr
    assert "Server | vllm-coder.service runs what the card says" in done.stderr


@pytest.mark.long
def test_a_box_by_its_address(control: Control, box: Box) -> None:
    ssh_config(control, box, box.address, "admin")
    inventory = control.project / "inventory"
    inventory.write_text(inventory.read_text().replace("ai-box", box.address))
    done = control.run(*LITERAL, "--dry")
    assert done.returncode == 0, done.stderr
    assert f"[{box.address}]" in done.stderr


@pytest.mark.long
def test_a_box_that_ssh_has_never_seen_is_remembered(control: Control, box: Box) -> None:
    ssh_config(control, box, "ai-box", "admin")
    known = control.home / ".ssh/known_hosts"
    known.write_text("")
    done = control.run(*LITERAL, "--dry")
    assert done.returncode == 0, done.stderr
    assert box.address in known.read_text()


def test_a_box_with_another_key_than_it_had_is_refused(
    control: Control, box: Box, tmp_path: Path
) -> None:
    ssh_config(control, box, "ai-box", "admin")
    kind = box.known_hosts.read_text().split()[1].removeprefix("ssh-")
    words = ["ssh-keygen", "-q", "-t", kind, "-N", "", "-f", str(tmp_path / "other")]
    subprocess.run(words, check=True)
    other = " ".join((tmp_path / "other.pub").read_text().split()[:2])
    (control.home / ".ssh/known_hosts").write_text(f"{box.address} {other}\n")
    done = control.run(*LITERAL, "--dry")
    assert done.returncode == 1, done.stderr
    assert "no ssh connection" in done.stderr
    assert "make `ssh ai-box` work from here" in done.stderr
