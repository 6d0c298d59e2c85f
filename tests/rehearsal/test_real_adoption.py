"""A real vLLM 0.31.0 that a person built by hand: adopted with its weights, and given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.candidates import INSTALLED, UNIT, flags_of
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import HostData, deploy, download_caches, production
from tests.rehearsal.seed_box import HOME, ME, lay_cache, snapshot, write
from tests.rehearsal.test_adoption import rolled_back, weights_sent
from tests.rehearsal.test_literal_command import asked_for_a_completion
from tests.rehearsal.test_teardown import ALL, torn_down

pytestmark = pytest.mark.long

VENV = f"{HOME}/vllm-env"
# His flags of the reference box, as far as a CPU can serve them: 512 sequences, and no MTP.
HIS_UNIT = f"""\
[Unit]
Description=vLLM coder

[Service]
User={ME}
WorkingDirectory={HOME}
Environment=HF_HOME={HOME}/.cache/huggingface
Environment=VLLM_TARGET_DEVICE=cpu CUDA_VISIBLE_DEVICES=-1
ExecStart={VENV}/bin/python -m vllm.entrypoints.openai.api_server --model {snapshot()} \\
    --dtype auto --max-model-len 4096 --enforce-eager --no-enable-prefix-caching \\
    --gpu-memory-utilization 0.15 --max-num-seqs 512 --served-model-name tiny-qwen3.5-mtp
Restart=on-failure

[Install]
WantedBy=multi-user.target
"""
ANSWERS = "timeout 300 sh -c 'until curl -sf localhost:8000/health; do sleep 1; done'"


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return production(hub.url)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None], data: HostData) -> Iterator[Box]:
    """His box. His venv is one that a deploy built, whose every other trace is taken down again."""
    layer = layers("driven")
    with Box.up("real-seed", layer=layer, binds=download_caches(), owned=True) as made:
        made.run("apt-get -qy install curl")
        ended = deploy({made: data}, "-y", timeout_s=1200)
        assert ended.code == 0, ended.said
        made.run(f"useradd --create-home --shell /bin/bash {ME}")
        made.run(f"cp -al /opt/vllm/releases/0.31.0-* {VENV}")
        torn_down(made, data, *ALL)
        made.run(f"rm {VENV}/release.json; chown -R {ME}: {VENV}", timeout_s=300)
        lay_cache(made)
        write(made, INSTALLED, HIS_UNIT)
        made.run(f"systemctl daemon-reload && systemctl enable -q --now {UNIT}")
        made.run(ANSWERS, timeout_s=320)
        yield made


def test_it_is_adopted_with_mtp_and_given_back(box: Box, data: HostData, hub: Hub) -> None:
    unit = box.run(f"sha256sum {INSTALLED}").stdout
    assert "--speculative-config" not in flags_of(box)
    hub.ctl(clear_log=True)
    ended = deploy({box: data}, "-y", timeout_s=1200)
    assert ended.code == 0, ended.said
    assert weights_sent(hub) == 0
    assert "draft tokens accepted" in ended.said
    assert "--speculative-config" in flags_of(box)
    assert asked_for_a_completion(box)

    ended = rolled_back(box, data)
    assert ended.code == 0, ended.said
    assert box.run(f"sha256sum {INSTALLED}").stdout == unit
    assert "--speculative-config" not in flags_of(box)
    assert "512" in flags_of(box)
    assert asked_for_a_completion(box)
    assert box.run(f"systemctl is-enabled {UNIT}").stdout.strip() == "enabled"
