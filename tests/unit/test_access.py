"""May we work on the box? From what the login shell said, and from what ssh said."""

from __future__ import annotations

import pytest

from aibox.decide.access import judge_login, no_connection

WANTS_A_PASSWORD = "sudo: a password is required"


@pytest.mark.parametrize(
    ("uid", "sudo", "can_ask"),
    [(0, "no sudo", False), (1000, "ok", False), (1000, WANTS_A_PASSWORD, True)],
)
def test_a_login_that_can_become_root_is_enough(uid: int, sudo: str, can_ask: bool) -> None:
    assert judge_login(uid, "3.11", sudo, can_ask) is None


@pytest.mark.parametrize(
    ("sudo", "can_ask", "found"),
    [
        ("no sudo", True, "no sudo on the box"),
        (WANTS_A_PASSWORD, False, WANTS_A_PASSWORD),
        ("ada is not in the sudoers file.", True, "not in the sudoers file"),
    ],
)
def test_a_login_that_cannot_is_refused(sudo: str, can_ask: bool, found: str) -> None:
    refusal = judge_login(1000, "3.11", sudo, can_ask)
    assert refusal is not None
    assert found in refusal.found
    assert "usermod -aG sudo" in refusal.remedy


def test_a_box_without_python_is_refused() -> None:
    refusal = judge_login(0, None, "ok", False)
    assert refusal is not None
    assert "no python3" in refusal.found


@pytest.mark.parametrize(
    ("user", "port", "command"),
    [("ada", None, "`ssh ada@box`"), (None, 2222, "`ssh -p 2222 box`"), (None, None, "`ssh box`")],
)
def test_without_a_connection_the_command_to_try_is_named(
    user: str | None, port: int | None, command: str
) -> None:
    refusal = no_connection("Could not connect ([Errno None] Unable)", user, "box", port)
    assert refusal.found == "no ssh connection: Could not connect (Unable)"
    assert command in refusal.remedy
