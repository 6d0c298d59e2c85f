"""The NVIDIA driver: one exact version with open modules, loaded, pinned, kept over reboots."""

from __future__ import annotations

import json

from pyinfra import host, logger, state
from pyinfra.api import QuoteString, StringCommand, deploy, operation
from pyinfra.operations import systemd

from aibox.decide import driver, driver_sources
from aibox.decide.driver_evidence import Evidence
from aibox.decide.driver_refusals import next_boot_refusal, reboot_refusal
from aibox.decide.preflight import cut_off, serving_now
from aibox.decide.refusal import Refusal
from aibox.decide.vram import Card, VramReport, judge, power_reasons, power_refusals
from tasks import ledger, preflight
from tasks.box import AIBOX, Box
from tasks.brought import told
from tasks.drift_report import because, is_due
from tasks.facts import AiboxAnswer, Probe
from tasks.operations import (
    Commands,
    file_in_place,
    gone,
    job_command,
    laid_down,
    refused,
    starts_at_boot,
)
from tasks.reboot import rebooted, useless

POWER_UNIT_FILE = f"/etc/systemd/system/{driver_sources.POWER_UNIT}"
PERSISTENCE = "nvidia-persistenced.service"


@deploy("Driver")
def installed(box: Box) -> None:
    repository_added(box)
    modules_configured(box)
    driver_packages(name=f"Driver {box.driver.version}, open modules", box=box)
    modules_built(name="Modules built for the kernels that boot", box=box)
    initramfs_renewed(name="Initramfs without nouveau", box=box)
    driver_loaded(name=f"{box.driver.version} is what is loaded, or a reboot", box=box)
    unified_memory(name="/dev/nvidia-uvm", box=box)
    starts_at_boot(name="Persistence starts at boot", unit=PERSISTENCE)
    persistence_on(name="Persistence is on", box=box)
    driver_asserted(name=f"{box.driver.version} on module, library and dpkg", box=box)
    reboot_survived(name="The next reboot keeps the card", box=box)
    power_limited(box)


def repository_added(box: Box) -> None:
    laid_down(
        name="NVIDIA's signing key",
        path=driver_sources.KEY,
        content=box.nvidia_key.encode(),
    )
    doubled_sources_cleaned(name="Doubled NVIDIA sources", box=box)
    contrib_available(name="Debian's component contrib", box=box)
    laid_down(
        name="NVIDIA's repository",
        path=driver_sources.SOURCE,
        content=driver_sources.source_text(box.driver.url).encode(),
    )
    laid_down(
        name="The driver's version is pinned",
        path=driver_sources.PREFERENCES,
        content=driver_sources.preferences_text(box.driver.version).encode(),
    )
    laid_down(
        name="Unattended upgrades leave it alone",
        path=driver_sources.UNATTENDED,
        content=driver_sources.unattended_text().encode(),
    )


def modules_configured(box: Box) -> None:
    laid_down(
        name="nouveau is off",
        path=driver_sources.MODPROBE,
        content=driver_sources.modprobe_text(box.settings.uvm_disable_hmm).encode(),
    )
    laid_down(
        name="nvidia-uvm at boot",
        path=driver_sources.MODULES_LOAD,
        content=driver_sources.modules_load_text().encode(),
    )


def power_limited(box: Box) -> None:
    """A limit is lost at each reboot, so a unit sets it; without one the card keeps its own."""
    watts = box.settings.power_limit_w
    if watts is None:
        gone(name="No power limit of ours", path=POWER_UNIT_FILE, unit=driver_sources.POWER_UNIT)
        return
    power_limit_allowed(name=f"The card allows {watts} W", box=box)
    power_unit(name=f"Power limit {watts} W", box=box)
    starts_at_boot(name="The power limit is set at boot", unit=driver_sources.POWER_UNIT)
    power_limit_in_force(name="The power limit is in force", box=box)


@operation()
def power_unit(box: Box) -> Commands:
    """Read late: which cards serve may be known only once the driver is there."""
    watts = box.settings.power_limit_w
    assert watts is not None
    text = driver_sources.power_unit_text(watts, box.gpu_uuids)
    yield from laid_down._inner(path=POWER_UNIT_FILE, content=text.encode())


def evidence_of(box: Box) -> Evidence:
    """What stands on the box now."""
    return preflight.evidence_of(box.driver.cuda)


@operation()
def doubled_sources_cleaned(box: Box) -> Commands:
    """apt refuses a repository that is listed twice with different keys."""
    cleaned = driver_sources.cleaned_sources(evidence_of(box).sources, box.driver.url)
    if not cleaned:
        host.noop("NVIDIA's repository is listed once")
    else:  # a teardown gives them back
        found = evidence_of(box).sources
        both = {path: [found[path], text] for path, text in cleaned.items()}
        yield told("add", {"sources": both})
    for path, text in cleaned.items():
        because(host, f"{path} lists NVIDIA's repository too")
        if text is None:  # a name that apt passes over
            yield StringCommand("mv -f", QuoteString(path), QuoteString(f"{path}.disabled"))
        else:
            yield from file_in_place(path, text.encode(), shown=True)


@operation()
def contrib_available(box: Box) -> Commands:
    """The driver's packages for Debian need a few of its component contrib."""
    wanted = box.driver
    found = evidence_of(box).sources
    text = driver_sources.contrib_source(found, wanted.os_id, wanted.os_version)
    if text is None:
        yield from gone._inner(path=driver_sources.CONTRIB)
    else:
        yield from laid_down._inner(path=driver_sources.CONTRIB, content=text.encode())


