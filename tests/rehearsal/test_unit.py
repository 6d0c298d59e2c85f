"""The server's unit on a box: how it starts, waits, ends and comes back, and what it may do.

One box with the stand-in release for the whole file; a test that changes it puts it back.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation import gpu

UNIT = "/etc/systemd/system/vllm-coder.service"
DROP_INS = "/run/systemd/system/vllm-coder.service.d"
SCRIPT = "/etc/standin-script.json"
AIBOX = "/opt/aibox/current/bin/aibox"
PROBE = Path(__file__).with_name("sandbox_probe.py")
MIB = 2**20
# What a unit with a network, the host's files, a GPU and a JIT can't give away. See docs/server.md.
EXPOSURE = 1.6

MAY_NOT = {
    "list /home": "EACCES",
    "list /root": "EACCES",
    "see another's /tmp": "ENOENT",
    "write /usr": "EROFS",
    "write /etc": "EROFS",
    "write the release": "EROFS",
    "write the weights": "EROFS",
    "write /var/lib/aibox": "EROFS",
    "make a suid file": "EPERM",
    "mount": "EPERM",
    "make a namespace": "EPERM",
    "become root": "EPERM",
    "set the clock": "EPERM",
    "name the host": "EPERM",
    "trace a process": "EPERM",
    "send packets": "EAFNOSUPPORT",
    "run in real time": "EPERM",
    "kill pid 1": "EPERM",
    "open /dev/net/tun": "EPERM",
    "pids of others": "0",
    "capabilities": "0" * 32,
    "no new privileges": "1",
    "core files": "0",
}
MAY = (
    "read the weights",
    "read what starts were measured",
    "write every cache",
    "compile and load",
    "write and run memory",
    "share memory",
    "make a file in memory",
    "bind to a node",
    "bind to a core",
    "be nice",
    "open files",
    "watch a child",
    "listen",
    "ask the kernel for routes",
    "join two processes",
    "use io_uring or be told",
)


@pytest.fixture(scope="module")
def served(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("unit", layer=layers("serving"), owned=True) as box:
        yield box


@pytest.fixture
def box(served: Box) -> Iterator[Box]:
    """The box with its server up, and as it was again at the test's end."""
    served.run("systemctl start vllm-coder")
    yield served
    gpu.write_state(served.root, gpu.CARDS["workstation"])
    served.run(f"rm -rf {DROP_INS} {SCRIPT}; systemctl daemon-reload")
    served.run("systemctl reset-failed vllm-coder; systemctl restart vllm-coder")


def drop_in(box: Box, *lines: str) -> None:
    text = "\n".join(["[Service]", *lines, ""])
    box.run(f"mkdir -p {DROP_INS} && cat >{DROP_INS}/test.conf", text=text)
    box.run("systemctl daemon-reload")


def script(box: Box, **wanted: object) -> None:
    """From its next start on, what the stand-in does wrong."""
    box.run(f"cat >{SCRIPT}", text=json.dumps(wanted))
    drop_in(box, f"Environment=VLLM_STANDIN_SCRIPT={SCRIPT}")


def properties(box: Box, *names: str) -> dict[str, str]:
    said = box.run(f"systemctl show vllm-coder -p {','.join(names)}").stdout
    return dict(line.partition("=")[::2] for line in said.splitlines())


def value(box: Box, name: str) -> str:
    return properties(box, name)[name]


def seconds(text: str) -> float:
    """As systemd shows a span: "1h 32min 5s"."""
    size = {"h": 3600.0, "min": 60.0, "s": 1.0, "ms": 0.001}
    return sum(float(n) * size[unit] for n, unit in re.findall(r"([\d.]+)(h|min|s|ms)\b", text))


def until(box: Box, condition: str, within: int = 120) -> None:
    box.run(["timeout", str(within), "sh", "-c", f"until {condition}; do sleep 0.1; done"])


def journal(box: Box, since: str) -> str:
    told = f"journalctl -u vllm-coder -o cat --no-pager --after-cursor='{since}'"
    return box.run(f"journalctl --sync; {told}").stdout


def now(box: Box) -> str:
    said = box.run("journalctl -n 0 --show-cursor --no-pager -q").stdout
    return said.partition("cursor: ")[2].strip()


