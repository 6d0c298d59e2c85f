"""A rolling update of one box under load, behind a gateway that stands in for LiteLLM.

test_roll.py has all of it: LiteLLM itself, four boxes, and each way in which a roll can stop.
"""

from __future__ import annotations

from tests.rehearsal.candidates import SCRIPT, script, scripted
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
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
    assert "restarts the server" in ended.said
    assert "says whether this box is asked" in ended.said
    assert "--seed 7" in far.run("systemctl cat vllm-coder").stdout
