"""The rehearsal boxes themselves, over real ones. Needs root; about half a minute."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rehearsal import cgroup, network, registry
from tests.rehearsal.box import Box, drop_layers, layer_exists
from tests.rehearsal.machine import CHECKOUT, RehearsalError, cache_folder, command
from tests.rehearsal.registry import network_held

Machine = dict[str, object]


@pytest.fixture(scope="module")
def box() -> Iterator[Box]:
    """One box for the tests that leave it running."""
    with Box.up("boxes-test", owned=True) as made:
        yield made


def machine_state() -> Machine:
    """All that boxes change on the machine, without what other boxes, and images that are being
    built, have there now."""
    with registry.opened() as record:  # held, so that nobody comes or goes while we look
        shared = bool(record.boxes or record.holders)
        links = {network.link_name(name) for name in record.boxes}
        links |= {network.BRIDGE} if shared else set()
        folders = {entry.folder for entry in record.boxes.values()}
        state: Machine = {
            "addresses": [
                (link["ifname"], link.get("mtu"), [one["local"] for one in link["addr_info"]])
                for link in json.loads(command("ip", "-j", "addr"))
                if link["ifname"] not in links
            ],
            "mounts": [
                line
                for line in Path("/proc/self/mounts").read_text().splitlines()
                if not any(folder in line for folder in (*folders, ".building/"))
            ],
            "namespaces": command("ip", "netns", "list"),
            "groups": {
                group.name
                for any_group in cgroup.folders("*")
                for group in any_group.parent.glob(any_group.name)
                if not group.name.startswith("rehearsal-build-")
            }
            - {f"rehearsal-{name}" for name in record.boxes},
            "disks": {str(disk) for disk in (cache_folder() / "boxes").glob("*/")} - folders,
        }
        if not shared:
            state["routes"] = command("ip", "-j", "route", "show", "table", "all")
            state["tables"] = command("nft", "list", "tables")
            state["forwarding"] = network.forwarding()
    return state


def assert_as_found(before: Machine) -> None:
    """What others are in the middle of passes by; what was left behind does not."""
    until_s = time.monotonic() + 60
    while (changed := changes(before, machine_state())) and time.monotonic() < until_s:
        time.sleep(0.5)
    assert not changed, f"not as found: {changed}"


def changes(before: Machine, after: Machine) -> dict[str, tuple[object, object]]:
    both = before.keys() & after.keys()
    return {key: (before[key], after[key]) for key in both if after[key] != before[key]}


def cli(*words: str, folder: Path = CHECKOUT) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.rehearsal", *words],
        cwd=folder,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPATH"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(true: Callable[[], object], timeout_s: float = 120) -> None:
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def test_a_box_runs_systemd_and_lets_its_users_in(box: Box) -> None:
    assert box.run("systemctl is-system-running --wait").stdout == "running\n"
    assert box.run("sudo -n id -u", user="admin").stdout == "0\n"
    assert box.run("sudo -n id -u", user="guest", check=False).returncode != 0
    assert box.run("hostname; cat", text="said").stdout == "boxes-test\nsaid"
    with pytest.raises(RehearsalError, match=r"ended with 3: no"):
        box.run("echo no >&2; exit 3")


def test_a_box_is_a_bare_server_that_can_install_packages(box: Box) -> None:
    there = box.run("python3 -m ensurepip; which gcc curl aria2c; apt-get -s install hello")
    assert "No module named ensurepip" in there.stderr
    assert "/usr/bin" not in there.stdout
    assert "Inst hello" in there.stdout


def test_ssh_config_serves_any_ssh_client(box: Box) -> None:
    words = ["ssh", "-F", str(box.ssh_config), box.name, "whoami"]
    assert subprocess.run(words, check=False, capture_output=True, text=True).stdout == "admin\n"


def test_a_box_reaches_a_stand_in_server_on_the_bridge(box: Box) -> None:
    with network_held() as address, socket.create_server((address, 0)) as server:
        target = (address, server.getsockname()[1])
        call = f"import socket; socket.create_connection({target}, 30).send(b'hello')"
        box.run(["python3", "-c", call])
        server.settimeout(30)
        assert server.accept()[0].recv(5) == b"hello"


def test_a_reboot_is_a_new_boot_with_its_journal_kept(box: Box) -> None:
    boot = "cat /proc/sys/kernel/random/boot_id"
    before, began = box.run(boot).stdout, time.monotonic()
    box.reboot()
    assert box.run(boot).stdout != before
    uptime = float(box.run("cat /proc/uptime").stdout.split()[0])
    assert uptime < time.monotonic() - began + 1  # a boot's clock begins within its first second
    assert len(box.run("journalctl --list-boots -q | grep -v IDX").stdout.splitlines()) >= 2


def test_a_reboot_ordered_from_inside_comes_back_with_a_clean_network(box: Box) -> None:
    box.run("ip route add 203.0.113.0/24 dev eth0")
    old = box.root
    box.run("systemctl reboot", check=False)
    until(lambda: not old.exists())
    box.wait()
    assert "203.0.113" not in box.run("ip route").stdout


def test_a_power_cut_keeps_the_disk(box: Box) -> None:
    box.run("echo kept > /root/kept")
    box.power_cut()
    assert not box.is_running
    box.start()
    assert box.run("cat /root/kept").stdout == "kept\n"


def test_reset_makes_the_box_pristine(box: Box) -> None:
    box.run("echo lost > /root/lost; rm /usr/bin/less")
    box.reset()
    assert box.run("ls /root/lost; which less", check=False).stdout == "/usr/bin/less\n"


def test_two_boxes_reach_each_other(box: Box, tmp_path: Path) -> None:
    (tmp_path / "shown").write_text("from outside")
    with Box.up("boxes-test-2", binds={tmp_path: "/srv/shown"}, owned=True) as second:
        assert " 0% packet loss" in box.run(f"ping -c1 -W20 {second.address}").stdout
        assert second.run("cat /srv/shown/shown; touch /srv/shown/back").stdout == "from outside"
    assert (tmp_path / "back").exists()


def test_boxes_start_from_a_layer_in_seconds_each_with_its_own_identity() -> None:
    key = str(os.getpid())
    identity = "cat /etc/machine-id /etc/hostname"
    try:
        began = time.monotonic()
        with Box.up("layer-test", owned=True) as first:
            fresh_s = time.monotonic() - began
            first.run("mkdir -p /opt/a/b; echo layered > /opt/a/b/file; rm /usr/bin/less")
            name = first.snapshot("boxes-test", key)
            assert layer_exists("boxes-test", key)
            began = time.monotonic()
            with Box.up("layer-test-2", layer=name, owned=True) as second:
                assert time.monotonic() - began < 5 + 3 * fresh_s
                moved = "mv /opt/a /opt/c; cat /opt/c/b/file; which less"  # a folder of the layer
                assert second.run(moved, check=False).stdout == "layered\n"
                first.start()
                assert first.run("cat /opt/a/b/file").stdout == "layered\n"
                assert first.run(identity).stdout != second.run(identity).stdout
                assert drop_layers("boxes-test", "other") == []  # it is in use
                assert "layer-test-2" in second.run("journalctl -b -q -n 500 -o short").stdout
    finally:
        assert drop_layers("boxes-test", "other") == [f"boxes-test-{key}"]
    assert not layer_exists("boxes-test", key)
    with pytest.raises(RehearsalError, match="There is no layer"):
        Box.up("layer-test-2", layer=name)


def test_a_small_disk_is_full_when_it_is_full_and_survives_a_power_cut() -> None:
    before = machine_state()
    with Box.up("small-test", disk_limit_mb=64, owned=True) as small:
        fill = small.run("dd if=/dev/zero of=/root/big bs=1M count=100", check=False)
        assert "No space left on device" in fill.stderr
        small.power_cut()
        small.start()
        assert int(small.run("stat -c %s /root/big").stdout) > 50_000_000
    assert_as_found(before)


def test_the_machine_is_left_as_found_also_after_an_interrupted_up() -> None:
    before = machine_state()
    name = Box("interrupted").machine_name
    moments: list[tuple[int, Callable[[], object]]] = [
        (signal.SIGINT, lambda: name in registry.RECORD.read_text()),
        (signal.SIGTERM, lambda: cgroup.processes(name)),
        (signal.SIGINT, lambda: cgroup.leader(name)),
    ]
    with closing_down("interrupted"):
        for number, moment in moments:
            process = cli("up", "interrupted")
            until(lambda: sent(process, number, moment))  # noqa: B023  it is over in this round
            output, errors = process.communicate()
            assert (process.returncode, output, errors) == (1, "", "interrupted\n")
            assert_as_found(before)


def sent(process: subprocess.Popen[str], number: int, moment: Callable[[], object]) -> bool:
    """Send a signal if it is the moment. Whoever brings a box up has to open the record at the end:
    it can't be up between the look and the signal."""
    with registry.opened():
        if here := bool(moment()):
            process.send_signal(number)
    return here


