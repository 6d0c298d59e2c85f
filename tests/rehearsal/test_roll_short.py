"""A rolling update of one box under load, behind a gateway that stands in for LiteLLM.

test_roll.py has all of it: LiteLLM itself, four boxes, and each way in which a roll can stop.
"""

from __future__ import annotations

import json
from typing import Any

from aibox.box.deploy_lock import LOCK
from aibox.box.job import FOLDER
from tasks.facts import ANSWERED_BY
from tasks.sent_along import program
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import SCRIPT, script, scripted
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import until
from tests.rehearsal.load import Load
from tests.rehearsal.provision import standin
from tests.rehearsal.rolling import out_at, rolled
from tests.rehearsal.spreading import spreading

MODEL = "tiny-qwen3.5-mtp"
DROP_INS = "/etc/systemd/system/vllm-coder.service.d"
SCRIPTED = (
    f"mkdir {DROP_INS}; printf '[Service]\\nEnvironment=VLLM_STANDIN_SCRIPT={SCRIPT}\\n' "
    f">{DROP_INS}/script.conf; systemctl daemon-reload; systemctl restart vllm-coder"
)


def test_a_flag_is_rolled_out_and_no_request_is_lost(
    make_box: MakeBox, hub: Hub, bridge: str
) -> None:
    near, far = made = [make_box("roll-near"), make_box("roll-far")]
    for box in made:  # a token in a while: requests are under way whenever something happens
        script(box, step_s=0.05)
        box.run(SCRIPTED)
    usual = standin(hub.url)
    wanted = {near: {**usual, "_gateway": True, "gateway": None}, far: scripted(usual, seed=7)}
    with (
        spreading(near, made, MODEL, bridge) as gateway,
        Load([gateway], MODEL) as load,
    ):
        ended = rolled(wanted, "--limit=roll-far")
        left_out = out_at(near)
    assert ended.code == 0, ended.said
    assert load.failed == [], load.failed
    assert load.streams > 4 and load.wholes > 4
    assert "roll-far is out of rotation at roll-near" in ended.said
    assert left_out == set()
    assert "--seed 7" in far.run("systemctl cat vllm-coder").stdout
    assert "restarts the server" in ended.said
    assert "says whether this box is asked" in ended.said
    assert "the roll goes on" not in ended.said  # it grew quiet
    assert answer_of(far, "requests", {}) == {"running": 0, "ours": True}
    until(lambda: at_work(far) == {"jobs": [], "by": None}, "the roll has let go of its box")
    far.run("mkdir -p /run/aibox/jobs/long && systemd-run -q --unit=aibox-long sleep 60")
    assert at_work(far)["jobs"] == ["aibox-long.service"]


def at_work(box: Box) -> Any:
    return answer_of(box, "at_work", {"jobs": str(FOLDER), "lock": str(LOCK)})


def answer_of(box: Box, question: str, asked: dict[str, Any]) -> Any:
    """Of the probe, as it is sent along."""
    words = ["python3", "-", question, json.dumps(asked)]
    return json.loads(box.run(words, text=program(ANSWERED_BY[question])).stdout)
