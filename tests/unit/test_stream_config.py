"""What the filter is told, and what it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aibox.decide.acceptance import Counters
from aibox.gateway.door import keys_in
from aibox.stream.__main__ import main
from aibox.stream.config import ConfigError, Keys, load, load_keys
from aibox.stream.mends import DEFAULTS
from aibox.stream.metrics import STREAK, Metrics


def written(folder: Path, told: Any) -> Path:
    path = folder / "stream.json"
    path.write_text(told if isinstance(told, str) else json.dumps(told))
    return path


def test_everything_has_a_default(tmp_path: Path) -> None:
    config = load(written(tmp_path, {}))
    assert (config.port, config.upstream) == (4000, "http://127.0.0.1:8000")
    assert config.modes == DEFAULTS
    told = {
        "mends": {"think_tag": "on"},
        "metrics_allowed": ["10.0.0.0/8"],
        "limits": {"body_s": 1},
    }
    config = load(written(tmp_path, told))
    assert config.modes == {**DEFAULTS, "think_tag": "on"}
    assert str(config.networks[0]) == "10.0.0.0/8"


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ("{", "is no JSON"),
        ("[]", "a mapping"),
        ({"prot": 1}, "did you mean port?"),
        ({"port": 70000}, "a TCP port"),
        ({"port": "4000"}, "a TCP port"),
        ({"address": "localhost"}, "an IP address of this machine"),
        ({"upstream": "https://x/v1"}, "http://127.0.0.1:8000"),
        ({"mends": {"think_tags": "on"}}, "did you mean think_tag?"),
        ({"mends": {"think_tag": "yes"}}, '"on", "count" or "off"'),
        ({"metrics_allowed": ["monitor"]}, "192.168.1.0/24"),
        ({"limits": {"streams": 0}}, "over 0"),
        ({"keepalive_s": -1}, "seconds of silence"),
    ],
)
def test_a_bad_setting_is_refused_in_words(
    tmp_path: Path, told: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(written(tmp_path, told))]) == 1
    said = capsys.readouterr().err
    assert words in said
    assert said.startswith("found     ") and "\nexpected  " in said and "\ndo        " in said


def test_all_faults_come_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(written(tmp_path, {"port": 0.5, "keepalive_s": "x", "nonsense": 1}))
    found = error.value.refusal.found
    assert all(key in found for key in ("port", "keepalive_s", "nonsense"))


def test_a_file_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(tmp_path / "none.json")]) == 1
    assert "No such file" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        main([])
    assert ended.value.code == 1


def keys_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "keys"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_keys_have_names(tmp_path: Path) -> None:
    keys = load_keys(keys_file(tmp_path, "# ours\nlaptop: sk-1:x\n\n  desk:sk-2  \n"))
    assert keys.name_of("sk-1:x") == "laptop"
    assert keys.name_of("sk-2") == "desk"
    assert keys.name_of("sk-3") is keys.name_of("") is None
    assert load_keys(None).open
    assert not keys.open


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [
        ("a: SECRET", 0o644, "open to everyone"),
        ("", 0o600, "has no key"),
        ("# a: SECRET", 0o600, "has no key"),
        ("a: SECRET\na: SECRET2", 0o600, "line 2"),
        ("SECRET", 0o600, "line 1"),
        ("a b: SECRET", 0o600, "line 1"),
        ("a:", 0o600, "line 1"),
    ],
)
def test_bad_keys_are_refused_and_never_shown(
    tmp_path: Path, text: str, mode: int, words: str
) -> None:
    with pytest.raises(ConfigError) as error:
        load_keys(keys_file(tmp_path, text, mode))
    said = str(error.value.refusal)
    assert words in said
    assert "SECRET" not in said


def test_every_key_is_compared_whichever_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[bytes] = []

    def compare(one: bytes, two: bytes) -> bool:
        assert len(one) == len(two)
        compared.append(two)
        return one == two

    monkeypatch.setattr("aibox.stream.config.hmac.compare_digest", compare)
    keys = Keys({"a": "1", "b": "22", "c": "333"})
    for key in ("1", "333", "no", ""):
        compared.clear()
        keys.name_of(key)
        assert len(compared) == 3


def test_a_streak_of_refused_drafts_is_one_streak() -> None:
    metrics = Metrics()

    def seen(drafted: int, accepted: int) -> tuple[float, float]:
        metrics.see_drafts(Counters(draft_tokens=drafted, accepted_tokens=accepted))
        value = metrics.registry.get_sample_value
        return (
            value("aibox_stream_draft_tokens_since_accepted") or 0,
            value("aibox_stream_zero_acceptance_streaks_total") or 0,
        )

    assert seen(1000, 10) == (0, 0)
    assert seen(1000 + STREAK - 1, 10) == (STREAK - 1, 0)
    assert seen(1000 + STREAK, 10) == (STREAK, 1)
    assert seen(1000 + 2 * STREAK, 10) == (2 * STREAK, 1)
    assert seen(1000 + 3 * STREAK, 11) == (0, 1)
    assert seen(5, 0) == (0, 1)  # the server was restarted


@pytest.mark.parametrize("name", ["al", "A1", "a.b-c_d", "-al", ".al", "_al", "a b", "", "x" * 65])
def test_control_and_filter_take_the_same_names_of_keys(tmp_path: Path, name: str) -> None:
    """What control lets through must not keep the filter from starting."""
    text = f"{name}: sk-0123456789"
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    taken = []
    for read in (lambda: keys_in(text), lambda: load_keys(path)):
        try:
            read()
            taken.append(True)
        except (ValueError, ConfigError):
            taken.append(False)
    assert taken in ([True, True], [False, False])
