"""What a person reads before anything is done: their box as it is, and the plan, on real boxes."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.candidates import INSTALLED, UNIT, until_it_answers
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import until
from tests.rehearsal.provision import HERE, Deploy, deploy, standin
from tests.rehearsal.refusal import the_one_refusal, untouched
from tests.rehearsal.seed_box import HOME, ME, VENV, seeded, snapshot, write

PAGE, PLAN = "no deploy has been here yet", "what this run would do"
SECRET = "sk-very-secret-4711"
CHAT = (
    "import json, urllib.request as r; r.urlopen(r.Request('http://127.0.0.1:8000/v1/completions', "
    "json.dumps({'model': 'tiny-qwen3.5-mtp', 'prompt': 'Hello', 'max_tokens': 32}).encode(), "
    "{'Content-Type': 'application/json'})).read()"
)


@pytest.fixture(scope="module")
def seed(layers: Callable[[str], str | None], hub: Hub) -> Iterator[Box]:
    """One box as its owner built it, for what only looks at it."""
    with Box.up("look-seed-box", layer=layers("driven"), owned=True) as box:
        seeded(box, hub)
        logged_in_once(box)
        yield box


def logged_in_once(box: Box) -> None:
    """Debian's sudo leaves a mark in the home, once."""
    box.run("sudo -n true", user="admin")


@contextmanager
def his_unit_changed(box: Box, script: str) -> Iterator[None]:
    """His unit changed by sed and started anew, and back again."""
    box.run(["sed", "-i.kept", script, INSTALLED])
    try:
        restart(box)
        yield
    finally:
        box.run(f"mv {INSTALLED}.kept {INSTALLED}")
        restart(box)


def restart(box: Box) -> None:
    box.run(f"systemctl daemon-reload && systemctl restart {UNIT}")
    until_it_answers(box)


def dry(box: Box, hub: Hub, **data: object) -> Deploy:
    return deploy({box: {**standin(hub.url), **data}}, "--dry")


def lines(ended: Deploy, title: str) -> list[str]:
    """The lines of a page, without the box's name."""
    found = [re.sub(r"^ *\[[^]]+\] ", "", line) for line in ended.log.splitlines()]
    at = next(at for at, line in enumerate(found) if line.startswith(title))
    rows = []
    for line in found[at + 1 :]:
        if not re.match(r"(?:\w+ {1,9}|\s{9} *)\S", line):
            break
        rows.append(line)
    return rows


def text(ended: Deploy, title: str) -> str:
    """A page in one line a row, blanks as one."""
    rows = re.sub(r"\n {12,}", " ", "\n".join(lines(ended, title)))
    return re.sub(r" +", " ", rows)


@pytest.fixture(scope="module")
def looked(seed: Box, hub: Hub) -> Deploy:
    """One --dry, which left the box as it was."""
    with untouched(seed):
        ended = dry(seed, hub)
    assert ended.code == 0, ended.said
    return ended


def test_a_strangers_box_fits_on_a_page(looked: Deploy) -> None:
    shown = lines(looked, PAGE)
    assert 20 < len(shown) <= 60, "\n".join(shown)
    before = len("    [look-seed-box] ")
    assert max(map(len, shown)) <= 100 - before
    page = text(looked, PAGE)
    for words in (
        "102.6 GB (97887 MiB), compute capability 12.0: the right one",
        "driver 580.178.04, open modules: the right one",
        "serves tiny-qwen3.5-mtp on port 8000 (it answers), by /etc/systemd/system/vllm-coder",
        "MTP off",
        "--max-num-seqs 512",
        "MTP head carried, in /home/me/.cache/huggingface/hub",
        "4000 every network python3 (stream-filter.service)",
        "4001 every network python3 (litellm.service)",
        "8000 this box only",
        "--max-num-seqs 512 -> --max-num-seqs 4",
        '+ --speculative-config {"method":"mtp","num_speculative_tokens":2}',
        "user me -> vllm",
        "lines of the unit: WorkingDirectory=/home/me -> /var/lib/vllm-coder, Restart=on-",
        'server_environment = {"HF_HOME": "/home/me/.cache/huggingface"',
        "enforce-eager: answers come slower",
        "but a known issue of this vLLM: prefix caching together with MTP",
        '"max-num-seqs": 512, "enable-prefix-caching": True, "enforce-eager": None, ',
        "rollback.py --data to=found",
    ):
        assert words in page, page


