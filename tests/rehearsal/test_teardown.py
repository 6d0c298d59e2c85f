"""A teardown: what deploys laid down goes, what the person had stays or comes back."""

from __future__ import annotations

import json
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal import fingerprint
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import INSTALLED, UNIT, answers, process_of, until_it_answers
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.fingerprint import Fingerprint
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import Deploy, HostData, command_line, deploy, environment, standin
from tests.rehearsal.refusal import the_one_refusal, untouched
from tests.rehearsal.seed_box import his, make_seed_box
from tests.rehearsal.terminal import Terminal
from tests.rehearsal.test_drift import check

ALL = ("--data", "remove_weights=true", "--data", "remove_driver=true")
ENTRY = "tasks/teardown.py"
NOTHING = "nothing of ours is on this box"
RELEASES, MODELS, STATE = "/opt/vllm/releases", "/srv/models", "/var/lib/aibox"

# Whatever apt, dpkg and the tools for users do leaves these otherwise than they were.
TOUCHED = re.compile(
    r"/var/lib/(dpkg/(status-old|triggers/Lock|available|updates/.*)|apt/.*|systemd/.*)"
    r"|/var/cache/(apt|ldconfig|man|debconf)(/.*)?|/etc/(passwd|group|shadow|gshadow)-"
    r"|/etc/(machine-id|ssh/.*|hostname|hosts|ld.so.cache)|/home/admin/.sudo_as_admin_successful"
    r"|/var/lib/private|/var/log(/.*)?|/root/.*"
)


def typed(*words: str) -> list[str]:
    """`pyinfra inventory tasks/teardown.py`, as a person types it, but for the inventory."""
    return command_line(*words, entry=ENTRY)


def teardown(box: Box, data: HostData, *words: str) -> Deploy:
    ended = deploy({box: data}, *words, timeout_s=900, entry=ENTRY)
    assert "Traceback" not in ended.said, ended.said
    return ended


def torn_down(box: Box, data: HostData, *words: str) -> Deploy:
    ended = teardown(box, data, "-y", *words)
    assert ended.code == 0, ended.said
    return ended


def changes_nothing(box: Box, data: HostData) -> None:
    """A second run has nothing to do, says so, and touches nothing."""
    box.run("sudo true", user="admin")  # the first one leaves a file
    box.run("systemctl stop apt-daily.timer apt-daily-upgrade.timer")  # apt works by itself else
    with untouched(box):
        planned = teardown(box, data, "--dry", "--json")
        assert planned.planned == [], planned.said
        assert NOTHING in torn_down(box, data).said


def without_times(taken: Fingerprint) -> dict[str, str]:
    """{path: kind, size, mode, owner, link}: when it was written does not count."""
    files = {path: what for path, what in taken.files.items() if not TOUCHED.fullmatch(path)}
    return {path: re.sub(r" \d{9,}\.\d+ ?", " ", what) for path, what in files.items()}


def differences(before: Fingerprint, after: Fingerprint) -> list[str]:
    a, b = without_times(before), without_times(after)
    rows = [f"{path}: {a.get(path)} -> {b.get(path)}" for path in sorted(a.keys() | b.keys())]
    return [row for row in rows if row.split(": ")[1].split(" -> ")[0] != row.split(" -> ")[1]]


@pytest.fixture
def data(hub: Hub) -> HostData:
    return standin(hub.url)


