"""Switches of a rehearsal box without a whole deploy, and what its stand-in server is to do."""

from __future__ import annotations

import json
from typing import Any

from aibox.box.good_units import sum_of
from tasks.server import unit_text
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.provision import HostData

SCRIPT = "/opt/standin-script.json"
UNIT = "vllm-coder"
INSTALLED = f"/etc/systemd/system/{UNIT}.service"
STAGED = f"/etc/systemd/system/.{UNIT}.service.candidate"
TRIED = f"/run/systemd/system.control/{UNIT}.service"
HEALTH = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:8000/health').status)"

Spec = dict[str, Any]


def scripted(data: HostData, **serve: Any) -> HostData:
    """Host data whose server follows the script on the box, with these flags over the card's."""
    named = {name.replace("_", "-"): value for name, value in serve.items()}
    environment = {**data.get("server_environment", {}), "VLLM_STANDIN_SCRIPT": SCRIPT}
    return {**data, "server_environment": environment, "serve": named}


def script(box: Box, **wanted: Any) -> None:
    """What the server does from its next start on, and at once for what a request can change."""
    box.run(
        ["sh", "-c", f"cat > {SCRIPT}.new && mv {SCRIPT}.new {SCRIPT}"], text=json.dumps(wanted)
    )


def candidate(data: HostData, *, restart: bool = True) -> Spec:
    """The spec that a deploy with this data would give to judge and switch."""
    wanted = jobs.wanted(data)
    return {**wanted.candidate_spec, "text": unit_text(wanted), "restart": restart}


def switch(box: Box, spec: Spec) -> jobs.Answer:
    """Do a switch from beginning to end."""
    assert jobs.start(box, "switch", spec)["ok"]
    return jobs.finish(box, "switch")


def wait_for_step(box: Box, step: str, timeout_s: float = 120) -> None:
    """Wait until the switch that is under way is at a step."""

    def is_there() -> bool:
        progress = jobs.look(box, "switch")["progress"]
        return bool(progress) and progress["step"] == step

    jobs.until(is_there, f"the switch did not come to {step!r}", timeout_s)


# --- how the box stands -------------------------------------------------------------------------


def process_of(box: Box) -> str:
    """The main process, "0" where there is none."""
    return box.run(f"systemctl show {UNIT} -p MainPID --value").stdout.strip()


def flags_of(box: Box) -> list[str]:
    """The words of the main process, as the kernel has them."""
    return box.run(f"tr '\\0' '\\n' < /proc/{process_of(box)}/cmdline").stdout.splitlines()


def seed_of(box: Box) -> str | None:
    words = flags_of(box)
    return words[words.index("--seed") + 1] if "--seed" in words else None


def answers(box: Box) -> bool:
    return box.run(["python3", "-c", HEALTH], check=False).stdout.strip() == "200"


def until_it_answers(box: Box) -> None:
    jobs.until(lambda: answers(box), "the server does not answer")


def history_of(box: Box) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(
        box.run("cat /var/lib/aibox/server/history.json").stdout
    )
    return found


def failures_of(box: Box) -> dict[str, Any]:
    text = box.run("cat /var/lib/aibox/server/failed.json", check=False).stdout
    found: dict[str, Any] = json.loads(text or "{}")
    return found


def assert_serves(box: Box, spec: Spec) -> None:
    """The unit is installed, is the last good one, runs, and nothing of a trial is left."""
    assert answers(box)
    assert box.run(f"cat {INSTALLED}").stdout == spec["text"]
    assert history_of(box)[0]["sha256"] == sum_of(spec["text"])
    shown = box.run(f"systemctl show {UNIT} -p FragmentPath -p NeedDaemonReload -p ActiveState")
    assert set(shown.stdout.split()) == {
        f"FragmentPath={INSTALLED}",
        "NeedDaemonReload=no",
        "ActiveState=active",
    }
    assert flags_of(box)[-len(spec["command"]) :] == spec["command"]
    assert_nothing_is_left(box)
    started = box.run(f"stat -c %Y /proc/{process_of(box)}").stdout
    assert int(box.run(f"stat -c %Y {INSTALLED}").stdout) <= int(started)


def assert_nothing_is_left(box: Box) -> None:
    assert box.run(f"ls {TRIED} {STAGED} 2>/dev/null", check=False).stdout == ""