@contextmanager
def closing_down(name: str) -> Iterator[None]:
    """A box that came up although it should not is gone for the next test."""
    try:
        yield
    finally:
        Box(name).down()


def test_what_a_killed_up_leaves_is_cleared_away_by_the_next_command() -> None:
    before = machine_state()
    name = Box("killed").machine_name
    with closing_down("killed"):
        process = cli("up", "killed")
        until(lambda: sent(process, signal.SIGKILL, lambda: cgroup.leader(name)))
        process.communicate()
        listing = cli("list", "--everywhere")
        assert name not in listing.communicate()[0]
        assert_as_found(before)


def test_two_checkouts_can_have_a_box_of_the_same_name(box: Box, tmp_path: Path) -> None:
    before = machine_state()
    compiled = shutil.ignore_patterns("__pycache__")  # others write there while we copy
    for part in ("tests/rehearsal", "aibox"):
        shutil.copytree(CHECKOUT / part, tmp_path / part, ignore=compiled)
    (tmp_path / "tests" / "__init__.py").touch()
    twin = cli("up", box.name, folder=tmp_path)
    output, errors = twin.communicate()
    assert twin.returncode == 0, errors
    assert "is up at" in output
    assert box.run("hostname").stdout == "boxes-test\n"
    shutil.rmtree(tmp_path)  # a checkout that is gone needs no box any more
    assert_as_found(before)


def test_wrong_wishes_are_refused_in_a_sentence() -> None:
    process = cli("up", "No_Name")
    output, errors = process.communicate()
    assert (process.returncode, output) == (1, "")
    assert "is no name for a box" in errors
    assert "Traceback" not in errors
    process = cli("ssh", "nobody")
    assert "There is no box 'nobody'" in process.communicate()[1]
    assert process.returncode == 1
