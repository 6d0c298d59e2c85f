"""Pinning weights against the emulated hub, on loopback: no root, no box."""

from __future__ import annotations

import io
import json
import resource
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest

from aibox.decide.pins import judge_paths, read_by_vllm
from aibox.decide.weights import WeightsLock
from tasks import first_pin, hub_token, pin
from tasks.given_secrets import SecretError
from tests.rehearsal.emulation.hub import MODELS, PROJECT, Hub

NAME = "tiny-qwen3.5-mtp"
CARDS = PROJECT / "tests/rehearsal/group_data/models"
LOCK = f"{NAME}.lock.json"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The hub's folder, with a second model that a test may change."""
    folder = tmp_path_factory.mktemp("models")
    (folder / "rehearsal").mkdir()
    (folder / "rehearsal" / NAME).symlink_to(MODELS / "rehearsal" / NAME)
    return folder


@pytest.fixture(scope="module")
def hub(models: Path) -> Iterator[Hub]:
    with Hub(models) as running:
        yield running


@pytest.fixture
def cards(tmp_path: Path) -> Path:
    """A folder with the tiny model's card, without a lock."""
    folder = tmp_path / "cards"
    folder.mkdir()
    shutil.copy(CARDS / f"{NAME}.yml", folder)
    return folder


@pytest.fixture
def changed_model(models: Path, cards: Path) -> Iterator[Path]:
    """The folder of a model "rehearsal/changing", which the card "changing" names."""
    folder = models / "rehearsal/changing"
    shutil.copytree(MODELS / "rehearsal" / NAME, folder)
    card = (cards / f"{NAME}.yml").read_text().replace(f"rehearsal/{NAME}", "rehearsal/changing")
    (cards / "changing.yml").write_text(card)
    yield folder
    shutil.rmtree(folder)


@dataclass(frozen=True)
class Pinned:
    """How `python -m tasks.pin` ended."""

    returncode: int
    stdout: str
    stderr: str


