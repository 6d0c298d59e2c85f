"""Keys that are given on control: read, or refused in words that do not hold them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aibox.decide import doors
from aibox.decide.doors import Standing
from aibox.decide.services import Verdict
from tasks import door_keys
from tasks.given_secrets import SecretError


@pytest.fixture(autouse=True)
def secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LITELLM_MASTER_KEY", raising=False)
    for name, file in (
        ("MASTER_FILE", "litellm-master-key"),
        ("KEYS_FILE", "litellm-keys"),
        ("STREAM_FILE", "stream-keys"),
    ):
        monkeypatch.setattr(door_keys, name, tmp_path / file)
    return tmp_path


BOTH = Standing(Verdict(on=True), Verdict(on=True), "")
ON_THE_BOX = (doors.STREAM_KEYS, doors.GATEWAY_KEYS)


def write(path: Path, text: str, mode: int = 0o600) -> None:
    path.write_text(text)
    path.chmod(mode)


def test_without_any_there_is_none(secrets: Path) -> None:
    assert door_keys.master_key() is None
    assert door_keys.gateway_keys() == door_keys.stream_keys() == ""
    assert door_keys.refusals(BOTH, ()) == []
    assert list(secrets.iterdir()) == []


def test_the_environment_comes_before_the_file(
    secrets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(secrets / "litellm-master-key", "sk-of-the-file\n")
    assert door_keys.master_key() == "sk-of-the-file"
    monkeypatch.setenv("LITELLM_MASTER_KEY", "sk-of-the-environment")
    assert door_keys.master_key() == "sk-of-the-environment"


def test_lines_are_written_in_one_form(secrets: Path) -> None:
    write(secrets / "stream-keys", "# mine\nal :  sk-0123456789\n\nbo: another-one\n")
    assert door_keys.stream_keys() == "al: sk-0123456789\nbo: another-one\n"


@pytest.mark.parametrize(
    ("file", "text", "mode", "said"),
    [
        ("litellm-master-key", "without-sk-before", 0o600, "begins with sk-"),
        ("litellm-master-key", "sk-two words", 0o600, "begins with sk-"),
        ("litellm-master-key", "sk-", 0o600, "begins with sk-"),
        ("litellm-master-key", "sk-0123456789", 0o644, "chmod 600"),
        ("litellm-keys", "no line of a key", 0o600, "line 1 is no"),
        ("litellm-keys", "master: sk-0123456789", 0o600, "names master"),
        ("litellm-keys", "al: sk-0123456789", 0o640, "chmod 600"),
        ("stream-keys", "al: sk-0123456789\nal: sk-0123456789", 0o600, "names al again"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused(
    secrets: Path, file: str, text: str, mode: int, said: str
) -> None:
    write(secrets / file, text, mode)
    [refusal] = door_keys.refusals(BOTH, ())
    assert said in str(refusal)
    assert not any(word in str(refusal) for word in ("0123456789", "without-sk", "two words"))


def test_a_secret_error_is_a_refusal() -> None:
    assert str(SecretError("a", "b", "c")).split() == ["found", "a", "expected", "b", "do", "c"]


@pytest.mark.parametrize("text", [None, "", "\n\n", "# al: sk-0123456789\n"])
def test_a_box_with_keys_is_not_opened_by_a_file_that_says_nothing(
    secrets: Path, text: str | None
) -> None:
    if text is not None:
        write(secrets / "stream-keys", text)
        write(secrets / "litellm-keys", text)
    stream, gateway = door_keys.refusals(BOTH, ON_THE_BOX)
    said = "this project has no" if text is None else "names no key"
    assert said in stream.found
    assert said in gateway.found
    assert "word none" in stream.remedy
    assert "opens the filter" in stream.remedy
    assert "opens" not in gateway.remedy
    assert door_keys.refusals(doors.NONE, ON_THE_BOX) == []
    assert door_keys.refusals(BOTH, ()) == []


@pytest.mark.parametrize("text", ["none\n", "# open, on purpose\n none \n"])
def test_the_word_none_takes_the_keys_away(secrets: Path, text: str) -> None:
    write(secrets / "stream-keys", text)
    write(secrets / "litellm-keys", text)
    assert door_keys.refusals(BOTH, ON_THE_BOX) == []
    assert door_keys.stream_keys() == door_keys.gateway_keys() == ""


def test_a_file_with_one_key_less_is_no_matter(secrets: Path) -> None:
    write(secrets / "stream-keys", "al: sk-0123456789\n# bo: sk-9876543210\n")
    assert door_keys.refusals(BOTH, (doors.STREAM_KEYS,)) == []
    assert door_keys.stream_keys() == "al: sk-0123456789\n"