def busy_card(used_mib: int) -> gpu.State:
    state = gpu.CARDS["workstation"]
    holder: gpu.GpuProcess = {"pid": 1, "name": "training", "used_mib": used_mib}
    card: Any = {**state["cards"][0], "used_mib": used_mib, "processes": [holder]}
    return {**state, "cards": [card]}


# --- as systemd reads it -------------------------------------------------------------------------


def test_systemd_has_nothing_to_say_about_it_and_little_is_exposed(served: Box) -> None:
    assert_well_written(served)


@pytest.mark.long
def test_nor_has_the_systemd_of_debian_13(served: Box) -> None:
    text = served.run(f"cat {UNIT}").stdout
    programs = set(re.findall(r"^Exec\w+=[+-]*(/\S+)", text, re.MULTILINE)) - {"/bin/sh"}
    with Box.up("unit13", suite="trixie", owned=True) as newer:
        for program in programs:
            newer.run(f"install -D /bin/true {program}")
        newer.run(f"cat >{UNIT}", text=text)
        assert_well_written(newer)


def assert_well_written(box: Box) -> None:
    verified = box.run(f"systemd-analyze verify {UNIT} 2>&1", check=False)
    assert (verified.returncode, verified.stdout) == (0, "")
    box.run("systemctl daemon-reload")
    scored = box.run("systemd-analyze security --no-pager vllm-coder").stdout
    found = re.search(r"exposure level for vllm-coder.service: ([\d.]+)", scored)
    assert found, scored
    assert float(found[1]) <= EXPOSURE, scored


def test_five_starts_that_end_as_late_as_can_be_are_counted_together(served: Box) -> None:
    names = ("StartLimitIntervalUSec", "TimeoutStartUSec", "TimeoutStopUSec", "RestartUSec")
    found = properties(served, *names)
    interval, *each = (seconds(found[name]) for name in names)
    assert value(served, "StartLimitBurst") == "5"
    assert interval >= 5 * sum(each)


# --- what it may do ------------------------------------------------------------------------------


def test_it_may_do_what_vllm_and_cuda_need_and_nothing_else(box: Box) -> None:
    serve = box.run("systemctl show vllm-coder -p ExecStart --value").stdout
    weights = re.search(r" serve (\S+)", serve)
    release = re.search(r"path=(\S+)/bin/vllm", serve)
    assert weights and release, serve
    box.run("cat >/usr/local/bin/sandbox_probe.py", text=PROBE.read_text())
    box.run("touch /tmp/anothers")
    probe = f"/usr/bin/python3 /usr/local/bin/sandbox_probe.py {weights[1]} {release[1]}"
    drop_in(box, "ExecStart=", f"ExecStart={probe}", "ExecStartPost=", "Restart=no")
    since = now(box)
    box.run("systemctl restart vllm-coder")
    until(box, "! systemctl is-active -q vllm-coder")
    said = journal(box, since)
    found = json.loads(said.partition("PROBED ")[2].splitlines()[0])
    assert {name: found[name] for name in MAY_NOT} == MAY_NOT
    assert found["write /proc/sys"] in ("EROFS", "EACCES")
    assert {name: found[name] for name in MAY} == dict.fromkeys(MAY, "yes")
    # no driver stands behind the emulated nodes: "no such device" comes after "not permitted"
    nodes = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm")
    assert [found[f"open {node}"] for node in nodes] == ["ENXIO"] * 3


# --- before it starts ----------------------------------------------------------------------------


def test_it_waits_for_the_card_and_says_who_holds_it(box: Box) -> None:
    box.run("systemctl stop vllm-coder")
    gpu.write_state(box.root, busy_card(95_000))
    since = now(box)
    box.run("systemctl start --no-block vllm-coder")
    until(box, "journalctl -u vllm-coder -n 5 --no-pager | grep -q 'waiting for the card'")
    gpu.write_state(box.root, gpu.CARDS["workstation"])
    until(box, "systemctl is-active -q vllm-coder")
    told = [line for line in journal(box, since).splitlines() if "the card" in line]
    assert len(told) == 2, told
    assert re.match(
        r"waiting for the card, at most \d+ s: 2\.\d+ GiB of the card are free", told[0]
    )
    assert "held by pid 1 training 95000 MiB; wanted: 14.25 GiB free" in told[0]
    assert told[1].startswith("the card is free after ")


