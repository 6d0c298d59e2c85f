"""A candidate is judged on the box before anything stops: by its release's parser, and by what the
box has to give. The server that is up meanwhile does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from aibox.box.judge import AROUND, JUDGED, PROPERTIES
from aibox.decide.unit import server_command
from tests.rehearsal import fingerprint, jobs
from tests.rehearsal.box import Box
from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import standin

Spec = dict[str, Any]
Judged = Callable[..., dict[str, Any]]

STRIPPED = "/srv/stripped"
SITE = "group_data/site.py"
LEFT_ALONE = ("/etc", "/opt", "/run/systemd", "/srv/models", "/var/cache", "/var/lib/vllm-coder")


@pytest.fixture(scope="module")
def deployed(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """One serving box for the whole file."""
    with Box.up("judge", layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def box(deployed: Box) -> Iterator[Box]:
    """The box, whose server goes on; unit, release and weights stay as they are."""
    before = the_server(deployed), fingerprint.taken(deployed)
    yield deployed
    assert the_server(deployed) == before[0]
    changed = [line.split(":")[0] for line in before[1].changes(fingerprint.taken(deployed))]
    assert [path for path in changed if path.startswith(LEFT_ALONE)] == []


def the_server(box: Box) -> list[str]:
    shown = "systemctl show vllm-coder -P ActiveState -P InvocationID -P MainPID"
    return box.run(shown).stdout.split()


@pytest.fixture
def judged(box: Box, hub: Hub) -> Judged:
    """Judge what the deploy would run, with other flags or another spec; the job's result."""
    wanted = jobs.wanted(standin(hub.url))

    def judge(*, serve: Spec | None = None, **changes: Any) -> dict[str, Any]:
        spec = {**wanted.candidate_spec, "text": "[Service]\n", **changes}
        flags = {**spec["flags"], **(serve or {})}
        weights, port = spec["weights"], spec["port"]
        lines = server_command(wanted.release_folder, weights, port, flags)
        spec["command"] = [word for line in lines for word in line]
        spec["flags"] = flags
        spec["sources"] |= dict.fromkeys(serve or {}, "the setting `serve`")
        return jobs.work(box, "judge", spec)

    return judge


def refusal(result: dict[str, Any]) -> tuple[str, str, str]:
    assert not result["ok"], result
    said = result["refusal"]
    return said["found"], said["expected"], said["remedy"]


@contextmanager
def busy_card(box: Box) -> Iterator[None]:
    gpu.write_state(box.root, gpu.CARDS["busy"])
    try:
        yield
    finally:
        gpu.write_state(box.root, gpu.CARDS["workstation"])


def verdicts(box: Box) -> int:
    text = box.run(f"cat {JUDGED} 2>/dev/null || echo '{{}}'").stdout
    return len(json.loads(text).get("verdicts", {}))


def test_what_serves_may_be_tried_and_the_parser_is_asked_once(box: Box, judged: Judged) -> None:
    box.run(f"rm -f {JUDGED}")  # what the deploy before has asked
    result = judged()
    assert result["ok"], result
    assert result["warnings"] == []
    assert result["resolved"]["max_num_seqs"] == 4
    assert verdicts(box) == 1
    stamp = box.run(f"stat -c %Y.%i {JUDGED}").stdout
    assert judged()["ok"]
    assert box.run(f"stat -c %Y.%i {JUDGED}").stdout == stamp


# what is added to the flags -> what found, expected and remedy say
WRONG: list[tuple[Spec, tuple[str, str, str]]] = [
    (
        {"max-num-seqss": 4},
        ("no flag is called max-num-seqss", "the nearest is max-num-seqs", f"seqss in {SITE}"),
    ),
    (
        {"tool-call-parser": "qwen3_codr"},
        ("'qwen3_codr'", "the nearest is qwen3_coder", f"tool-call-parser in {SITE}"),
    ),
    (
        {"attention-backend": "FLASHINFR"},
        ("'FLASHINFR'", "the nearest is FLASHINFER", f"attention-backend in {SITE}"),
    ),
    (
        {"max-model-len": 400_000},
        ("is 400000", "at most 262144", f"max-model-len to 262144 or less in {SITE}"),
    ),
]


@pytest.mark.parametrize(("serve", "words"), WRONG, ids=lambda each: str(each)[:30])
def test_a_wrong_flag_costs_no_service(
    judged: Judged, serve: Spec, words: tuple[str, str, str]
) -> None:
    for part, word in zip(refusal(judged(serve=serve)), words, strict=True):
        assert word in part


def test_a_stripped_head_is_refused_before_a_start(box: Box, judged: Judged) -> None:
    weights = jobs.wanted(standin("http://hub")).weights_folder
    strip = (
        "import json, pathlib as p; f = p.Path('model.safetensors.index.json'); "
        "i = json.loads(f.read_text()); m = i['weight_map']; "
        "i['weight_map'] = {n: m[n] for n in m if not n.startswith('mtp.')}; "
        "f.write_text(json.dumps(i))"
    )
    box.run(f'cp -r {weights} {STRIPPED} && cd {STRIPPED} && python3 -c "{strip}"')
    found, expected, remedy = refusal(judged(weights=STRIPPED))
    box.run(f"rm -r {STRIPPED}")
    assert "the head was stripped" in found
    assert "15 such tensors" in expected
    assert "take `speculative-config` off this model" in remedy


def test_a_port_that_is_taken_names_its_owner(judged: Judged) -> None:
    found, _, remedy = refusal(judged(port=22))
    assert "port 22 is held by" in found
    assert "ssh" in found
    assert "server_port" in remedy


def test_a_card_that_is_held_names_its_holder(box: Box, judged: Judged) -> None:
    with busy_card(box):
        found, expected, remedy = refusal(judged(serve={"gpu-memory-utilization": 0.87}))
        assert "python3 (pid 4242, 88160 MiB)" in found
        assert "84607 MiB free" in expected
        assert f"gpu-memory-utilization to 0.09 or less in {SITE}" in remedy


def test_every_fault_stands_in_one_answer(box: Box, judged: Judged) -> None:
    wrong = {flag: value for serve, _ in WRONG for flag, value in serve.items()}
    with busy_card(box):
        found, expected, remedy = refusal(
            judged(serve={**wrong, "gpu-memory-utilization": 0.87}, port=22)
        )
    for part in (found, expected, remedy):
        assert [line.split(".")[0] for line in part.splitlines()] == list("123456")


def test_a_release_that_cannot_answer_is_told_apart_from_a_wrong_flag(
    box: Box, judged: Judged
) -> None:
    before = verdicts(box)
    found, _, remedy = refusal(judged(release="/opt/vllm/releases/nothing"))
    assert "could not be asked" in found
    assert "no fault of a flag" in remedy
    assert verdicts(box) == before


def test_the_parser_runs_as_the_service_user_without_a_card_or_a_place_to_write(box: Box) -> None:
    properties = " ".join(f"--property={each}" for each in ("User=vllm", *PROPERTIES))
    environment = " ".join(f"--setenv={name}={text}" for name, text in AROUND.items())
    look = "id -un; ls /dev/nvidia0; touch /opt/vllm/x /var/lib/x; touch /tmp/x && echo private"
    command = f"systemd-run --quiet --collect --wait --pipe {properties} {environment}"
    said = box.run(f"{command} /bin/sh -c '{look}'", check=False)
    assert said.stdout.split() == ["vllm", "private"]
    assert said.stderr.count("Read-only file system") == 2
    assert box.run("ls /tmp/x", check=False).returncode != 0