@pytest.fixture
def undeployed(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """What a serving box was before its deploy: with a driver that a person installed."""
    with Box.up("tear-before", layer=layers("driven"), owned=True) as box:
        yield box


def test_a_box_that_was_never_deployed_to(undeployed: Box, data: HostData) -> None:
    changes_nothing(undeployed, data)


def test_all_of_it_goes_and_what_was_there_stays(
    make_box: MakeBox, undeployed: Box, data: HostData
) -> None:
    box = make_box("tear-all")
    said = torn_down(box, data, *ALL).said
    assert "goes   server    vllm-coder.service is stopped and removed" in said
    assert "stays  driver    it was there before the deploy" in said
    before, after = fingerprint.taken(undeployed), fingerprint.taken(box)
    assert differences(before, after) == []
    assert before.packages == after.packages
    changes_nothing(box, data)


@pytest.mark.long
def test_weights_and_toolkit_stay_until_they_are_asked_for(
    make_box: MakeBox, data: HostData
) -> None:
    box = make_box("tear-kept")
    said = torn_down(box, data).said
    assert "--data remove_weights=true takes them too" in said
    assert f"{NOTHING} but what was kept: " in said
    kept = box.run(
        f"ls {STATE}/brought.json /etc/apt/*.d/*aibox* /usr/share/keyrings/aibox*"
    ).stdout
    last = next(line for line in said.splitlines() if "files of ours that stay with it" in line)
    assert sorted(last.partition("with it: ")[2].split(", ")) == sorted(kept.split())
    assert box.run(f"ls {STATE} /opt").stdout.split() == [
        "/opt:",
        f"{STATE}:",
        "brought.json",
    ]
    assert len(box.run(f"ls {MODELS}/*/*/*.safetensors").stdout.split()) == 1
    box.run("dpkg -s cuda-toolkit-13-0")
    changes_nothing(box, data)
    torn_down(box, data, *ALL)
    assert box.run(f"ls -d {STATE} {MODELS} /usr/local/cuda-13.0", check=False).stdout == ""
    changes_nothing(box, data)


# --- a box that is not as the last deploy left it ------------------------------------------------


@pytest.fixture(scope="module")
def made(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("tear-odd", layer=layers("serving"), owned=True) as box:
        yield box


ODD: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "a system's folder": (
        "deployed.json",
        lambda one: {**one, "release": {**one["release"], "folder": "/etc/x"}},
        "'/etc/x'",
    ),
    "the root of the disk": (
        "brought.json",
        lambda one: {**one, "places": {**one["places"], "models_folder": ["/"]}},
        "'/'",
    ),
    "a file that no deploy lays down": (
        "deployed.json",
        lambda one: {**one, "files": {**one["files"], "/home/me/notes": {}}},
        "'/home/me/notes'",
    ),
    "a way out": (
        "brought.json",
        lambda one: {**one, "folders": {"/srv/models/../../etc": False}},
        "'/srv/models/../../etc'",
    ),
    "no JSON": ("brought.json", lambda _: None, "can't be read"),
}


@pytest.mark.long
@pytest.mark.parametrize("what", ODD)
def test_a_record_that_no_deploy_wrote_is_refused(made: Box, data: HostData, what: str) -> None:
    name, change, words = ODD[what]
    kept = made.run(f"cat {STATE}/{name}").stdout
    odd = change(json.loads(kept))
    made.run(f"cat > {STATE}/{name}", text="{" if odd is None else json.dumps(odd))
    try:
        with untouched(made):
            refusal = the_one_refusal(teardown(made, data, "-y", *ALL))
    finally:
        made.run(f"cat > {STATE}/{name}", text=kept)
    assert words in refusal.found


@pytest.mark.long
def test_what_a_killed_run_left_is_taken_down_by_the_next(
    make_box: MakeBox, undeployed: Box, data: HostData
) -> None:
    """Stopped after each step, and begun again from the front, without a record of the deploy."""
    box = make_box("tear-killed")
    box.run(
        f"rm {STATE}/deployed.json {STATE}/server/history.json; cp -a /opt/aibox/current/. /root/a"
    )
    box.run(f"mkdir {MODELS}/tiny-qwen3.5-mtp/.partial-{'0' * 40} {RELEASES}/.building-x")
    before = fingerprint.taken(undeployed)
    for count in range(1, 12):
        done = box.run(["/root/a/bin/python", "-c", SOME_STEPS, str(count)])
        assert done.returncode == 0
    box.run("rm -rf /root/a")
    assert differences(before, fingerprint.taken(box)) == []
    torn_down(box, data, *ALL)
    assert differences(before, fingerprint.taken(box)) == []
    changes_nothing(box, data)


SOME_STEPS = """
import pathlib, sys
from aibox.box import teardown
from aibox.box.job import Progress
places = {"aibox": "/opt/aibox"}
spec = {"weights": True, "driver": True, "places": places}
plan = teardown.planned(spec)
for name, step in teardown.STEPS[: int(sys.argv[1])]:
    step(plan, spec, Progress(pathlib.Path("/tmp")))
"""


@pytest.mark.long
def test_what_is_not_ours_is_left_alone(made: Box, data: HostData) -> None:
    """Links out of our folders, a stranger's files beside ours, a unit that was written anew."""
    made.run(
        f"""mkdir -p /home/admin/big && echo mine >/home/admin/big/file
        ln -s /home/admin/big {RELEASES}/mine; ln -s /home/admin/big {MODELS}/linked
        ln -s /home/admin/big /var/cache/aibox/out; echo mine >{MODELS}/README
        mkdir {MODELS}/other && echo mine >{MODELS}/other/weights
        systemctl stop {UNIT}; printf '[Service]\\nExecStart=/bin/true\\n' >{INSTALLED}
        echo mine >/home/admin/of-vllm && chown vllm /home/admin/of-vllm"""
    )
    said = torn_down(made, data, *ALL).said
    assert "user vllm stays: /home/admin/of-vllm belongs to it" in said
    assert "stays  unit      vllm-coder.service was not written by a deploy" in said
    left = made.run(f"ls {RELEASES} {MODELS} /home/admin/big; id -u vllm; ls {INSTALLED}").stdout
    assert set(left.split()) >= {"mine", "linked", "README", "other", "file", INSTALLED}
    assert made.run(f"ls -d {STATE} /var/cache/aibox", check=False).stdout == ""


# --- questions and what is in use ----------------------------------------------------------------


@pytest.mark.long
def test_on_a_terminal_it_asks_before_the_plan(make_box: MakeBox, data: HostData) -> None:
    box = make_box("tear-asked")
    with tempfile.TemporaryDirectory() as folder:
        environment_ = environment({box: data}, Path(folder))
        with Terminal(typed(), CHECKOUT, environment_) as person:
            person.wait_for("Remove the weights too (")
            person.type("y\n")
            person.wait_for("Remove the CUDA toolkit (cuda-toolkit-13-0, 2 packages) too?")
            person.type("\n")
            person.wait_for("Detected changes")
            assert "goes   weights" in person.said
            assert "stays  toolkit   the CUDA toolkit" in person.said
            person.wait_for("Press enter")
            person.interrupt("Interrupted")
            assert person.ended() == 1
    assert answers(box)


@pytest.mark.long
def test_a_stranger_who_runs_our_release_is_not_cut_off(make_box: MakeBox, data: HostData) -> None:
    box = make_box("tear-used")
    sleep = "import time, vllm; time.sleep(99)"
    box.run(f"systemd-run -q --unit=stranger {RELEASES}/*/bin/python -c '{sleep}'")
    time.sleep(1)
    refusal = the_one_refusal(teardown(box, data, "-y"))
    assert "of stranger.service) uses /opt/vllm/releases/" in refusal.found
    assert answers(box)


# --- a person's own server -----------------------------------------------------------------------


@pytest.mark.long
def test_a_persons_own_unit_comes_back_and_serves(
    make_box: MakeBox, hub: Hub, data: HostData
) -> None:
    box = make_seed_box(make_box, hub, "tear-seed")
    before, mine = fingerprint.taken(box), his(box)
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    said = torn_down(box, data, *ALL).said
    assert re.search(
        r"back   server    your own vllm-coder.service, as it stood at .*started", said
    )
    until_it_answers(box)
    assert his(box) == mine
    assert "speculative" not in box.run(f"systemctl cat {UNIT}").stdout
    after = fingerprint.taken(box)
    assert differences(before, after) == []
    assert before.packages == after.packages
    changes_nothing(box, data)


@pytest.mark.long
def test_a_persons_own_unit_that_they_changed_after_an_undo_stays_as_it_stands(
    make_box: MakeBox, hub: Hub, data: HostData
) -> None:
    box = make_seed_box(make_box, hub, "tear-changed")
    for entry in ("deploy.py", "tasks/rollback.py"):
        ended = deploy({box: data}, "-y", timeout_s=900, entry=entry)
        assert ended.code == 0, ended.said
    again = deploy({box: data}, "-y", "--data", "to=found", entry="tasks/rollback.py")
    last = again.log[again.log.rindex("your own unit serves already") :]
    assert again.code == 0 and "MTP         off" in last and "Results" not in last, again.said
    foreign = [one["what"] for one in check({box: data}).box("tear-changed")["foreign"]]
    assert foreign and all(what.startswith("port ") for what in foreign)  # his proxies
    box.run(f"echo '# mine' >>{INSTALLED}; systemctl daemon-reload; systemctl restart {UNIT}")
    until_it_answers(box)
    mine, process = his(box), process_of(box)
    said = torn_down(box, data, *ALL).said
    assert "vllm-coder.service is your own and serves: it is left as it is" in said
    assert "your own unit as it stood before is kept in /root/aibox-kept-units: " in said
    assert "# mine" not in box.run("cat /root/aibox-kept-units/*").stdout
    assert "is your own, changed since it was found: it stays as it stands" in said
    assert (his(box), process_of(box)) == (mine, process)
    assert box.run(f"ls -d {STATE}", check=False).stdout == ""
    changes_nothing(box, data)


@pytest.mark.long
def test_a_box_of_an_older_version_keeps_what_may_have_been_there(
    make_box: MakeBox, data: HostData
) -> None:
    """It wrote down what it laid down, and not yet what was there before."""
    box = make_box("tear-older")
    box.run(f"rm {STATE}/brought.json")
    said = torn_down(box, data, *ALL).said
    assert "nobody wrote down whether the first deploy found it there: it stays" in said
    assert "by hand: userdel vllm" in said and "by hand: rm -r /var/cache/aibox" in said
    assert "it was there before the deploy" not in said
    assert f"{NOTHING} but what was kept: the driver and its files in /etc" in said
    kept = f"/etc/modprobe.d/aibox-nvidia.conf /etc/apt/preferences.d/aibox-nvidia {STATE}"
    box.run(f"ls {kept} /var/cache/aibox; id vllm")
    assert box.run("apt-mark showhold").stdout
    gone = f"{INSTALLED} {RELEASES}/* {MODELS}/*/* /opt/aibox"
    assert box.run(f"ls -d {gone}", check=False).stdout == ""
    changes_nothing(box, data)
    by_hand = (line.partition("by hand: ")[2] for line in said.splitlines() if "by hand: " in line)
    for command in dict.fromkeys(one.rstrip(")") for one in by_hand):
        if command.startswith(("userdel", "rm -r")):
            box.run(command)


@pytest.mark.long
@pytest.mark.parametrize("cut", ["the job is killed", "the power goes"])
def test_a_teardown_that_is_cut_off_ends_the_same(
    make_box: MakeBox, undeployed: Box, data: HostData, cut: str
) -> None:
    box = make_box("tear-cut")
    with tempfile.TemporaryDirectory() as folder:
        environment_ = environment({box: data}, Path(folder))
        with subprocess.Popen(
            typed("-y", *ALL),
            cwd=CHECKOUT,
            env=environment_,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        ) as run:
            box.run(
                "timeout 60 sh -c 'until grep -qs removing /run/aibox/jobs/teardown/progress.json;"
                " do sleep 0.02; done'"
            )
            if cut == "the power goes":
                box.power_cut()
            else:
                box.run("systemctl kill -s KILL aibox-teardown")
            said = run.communicate(timeout=120)[1]
    assert run.returncode == 1, said
    assert "Traceback" not in said, said
    box.start()
    torn_down(box, data, *ALL)
    assert differences(fingerprint.taken(undeployed), fingerprint.taken(box)) == []
    changes_nothing(box, data)


@pytest.mark.long
def test_a_bare_box_is_bare_again(make_box: MakeBox, data: HostData) -> None:
    """Driver, toolkit and packages came with the deploy; those of the distribution stay."""
    box = make_box("tear-bare", "bare")
    before = fingerprint.taken(box)
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    brought = json.loads(box.run(f"cat {STATE}/brought.json").stdout)
    said = torn_down(box, data, *ALL).said
    assert "nouveau takes the card at the next reboot" in said
    after = fingerprint.taken(box)
    left = {line.split()[0] for line in after.packages - before.packages}
    assert before.packages <= after.packages
    assert left <= set(brought["packages"]), left
    rest = [row for row in differences(before, after) if not OF_PACKAGES.match(row)]
    assert rest == []
    asked = set(box.run("apt-mark showmanual").stdout.split())
    assert not asked & left
    changes_nothing(box, data)


# What dkms leaves empty, and where the packages of the distribution that stay have their files.
OF_PACKAGES = re.compile(
    r"/usr/|/etc/(alternatives|gprofng.rc)|/var/lib/(dkms|dpkg)[/:]|/lib/modules/"
)