def test_a_card_that_stays_taken_ends_the_wait_in_words(box: Box) -> None:
    gpu.write_state(box.root, busy_card(95_000))
    began = time.monotonic()
    ended = box.run(f"{AIBOX} gpu --utilization 0.87 --seconds 1", check=False)
    assert ended.returncode == 1
    assert time.monotonic() - began < 40
    assert "held by pid 1 training 95000 MiB" in ended.stderr
    assert "expected  82.62 GiB free, for gpu-memory-utilization 0.87" in ended.stderr
    assert "\ndo        end what holds the memory" in ended.stderr


def test_a_box_without_nvml_or_with_a_torn_driver_says_so_at_once(box: Box) -> None:
    asked = f"{AIBOX} gpu --utilization 0.87 --seconds 60"
    hidden = (
        "for f in /usr/lib/x86_64-linux-gnu/libnvidia-ml.so*; do mount --bind /dev/null $f; done"
    )
    ended = box.run(["unshare", "-m", "sh", "-c", f"{hidden}; {asked}"], check=False)
    assert (ended.returncode, "there is no NVML on this box" in ended.stderr) == (1, True)
    torn: Any = {**gpu.CARDS["workstation"], "init_error": gpu.LIBRARY_VERSION_MISMATCH}
    gpu.write_state(box.root, torn)
    ended = box.run(asked, check=False)
    assert ended.returncode == 1
    assert "do        reboot" in ended.stderr


def test_another_card_than_the_wanted_one_does_not_do(box: Box) -> None:
    ended = box.run(f"{AIBOX} gpu --uuid GPU-other --utilization 0.5 --seconds 0", check=False)
    assert ended.returncode == 1
    assert "expected  the card GPU-other" in ended.stderr


def test_a_module_that_comes_while_it_starts_serves_the_next_try(box: Box) -> None:
    """systemd looks the devices up before the first ExecStartPre, which is what loads it."""
    box.run("systemctl stop vllm-coder nvidia-persistenced")
    box.run("modprobe -r nvidia-drm nvidia-uvm nvidia-modeset nvidia")
    since = now(box)
    box.run("systemctl start --no-block vllm-coder")
    until(box, "systemctl is-active -q vllm-coder")
    assert value(box, "NRestarts") == "1"
    assert "found     there is no /dev/nvidiactl, /dev/nvidia-uvm" in journal(box, since)
    box.run("systemctl start nvidia-persistenced")


# --- while it starts -----------------------------------------------------------------------------


def test_a_process_that_dies_while_it_starts_is_noticed_at_once(box: Box) -> None:
    script(box, ready_after_s=50)
    box.run("systemctl stop vllm-coder")
    since = now(box)
    box.run("systemctl start --no-block vllm-coder")
    until(box, "pgrep -f 'aibox ready'")
    box.run("kill -9 $(systemctl show vllm-coder -p MainPID --value)")
    until(box, "test $(systemctl show vllm-coder -p SubState --value) = auto-restart", within=40)
    assert "did not answer" not in journal(box, since)


def test_starts_that_fail_end_after_five(box: Box) -> None:
    script(box, fail={"lines": ["ValueError: a start that fails"]})
    drop_in(box, f"Environment=VLLM_STANDIN_SCRIPT={SCRIPT}", "RestartSec=100ms")
    box.run("systemctl reset-failed vllm-coder")
    since = now(box)
    box.run("systemctl restart vllm-coder", check=False)
    until(box, "systemctl is-failed -q vllm-coder")
    time.sleep(0.5)
    assert value(box, "ActiveState") == "failed"
    assert journal(box, since).count("Starting vllm-coder.service") == 5


# --- its end -------------------------------------------------------------------------------------


def test_a_dead_engine_brings_it_back_although_it_ends_with_0(box: Box) -> None:
    pid = value(box, "MainPID")
    box.run("pkill -9 -f VLLM::EngineCore")
    until(box, f"test $(systemctl show vllm-coder -p MainPID --value) != {pid}")
    until(box, "systemctl is-active -q vllm-coder")


def test_nothing_of_it_is_left_when_it_is_stopped(box: Box) -> None:
    box.run("runuser -u vllm touch /dev/shm/psm_left")
    box.run("systemctl stop vllm-coder")
    assert box.run("pgrep -u vllm || true").stdout == ""
    assert not box.run("ls /dev/shm").stdout