@operation()
def driver_packages(box: Box) -> Commands:
    """The packages of the one version, held; what is half-configured is finished first."""
    wanted = box.driver
    for name in driver.package_set(wanted.os_id, wanted.os_version, wanted.version):
        ledger.of(host).packages[name] = wanted.version
    found = evidence_of(box)
    reasons = [*driver.install_reasons(found, wanted), *driver.hold_reasons(found, wanted)]
    if not is_due(host, reasons, f"driver {wanted.version} is installed and held"):
        return
    yield job_command("driver", AIBOX, "packages", driver_sources.packages_spec(found, wanted))


@operation()
def modules_built(box: Box) -> Commands:
    """For the running kernel and the newest: a kernel without the module boots without the card."""
    kernels = driver.kernels_to_build(evidence_of(box), box.driver)
    reasons = [f"no module {box.driver.version} for kernel {kernel}" for kernel in kernels]
    if not is_due(host, reasons, "the modules are built"):
        return
    spec = {"version": box.driver.version, "kernels": list(kernels)}
    yield job_command("modules", AIBOX, "modules", spec)
    refusal = driver.built_assertion(evidence_of(box), box.driver)
    if refusal is not None:
        yield refused(refusal)


@operation()
def initramfs_renewed(box: Box) -> Commands:
    reasons = driver.initramfs_reasons(evidence_of(box))
    if not is_due(host, reasons, "the initramfs knows that nouveau is off"):
        return
    yield "update-initramfs -u -k all"


@operation()
def driver_loaded(box: Box) -> Commands:
    """Reboots where the state asks for it: a run killed after the installation still needs it."""
    reasons = driver.reboot_reasons(evidence_of(box), box.driver)
    if not is_due(host, reasons, "what is installed is what is loaded"):
        return
    answer = host.get_fact(Probe, "serving", json.dumps({"unit": box.unit}))
    serving = [cut_off(one, box.settings.server_unit) for one in serving_now(json.dumps(answer))]
    refusal = reboot_refusal(reasons, (), serving, box.driver)
    if refusal is not None:
        yield refused(refusal)
    else:
        yield from rebooted(reasons, box.settings.reboot_timeout_s)
        left = driver.reboot_reasons(evidence_of(box), box.driver)
        if state.is_executing and left:
            yield refused(useless(reasons, left))


@operation()
def unified_memory(box: Box) -> Commands:
    """CUDA needs the node; at a boot modules-load.d makes it."""
    reasons = driver.uvm_reasons(evidence_of(box))
    if not is_due(host, reasons, "/dev/nvidia-uvm is there, or comes with the module"):
        return
    yield "modprobe nvidia-uvm && (nvidia-modprobe -u -c 0 || true)"


@operation()
def persistence_on(box: Box) -> Commands:
    """Without it the driver lets go of a card that nobody uses, and takes seconds to return."""
    if is_pending(box):
        host.noop("comes with the driver")
        return
    for reason in driver.persistence_reasons(evidence_of(box)):
        because(host, reason)
        yield from systemd.service._inner(service=PERSISTENCE, running=True)


@operation()
def driver_asserted(box: Box) -> Commands:
    """Fails where the box has another version than was installed, however that came."""
    found = evidence_of(box)
    for line in driver.xid_report(found):
        host.log(line, logger.warning)
    if is_pending(box):
        host.noop("comes with the driver")
        return
    refusal = driver.assertion(found, box.driver)
    if refusal is None:
        host.noop(f"{box.driver.version} everywhere, open modules")
        return
    because(host, refusal.found)
    yield refused(refusal)


@operation()
def reboot_survived(box: Box) -> Commands:
    """Whether the kernel that boots next has all that this one has; it may be another one."""
    if is_pending(box):
        host.noop("comes with the driver")
        return
    reasons = driver.next_boot_reasons(evidence_of(box), box.driver)
    if not is_due(host, reasons, "the newest kernel has the module"):
        return
    yield refused(next_boot_refusal(reasons, box.driver))


def is_pending(box: Box) -> bool:
    """Whether a plan is being made for a box that gets its driver in the run itself."""
    if state.is_executing:
        return False
    found = evidence_of(box)
    return bool(
        driver.install_reasons(found, box.driver) or driver.reboot_reasons(found, box.driver)
    )


@operation()
def power_limit_allowed(box: Box) -> Commands:
    """Refused before the unit is laid down: a first driver is what can say what the card allows."""
    cards = cards_with_power(box)
    refusal = cards if isinstance(cards, Refusal) else None
    if isinstance(cards, tuple):
        refusal = power_refusals(cards, box.settings.power_limit_w)
    if refusal is None:
        host.noop("within what the card allows, or asked when the driver is there")
        return
    because(host, refusal.found)
    yield refused(refusal)


@operation()
def power_limit_in_force(box: Box) -> Commands:
    """The limit as NVML reads it."""
    cards, watts = cards_with_power(box), box.settings.power_limit_w
    judged = cards if isinstance(cards, tuple) else ()
    reasons = [reason for card in judged for reason in power_reasons(card, watts)]
    for reason in reasons:
        because(host, reason)
    if not reasons:
        host.noop("it is in force, or comes with the driver")
        return
    # systemd may still know the unit as it was with another limit
    yield f"systemctl daemon-reload && systemctl restart {driver_sources.POWER_UNIT}"


def cards_with_power(box: Box) -> tuple[Card, ...] | Refusal | None:
    """The cards that serve; None where the plan is made for a box without its driver."""
    report = vram_report()
    if report is None or is_pending(box):
        return None
    return judge(report.cards, report.error, box.settings.cards_wanted)


def vram_report() -> VramReport | None:
    """What NVML and CUDA say, asked by the box's own aibox; None where it is not there yet."""
    answer = host.get_fact(AiboxAnswer, program=AIBOX, words="vram")
    return None if answer is None else VramReport.parse(json.dumps(answer))