def pinned(
    cards: Path, hub: str, *words: str, name: str = NAME, token: str | None = None
) -> Pinned:
    """One run in this process, without the second that the imports of a new one take."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        patch.delenv("HF_TOKEN", raising=False)
        if token:
            patch.setenv("HF_TOKEN", token)
        code = pin.main([name, "--cards", str(cards), "--hub", hub, *words])
    return Pinned(code, out.getvalue(), err.getvalue())


def pinned_with_small_files_only(cards: Path, hub: str, limit: int) -> Pinned:
    """A run as a person starts it, on a disk where no file can be larger than `limit` bytes."""
    done = subprocess.run(
        [sys.executable, "-m", "tasks.pin", NAME, "--cards", str(cards), "--hub", hub],
        cwd=PROJECT,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        timeout=60,
    )
    return Pinned(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def _no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")


def refused(done: Pinned, *found: str) -> str:
    """Asserts that a run refused in the three lines of a refusal; returns the last one."""
    assert done.returncode == 1, done.stdout + done.stderr
    lines = done.stderr.strip().splitlines()
    assert [line.split()[0] for line in lines] == ["found", "expected", "do"], done.stderr
    for text in found:
        assert text in lines[0], lines
    return lines[2]


def test_pinning_the_tiny_model_makes_the_lock_of_the_tree(cards: Path, hub: Hub) -> None:
    hub.ctl(clear_log=True)
    done = pinned(cards, hub.url)
    assert done.returncode == 0, done.stderr
    assert (cards / LOCK).read_text() == (CARDS / LOCK).read_text()
    assert "11 files, 1.0 MB" in done.stdout
    assert not any(path.endswith("safetensors") for path in fetched(hub))
    assert [path.name for path in cards.iterdir() if path.name.startswith(".")] == []
    again = pinned(cards, hub.url)
    assert (again.returncode, "is as the hub says" in again.stdout) == (0, True), again.stdout


def test_the_makefile_pins_too_and_says_what_it_wants(cards: Path, hub: Hub) -> None:
    options = f"--cards {cards} --hub {hub.url}"
    done = made(f"MODEL={NAME}", f"OPTIONS={options}")
    assert done.returncode == 0, done.stderr
    assert (cards / LOCK).read_text() == (CARDS / LOCK).read_text()
    assert "make lock-model MODEL=" in made().stdout
    with pytest.raises(SystemExit) as error:
        pin.main(["--nonsense"])
    assert error.value.code == 1


def made(*words: str) -> subprocess.CompletedProcess[str]:
    """`make lock-model`, in the environment that the tests run in: it is complete."""
    command = ["make", "-s", "-o", "env", "lock-model", *words]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def fetched(hub: Hub) -> list[str]:
    return [line["path"] for line in hub.log() if "/resolve/" in line["path"]]


def test_what_serves_nothing_or_runs_code_is_left_out() -> None:
    taken = [
        *("config.json", "model-00001-of-00002.safetensors", "model.safetensors.index.json"),
        *("merges.txt", "tokenizer.model", "chat_template.jinja", "qwen.tiktoken"),
        "additional_chat_templates/tools.jinja",
    ]
    left = [
        *("README.md", ".gitattributes", "LICENSE", "assets/picture.png", "modeling_qwen.py"),
        *("pytorch_model.bin", "consolidated.00.pth", "model.pt", "original/model.safetensors"),
    ]
    assert [path for path in [*taken, *left] if read_by_vllm(path)] == taken


@pytest.mark.parametrize(
    ("paths", "found"),
    [
        (["config.json", "m.safetensors", "../evil.json"], "'../evil.json'"),
        (["config.json", "m.safetensors", "/etc/evil.json"], "'/etc/evil.json'"),
        (["config.json", "m.safetensors", "a/../../evil.txt"], "'a/../../evil.txt'"),
        (["config.json", "m.safetensors", "-o.json"], "'-o.json'"),
        (["config.json"], "no .safetensors"),
        (["m.safetensors"], "no config.json"),
    ],
)
def test_paths_that_make_no_lock_are_refused(paths: list[str], found: str) -> None:
    refusal = judge_paths(paths)
    assert refusal is not None
    assert found in refusal.found
    assert judge_paths(["config.json", "m.safetensors"]) is None


def test_a_lock_that_would_change_shows_what_and_stays(
    cards: Path, hub: Hub, changed_model: Path
) -> None:
    assert pinned(cards, hub.url, name="changing").returncode == 0
    lock = cards / "changing.lock.json"
    before = lock.read_text()
    old = WeightsLock.parse(before)
    (changed_model / "merges.txt").unlink()
    (changed_model / "added_tokens.json").write_text("{}")
    config = changed_model / "config.json"
    config.write_text(config.read_text().replace("bfloat16", "bfloat61", 1))
    done = pinned(cards, hub.url, name="changing")
    remedy = refused(done, "would change")
    assert ("--renew" in remedy, f"--revision {old.commit}" in remedy) == (True, True), remedy
    assert lock.read_text() == before
    shown = done.stdout.splitlines()
    assert shown[0].startswith(f"commit     {old.commit} -> ")
    assert shown[1:] == [
        "added      added_tokens.json (2 bytes)",
        "changed    config.json (same size)",
        "removed    merges.txt (14 bytes)",
    ]
    done = pinned(cards, hub.url, "--renew", name="changing")
    assert done.returncode == 0, done.stderr
    assert "removed    merges.txt" in done.stdout
    assert "merges.txt" not in json.loads(lock.read_text())["files"]


def test_a_broken_lock_is_only_replaced_when_asked(cards: Path, hub: Hub) -> None:
    (cards / LOCK).write_text('{"files": {}}')
    assert "--renew" in refused(pinned(cards, hub.url), LOCK)
    assert pinned(cards, hub.url, "--renew").returncode == 0
    assert (cards / LOCK).read_text() == (CARDS / LOCK).read_text()


def test_a_commit_can_be_named(cards: Path, hub: Hub) -> None:
    commit = json.loads((CARDS / LOCK).read_text())["commit"]
    assert pinned(cards, hub.url, "--revision", commit).returncode == 0
    refused(pinned(cards, hub.url, "--revision", "0" * 40), "no revision '0000")


@pytest.mark.parametrize("there", [None, "0" * 40])
def test_a_first_pin_takes_the_newest_where_the_hub_has_not_what_the_box_holds(
    cards: Path, hub: Hub, there: str | None
) -> None:
    lock = first_pin.asked_now(NAME, hub.url, str(cards), there)
    assert isinstance(lock, WeightsLock), lock
    source = pin.Source(model=NAME, hub=hub.url, cards_folder=str(cards))
    assert lock == pin.asked_of_the_hub(source, "main")


def test_a_repository_that_the_hub_does_not_know(cards: Path, hub: Hub) -> None:
    card = (cards / f"{NAME}.yml").read_text().replace(f"rehearsal/{NAME}", "rehearsal/none")
    (cards / "none.yml").write_text(card)
    remedy = refused(pinned(cards, hub.url, name="none"), "knows no rehearsal/none")
    assert "secrets/hub-token" in remedy


def test_a_card_that_is_not_there_names_the_nearest(cards: Path, hub: Hub) -> None:
    done = pinned(cards, hub.url, name="tiny-qwen3.5-mpt")
    assert done.returncode == 1
    assert f"did you mean {NAME}?" in done.stderr


def test_a_gated_model_wants_a_token_and_the_right_one(cards: Path, hub: Hub) -> None:
    hub.ctl(token="hf_right")
    remedy = refused(pinned(cards, hub.url), "needs a token (401)")
    assert ("secrets/hub-token" in remedy, "HF_TOKEN" in remedy) == (True, True), remedy
    done = pinned(cards, hub.url, token="hf_wrong")
    assert "that account's token" in refused(done, "not open to this token (403)")
    assert "hf_wrong" not in done.stdout + done.stderr
    done = pinned(cards, hub.url, token="hf_right")
    assert done.returncode == 0, done.stderr
    assert "hf_right" not in done.stdout + done.stderr


def test_the_token_file_is_used_and_must_be_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "hub-token"
    monkeypatch.setattr(hub_token, "TOKEN_FILE", file)
    monkeypatch.delenv("HF_TOKEN", raising=False)
    assert hub_token.token() is None
    file.write_text("hf_of_the_file\n")
    file.chmod(0o644)
    with pytest.raises(SecretError, match="chmod 600"):
        hub_token.token()
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    assert hub_token.token() == "hf_of_the_file"
    monkeypatch.setenv("HF_TOKEN", "hf_of_the_environment")
    assert hub_token.token() == "hf_of_the_environment"


def test_a_hub_that_is_not_there(cards: Path) -> None:
    remedy = refused(pinned(cards, "http://127.0.0.1:9"), "http://127.0.0.1:9 cannot be reached")
    assert "--hub" in remedy


def test_a_hub_that_is_unwell(cards: Path, hub: Hub) -> None:
    hub.ctl(unavailable=1)
    refused(pinned(cards, hub.url), "answered with status 503")


def test_something_that_is_no_hub(cards: Path, hub: Hub) -> None:
    refused(pinned(cards, f"{hub.url}/files"), hub.url)
    assert not (cards / LOCK).exists()


def test_a_file_that_comes_damaged_makes_no_lock(cards: Path, hub: Hub) -> None:
    hub.ctl(corrupt=True, only="tokenizer.json")
    refused(pinned(cards, hub.url), "tokenizer.json came damaged")
    assert not (cards / LOCK).exists()


def test_a_disk_without_room(cards: Path, hub: Hub) -> None:
    done = pinned_with_small_files_only(cards, hub.url, 5000)  # the tokenizer is larger
    assert "as it was" in refused(done, "File too large")
    assert not (cards / LOCK).exists()


def test_a_lock_that_cannot_be_written(cards: Path, hub: Hub) -> None:
    (cards / LOCK).mkdir()
    refused(pinned(cards, hub.url, "--renew"), "Is a directory")


def test_the_hub_comes_from_the_settings(tmp_path: Path) -> None:
    given = SimpleNamespace(name=NAME, hub=None, cards=None)
    (tmp_path / "all.py").write_text('hub = "https://one.example"\ncards_folder = "cards"\n')
    assert pin.source_from(tmp_path, given).hub == "https://one.example"  # type: ignore[arg-type]
    (tmp_path / "site.py").write_text('hub = "https://two.example"\n')
    assert pin.source_from(tmp_path, given).hub == "https://two.example"  # type: ignore[arg-type]
    (tmp_path / "site.py").write_text("hub = 8\n")
    with pytest.raises(pin.PinError, match="hub: found 8"):
        pin.source_from(tmp_path, given)  # type: ignore[arg-type]
    (tmp_path / "site.py").write_text("hub = undefined\n")
    with pytest.raises(pin.PinError, match="NameError"):
        pin.source_from(tmp_path, given)  # type: ignore[arg-type]