def test_its_plan_replaces_his_unit_and_fetches_no_weights(looked: Deploy) -> None:
    plan = text(looked, PLAN)
    for words in (
        "steps ",
        "weights of tiny-qwen3.5-mtp: nothing; they lie on the box",
        "reboot none",
        "changes --host 127.0.0.1 -> --host localhost",
        "more (--diff)",
        "replaces /etc/systemd/system/vllm-coder.service, which you wrote; it has no drop-ins",
        "your own unit is kept for ever",
    ):
        assert words in plan, plan
    assert "measured" not in plan


@pytest.mark.long
def test_what_is_drafted_and_accepted_since_the_start_is_told(seed: Box, hub: Hub) -> None:
    flag = """--speculative-config '{"method":"mtp","num_speculative_tokens":2}'"""
    with his_unit_changed(seed, f"s/--max-num-seqs 512/--max-num-seqs 8 {flag}/"):
        seed.run(["python3", "-c", CHAT])
        page = text(dry(seed, hub), PAGE)
    assert re.search(r"MTP on; since its start: [\d.]+ % of the drafted tokens", page), page


def test_a_vllm_by_hand_is_shown_with_what_clients_would_lose_and_no_secret(
    seed: Box, hub: Hub
) -> None:
    seed.run("systemctl stop vllm-coder")
    command = (
        f"{VENV}/bin/python {VENV}/bin/vllm serve {snapshot()} --host 0.0.0.0 --port 9000 "
        f"--served-model-name coder --api-key {SECRET}"
    )
    scope = f"systemd-run -q --scope --slice=user.slice --unit=by-hand runuser -u {ME} -- {command}"
    seed.run(f"(cd {HOME}; exec {scope}) </dev/null >/dev/null 2>&1 &")
    try:
        until(lambda: "9000" in seed.run("ss -ltn").stdout, "it does not listen")
        with untouched(seed):
            ended = dry(seed, hub)
    finally:
        seed.run("systemctl stop by-hand.scope; systemctl start vllm-coder", check=False)
    page = text(ended, PAGE)
    assert SECRET not in ended.said
    assert "by me, by hand and without a unit" in page, page
    assert "port 9000 becomes 8000: who asks 9000 finds nobody server_port = 9000" in one_line(page)
    assert 'clients ask for the model "coder"' in page
    assert "other machines reach port 9000 directly" in page
    assert "clients need an API key" in page


@pytest.mark.long
def test_his_server_on_another_port_is_not_rebooted_away(seed: Box, hub: Hub) -> None:
    seed.run(["sed", "-i.kept", "s/--port 8000/--port 9000/", INSTALLED])
    try:
        seed.run(f"systemctl daemon-reload && systemctl restart {UNIT}")
        until(lambda: "9000" in seed.run("ss -ltn").stdout, "it does not listen")
        with untouched(seed):
            ended = dry(seed, hub, driver_version="595.71.05")
            planned = dry(seed, hub, driver_version="595.71.05", reboot_while_serving=True)
    finally:
        seed.run(f"mv {INSTALLED}.kept {INSTALLED}")
        restart(seed)
    said = the_one_refusal(ended)
    assert said.found.startswith("the server (vllm-coder.service, port 9000) answers, and the run")
    plan = text(planned, PLAN)
    assert "it cuts off the server (vllm-coder.service, port 9000)" in plan, plan
    assert "vllm-coder.service serves until its turn" in plan


DOCKER = "/usr/local/bin/docker"  # a stand-in: it waits, as the client does for its container
IN_DOCKER = f"[Service]\nExecStart={DOCKER} run -p 8000:8000 vllm/vllm-openai --model x\n"


