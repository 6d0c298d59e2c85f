"""The driver stage: from whatever state a box is in to the one driver, with at most one reboot.

Each box is judged from outside. What a run would mend it also names in its plan; the run after it
has nothing to do.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.rehearsal import by_hand, jobs, judge
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import gpu, nvidia_repository
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.judge import assert_driver, reboots
from tests.rehearsal.provision import Deploy, HostData, deploy, files_folder, standin
from tests.rehearsal.refusal import Said, refusals_in, the_one_refusal
from tests.rehearsal.stepping import stepping
from tests.rehearsal.test_literal_command import asked_for_a_completion

DRIVER, OTHER = by_hand.DRIVER, "595.71.05"
OTHER_KERNEL = "7.0.0-1-amd64"  # one for which the repository has headers
LOADED = f"{DRIVER} is what is loaded, or a reboot"
UNTIL_SERVING = "timeout 60 sh -c 'until systemctl is-active -q vllm-coder; do sleep 0.2; done'"


def data_of(hub: Hub, **settings: object) -> HostData:
    """The stand-in release, on a box whose server may be interrupted."""
    return {**standin(hub.url), "reboot_while_serving": True, **settings}


def run_well(box: Box, hub: Hub, **settings: object) -> Deploy:
    ended = deploy({box: data_of(hub, **settings)}, "-y")
    assert ended.code == 0, ended.said
    assert refusals_in(ended) == [], ended.said
    return ended


def run_refused(box: Box, hub: Hub, **settings: object) -> Said:
    return the_one_refusal(deploy({box: data_of(hub, **settings)}, "-y"))


def planned(box: Box, hub: Hub, **settings: object) -> list[str]:
    names = deploy({box: data_of(hub, **settings)}, "--dry", "--json").planned
    return [name.rpartition(" | ")[2] for name in names]


def assert_converged(box: Box, hub: Hub, version: str = DRIVER, **settings: object) -> None:
    """The driver by everybody's word, nothing left for a further run, and a server that answers."""
    assert_driver(box, version)
    assert planned(box, hub, **settings) == []
    box.run(UNTIL_SERVING)
    assert asked_for_a_completion(box)


def reboot(box: Box, commands: str) -> None:
    box.run(commands)
    box.reboot()


def faulty(**faults: Any) -> gpu.State:
    return cast(gpu.State, {**gpu.CARDS["workstation"], **faults})


# --- from nothing, and from one branch to another -----------------------------------------------