@pytest.mark.long
def test_a_unit_that_starts_a_container_has_one_answer(seed: Box, hub: Hub) -> None:
    seed.run(f"systemctl stop {UNIT}")
    write(seed, DOCKER, "#!/bin/sh\nexec sleep infinity\n")
    write(seed, "/etc/systemd/system/qwen.service", IN_DOCKER)
    seed.run(f"chmod 755 {DOCKER}; systemctl daemon-reload; systemctl start qwen")
    scope = f"systemd-run -q --scope --unit=docker-{'a' * 64} runuser -u {ME} --"
    command = f"{VENV}/bin/python {VENV}/bin/vllm serve {snapshot()} --port 8000"
    seed.run(f"(cd {HOME}; exec {scope} {command}) </dev/null >/dev/null 2>&1 &")
    try:
        until_it_answers(seed)
        ended = dry(seed, hub)
    finally:
        seed.run(f"systemctl stop docker-{'a' * 64}.scope qwen; systemctl start {UNIT}")
        seed.run(f"rm {DOCKER} /etc/systemd/system/qwen.service; systemctl daemon-reload")
    said, page = the_one_refusal(ended), text(ended, PAGE)
    assert "a container of qwen.service" in said.found
    assert "`systemctl disable --now qwen.service`, which starts the container" in said.do
    assert "docker stop" not in ended.said and "adopt it" not in ended.said
    assert "before the deploy: systemctl disable --now qwen.service" in one_line(page), page


def one_line(page: str) -> str:
    return " ".join(page.split())


@pytest.mark.long
def test_a_refused_card_is_shown_first(seed: Box, hub: Hub) -> None:
    gpu.write_state(seed.root, gpu.CARDS["h200"])
    try:
        ended = dry(seed, hub)
    finally:
        gpu.write_state(seed.root, gpu.CARDS["workstation"])
    assert "another GPU architecture" in the_one_refusal(ended).found
    page = text(ended, PAGE)
    assert "another GPU architecture" in page and "not the right one" in page
    assert "serves tiny-qwen3.5-mtp" in page
    assert PLAN not in ended.log


@pytest.mark.long
def test_without_a_lock_and_a_token_the_page_is_shown_all_the_same(
    seed: Box, hub: Hub, tmp_path: Path
) -> None:
    cards = tmp_path / "models"
    shutil.copytree(HERE / "group_data/models", cards)
    for lock in cards.glob("*.lock.json"):
        lock.unlink()
    hub.ctl(token="hf_sesame")
    ended = dry(seed, hub, cards_folder=str(cards))
    assert "needs a token" in the_one_refusal(ended).found
    page = text(ended, PAGE)
    assert "a deploy takes over by sum what it finds of rehearsal/tiny-qwen3.5-mtp" in page, page


@pytest.mark.long
def test_a_bare_box_is_told_of_its_reboot_and_of_its_download(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("look-bare-box", "bare")
    logged_in_once(box)
    with untouched(box):
        ended = dry(box, hub)
    assert ended.code == 0, ended.said
    page, plan = text(ended, PAGE), text(ended, PLAN)
    assert "nouveau holds the card; a deploy installs 580.178.04" in page
    assert "no vLLM runs here" in page
    assert "reboot once, by itself: nouveau is loaded and holds the card" in plan
    assert re.search(r"about \d+ s at [\d.]+ .B/s, measured just now with one connection", plan)
    assert "replaces nothing of yours" in plan


@pytest.mark.long
def test_a_hub_that_wants_a_token_is_not_measured(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("look-gated", "driven")
    hub.ctl(token="hf_sesame")
    plan = text(dry(box, hub), PLAN)
    assert "not measured: the hub answers 401 without a token" in plan, plan


def test_a_deployed_box_has_no_pages_and_costs_one_command(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("look-deployed")
    dry(box, hub)  # a first run learns what is asked
    ended = deploy({box: standin(hub.url)}, "--dry", "--debug")
    assert ended.code == 0, ended.said
    assert PAGE not in ended.log and PLAN not in ended.log
    (counts,) = re.findall(r"Fact pipelining: (\{.*\})", ended.said)
    assert json.loads(counts)["commands"] == 1, counts