@pytest.fixture(scope="module")
def fresh(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """A box without a driver. The first test gives it one, the next ones others."""
    with Box.up("driver-fresh", layer=layers("based"), owned=True) as box:
        yield box


@pytest.mark.long
def test_a_box_without_a_driver_serves_after_one_run_with_one_reboot(fresh: Box, hub: Hub) -> None:
    with reboots(fresh, 1):
        ended = run_well(fresh, hub, reboot_while_serving=False)
    said = ended.log
    assert "rebooting: nouveau is loaded and holds the card" in said
    assert re.search(r"up again after \d+ s, with a new boot id", said)
    assert "draft tokens accepted" in said
    assert_converged(fresh, hub)
    with reboots(fresh, 0):
        again = run_well(fresh, hub, reboot_while_serving=False)
    assert "Success" not in again.log.split("--> Results")[0], again.log


@pytest.mark.long
def test_dkms_stays_the_distributions_own(fresh: Box) -> None:
    offered = fresh.run("apt-cache madison dkms").stdout
    assert "1:3.3.0-1" in offered  # NVIDIA's, newer
    version = judge.host_of(fresh).package("dkms").version
    assert version in offered and not version.startswith("1:"), version


@pytest.mark.long
def test_unattended_upgrades_pass_the_driver_over(fresh: Box) -> None:
    listed = fresh.run("apt-config dump Unattended-Upgrade::Package-Blacklist").stdout
    assert '"nvidia-"' in listed and '"libnvidia-"' in listed and '"libcuda1"' in listed
    would = fresh.run("apt-get -s -q dist-upgrade").stdout
    assert not re.search(r"^Inst \S*(nvidia|cuda)", would, re.MULTILINE), would


@pytest.mark.long
@pytest.mark.parametrize("version", [OTHER, DRIVER])
def test_another_branch_and_back_takes_one_run_with_one_reboot_each(
    fresh: Box, hub: Hub, version: str
) -> None:
    before = judge.host_of(fresh).file("/sys/module/nvidia/version").content_string.strip()
    with reboots(fresh, 1):
        ended = run_well(fresh, hub, driver_version=version)
    assert f"rebooting: the loaded module is {before}, not {version}" in ended.log
    assert_converged(fresh, hub, version, driver_version=version)


@pytest.mark.long
def test_a_driver_that_is_right_already_is_neither_installed_nor_rebooted(
    make_box: MakeBox, hub: Hub
) -> None:
    box = make_box("driver-right", "driven")
    before = judge.installations(box)
    assert before > 0
    with reboots(box, 0):
        run_well(box, hub)
    assert judge.installations(box) == before
    assert_converged(box, hub)


# --- mends --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """One deployed box, which each test breaks and has mended."""
    with Box.up("driver-mends", layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


def install_past_hold_and_pin(box: Box, version: str, module: str = by_hand.OPEN) -> None:
    """As somebody does it on a deployed box; the driver that is loaded stays."""
    names = (*by_hand.USERLAND, "nvidia-modprobe", module)
    box.run(
        "apt-mark unhold $(apt-mark showhold); DEBIAN_FRONTEND=noninteractive apt-get -qy "
        "--allow-downgrades --no-install-recommends install "
        + " ".join(f"{name}={version}-1" for name in names)
    )


@pytest.mark.long
def test_a_driver_upgraded_under_its_loaded_module(served: Box, hub: Hub) -> None:
    install_past_hold_and_pin(served, OTHER)
    assert "Driver/library version mismatch" in served.run("nvidia-smi", check=False).stderr
    with reboots(served, 0):  # 580 is what is loaded still: installed again, it fits
        run_well(served, hub)
    assert_converged(served, hub)


@pytest.mark.long
def test_a_driver_upgraded_and_booted_is_brought_back(served: Box, hub: Hub) -> None:
    install_past_hold_and_pin(served, OTHER)
    served.reboot()
    with reboots(served, 1):
        run_well(served, hub)
    assert_converged(served, hub)


@pytest.mark.long
def test_a_run_killed_between_installation_and_reboot(make_box: MakeBox, hub: Hub) -> None:
    """From a bare box, `make test` has it: the kill harness's cell pyinfra-killed-in-reboot."""
    box = make_box("driver-killed", "driven")
    data = data_of(hub, driver_version=OTHER)
    with reboots(box, 0), stepping(box, data) as run:
        while (step := run.next()) and not step.operation.startswith(f"{OTHER} is what is loaded"):
            run.go_on()
        assert step is not None and step.state == "begins", run.log.read_text()
        run.kill()
    loaded = "cat /sys/module/nvidia/version; modinfo -F version nvidia"
    assert box.run(loaded).stdout.split() == [DRIVER, OTHER]
    with reboots(box, 1):
        run_well(box, hub, driver_version=OTHER)
    assert_converged(box, hub, OTHER, driver_version=OTHER)


@pytest.mark.long
@pytest.mark.parametrize("word", ["unpack", "configure"])
def test_a_power_cut_in_the_middle_of_apt(make_box: MakeBox, hub: Hub, word: str) -> None:
    box = make_box("driver-power-cut", "driven")
    sign = {"unpack": "upgrade nvidia-", "configure": "configure nvidia-kernel-open-dkms"}[word]
    with jobs.deploying(box, data_of(hub, driver_version=OTHER)):
        seen = f'grep -q "{sign}.* {OTHER}" /var/log/dpkg.log'
        box.run(f"timeout 300 sh -c 'until {seen}; do :; done'")
        box.power_cut()
    box.start()
    run_well(box, hub, driver_version=OTHER)
    assert_converged(box, hub, OTHER, driver_version=OTHER)


@pytest.mark.long
def test_a_package_left_half_configured(served: Box, hub: Hub) -> None:
    """A build that failed, as in somebody's own `apt-get install`."""
    gpu.write_state(served.root, faulty(build_error="cc1: error: no such luck"))
    served.run(
        "! DEBIAN_FRONTEND=noninteractive apt-get -qy "
        "--reinstall --allow-change-held-packages install nvidia-kernel-open-dkms"
    )
    assert "nvidia-kernel-open-dkms" in served.run("dpkg --audit").stdout
    gpu.write_state(served.root, gpu.CARDS["workstation"])
    with reboots(served, 0):
        ended = run_well(served, hub)
    assert "Driver" in ended.said
    assert_converged(served, hub)


@pytest.mark.long
def test_nouveau_back_after_a_stale_initramfs(served: Box, hub: Hub) -> None:
    """The blacklist is on the disk; the initramfs was made without it."""
    kept = "/etc/modprobe.d/aibox-nvidia.conf"
    others = "/etc/modprobe.d/blacklist-nouveau.conf"
    reboot(
        served,
        f"rm -f {others}; mv {kept} /root/; update-initramfs -u -k all; cp /root/aibox-nvidia.conf"
        f" {kept}",
    )
    assert judge.host_of(served).file("/sys/module/nouveau").exists
    with reboots(served, 1):
        run_well(served, hub)
    assert_converged(served, hub)


@pytest.mark.long
def test_an_initramfs_older_than_the_blacklist_is_renewed_without_a_reboot(
    served: Box, hub: Hub
) -> None:
    served.run("touch /etc/modprobe.d/aibox-nvidia.conf")
    assert planned(served, hub) == ["Initramfs without nouveau"]
    with reboots(served, 0):
        run_well(served, hub)
    assert_converged(served, hub)


@pytest.mark.long
def test_the_proprietary_module_is_replaced_by_the_open_one(served: Box, hub: Hub) -> None:
    install_past_hold_and_pin(served, DRIVER, by_hand.PROPRIETARY)
    served.reboot()
    assert served.run("nvidia-smi", check=False).stdout.strip() == "No devices were found"
    with reboots(served, 1):
        run_well(served, hub)
    assert not judge.host_of(served).package(by_hand.PROPRIETARY).is_installed
    assert_converged(served, hub)


@pytest.mark.long
def test_doubled_and_foreign_sources_of_nvidia_are_cleaned(served: Box, hub: Hub) -> None:
    repositories = nvidia_repository.served(files_folder())
    url = f"{repositories.url(hub.url)}/debian12/x86_64/"
    lists = "/etc/apt/sources.list.d"
    served.run(
        f"""set -e
        apt-get -qy install cuda-keyring
        sed -i 's|https://\\S*|{url}|' {lists}/cuda-debian12-x86_64.list
        cat {lists}/cuda-debian12-x86_64.list
        printf 'deb [trusted=yes] http://127.0.0.1:9/compute/cuda/repos/debian11/x86_64/ /\\n' \\
          >{lists}/mine.list
        printf 'deb http://127.0.0.1:9/mine ./\\n' >>{lists}/mine.list"""
    )
    clash = served.run("apt-get update 2>&1", check=False).stdout
    assert "Conflicting values set for option Signed-By" in clash
    assert planned(served, hub) == ["Doubled NVIDIA sources"]
    with reboots(served, 0):
        run_well(served, hub)
    host = judge.host_of(served)
    assert not host.file(f"{lists}/cuda-debian12-x86_64.list").exists
    assert host.file(f"{lists}/mine.list").content_string == "deb http://127.0.0.1:9/mine ./\n"
    host.check_output(f"rm {lists}/mine.list; apt-get -q update; apt-get -qy purge cuda-keyring")
    assert_converged(served, hub)


@pytest.mark.parametrize(
    ("undone", "mended"),
    [
        ("rm /etc/apt/preferences.d/aibox-nvidia", "The driver's version is pinned"),
        ("apt-mark unhold nvidia-persistenced", f"Driver {DRIVER}, open modules"),
        ("rm /etc/apt/apt.conf.d/52aibox-nvidia", "Unattended upgrades leave it alone"),
        ("systemctl disable --now nvidia-persistenced", "Persistence starts at boot"),
    ],
    ids=["pin", "hold", "unattended upgrades", "persistence"],
)
@pytest.mark.long
def test_what_keeps_the_driver_is_laid_down_again(
    served: Box, hub: Hub, undone: str, mended: str
) -> None:
    served.run(undone)
    assert mended in planned(served, hub)
    with reboots(served, 0):
        run_well(served, hub)
    assert_converged(served, hub)


@pytest.mark.long
def test_a_boot_without_nvidia_uvm(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("driver-uvm", "driven")
    reboot(box, "rm /etc/modules-load.d/nvidia-uvm.conf")
    assert not judge.host_of(box).file("/dev/nvidia-uvm").exists
    with reboots(box, 0):
        ended = run_well(box, hub)
    assert re.search(r"/dev/nvidia-uvm *\n.*Success", ended.log), ended.log
    assert_converged(box, hub)
    reboot(box, "systemctl disable -q vllm-coder")  # whose start would load it as well
    assert_driver(box, DRIVER)


@pytest.mark.long
def test_a_newer_kernel_gets_its_module_before_it_boots(served: Box, hub: Hub) -> None:
    served.run(f"mkdir /lib/modules/{OTHER_KERNEL} && touch /boot/vmlinuz-{OTHER_KERNEL}")
    assert f"Driver {DRIVER}, open modules" in planned(served, hub)
    with reboots(served, 0):
        run_well(served, hub)
    assert f"nvidia/{DRIVER}, {OTHER_KERNEL}, x86_64: installed" in served.run("dkms status").stdout
    assert_converged(served, hub)
    served.run(
        f"dkms remove nvidia/{DRIVER} -k {OTHER_KERNEL}; rm -r /boot/*-{OTHER_KERNEL}; "
        f"apt-get -qy purge linux-headers-{OTHER_KERNEL}; rm -rf /lib/modules/{OTHER_KERNEL}"
    )


# --- settings of the card -----------------------------------------------------------------------


def power_limit(box: Box) -> str:
    return box.run("nvidia-smi --query-gpu=power.limit --format=csv,noheader").stdout.strip()


@pytest.mark.long
def test_a_power_limit_is_kept_over_a_reboot_and_goes_with_its_setting(
    served: Box, hub: Hub
) -> None:
    run_well(served, hub, power_limit_w=300)
    assert power_limit(served) == "300.00 W"
    served.reboot()
    assert power_limit(served) == "300.00 W"
    assert_converged(served, hub, power_limit_w=300)
    served.run("nvidia-smi -pl 400")
    assert planned(served, hub, power_limit_w=300) == ["The power limit is in force"]
    run_well(served, hub, power_limit_w=250)
    assert power_limit(served) == "250.00 W"
    run_well(served, hub)
    assert not judge.host_of(served).file("/etc/systemd/system/aibox-power.service").exists
    assert power_limit(served) == "600.00 W"
    assert_converged(served, hub)


@pytest.mark.long
def test_a_power_limit_that_the_card_forbids_is_refused(served: Box, hub: Hub) -> None:
    said = run_refused(served, hub, power_limit_w=100)
    assert "150" in said.expected and "600" in said.expected, said
    run_well(served, hub)
    assert_converged(served, hub)


@pytest.mark.long
def test_hmm_is_switched_off_where_cuda_fails_with_it(served: Box, hub: Hub) -> None:
    gpu.write_state(served.root, faulty(cu_init=999, hmm_fault=True))
    said = run_refused(served, hub)
    assert "uvm_disable_hmm = True" in said.do, said
    with reboots(served, 1):
        run_well(served, hub, uvm_disable_hmm=True)
    assert_converged(served, hub, uvm_disable_hmm=True)
    gpu.write_state(served.root, gpu.CARDS["workstation"])
    run_well(served, hub)
    assert_converged(served, hub)


# --- reboots ------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_state_that_a_reboot_does_not_mend_is_no_second_reboot(
    make_box: MakeBox, hub: Hub
) -> None:
    """An initramfs that never gets the blacklist, whatever update-initramfs says."""
    box = make_box("driver-vain", "based")
    box.run("ln -sf /bin/true /usr/sbin/update-initramfs")
    with reboots(box, 1):
        said = run_refused(box, hub)
    assert "after the reboot of this run: nouveau is loaded" in said.found, said
    assert "no second reboot" in said.do, said
    box.run("ln -sf /usr/lib/emulated-gpu/emulated-gpu /usr/sbin/update-initramfs")
    with reboots(box, 1):
        run_well(box, hub)
    assert_converged(box, hub)


@pytest.mark.long
def test_a_box_that_does_not_come_back_in_time_is_left_to_itself(
    make_box: MakeBox, hub: Hub
) -> None:
    box = make_box("driver-slow", "driven")
    box.run(
        "cat >/etc/systemd/system/slow.service && systemctl enable -q slow",
        text="[Unit]\nDefaultDependencies=no\nBefore=ssh.service ssh.socket\n"
        "[Service]\nType=oneshot\nExecStart=/bin/sleep 60\n[Install]\nWantedBy=multi-user.target\n",
    )
    began = time.monotonic()
    said = run_refused(box, hub, driver_version=OTHER, reboot_timeout_s=30)
    assert said.found == "no new boot after 30 s", said
    assert "reboot_timeout_s" in said.do and "passphrase" in said.do
    assert time.monotonic() - began < 300
    jobs.until(lambda: box.run("true", check=False).returncode == 0, "the box comes up by itself")
    box.run("systemctl disable -q slow")
    with reboots(box, 0):
        run_well(box, hub, driver_version=OTHER)
    assert_converged(box, hub, OTHER, driver_version=OTHER)


@pytest.mark.long
def test_a_server_that_answers_is_not_rebooted_away(served: Box, hub: Hub) -> None:
    with reboots(served, 0):
        said = run_refused(served, hub, driver_version=OTHER, reboot_while_serving=False)
    assert "systemctl stop vllm-coder" in said.do and "reboot_while_serving = True" in said.do
    assert_converged(served, hub)


@pytest.mark.long
def test_after_its_reboot_a_run_keeps_others_out(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("driver-lock", "driven")
    data = data_of(hub, driver_version=OTHER)
    with stepping(box, data) as run:
        with reboots(box, 1):
            while (step := run.next()) and not (
                step.state == "ended" and step.operation.startswith(f"{OTHER} is what is loaded")
            ):
                run.go_on()
            assert step is not None, run.log.read_text()
        said = the_one_refusal(deploy({box: data}, "-y"))
        assert said.expected == "one deploy at a time"
        assert f"process {run.process.pid} there" in said.found
        ended = run.ended()
    assert ended.code == 0, ended.said
    assert_converged(box, hub, OTHER, driver_version=OTHER)
