"""Whether a login is enough to work on a box."""

import pytest

from aibox.decide.access import judge_login, no_connection

ASKS = "sudo: a password is required"
NOT_HE = "guest is not in the sudoers file."


@pytest.mark.parametrize(
    ("uid", "sudo", "can_ask"),
    [
        (0, "ok", False),
        (0, "no sudo", False),
        (0, ASKS, False),
        (1000, "ok", False),
        (1000, ASKS, True),
    ],
)
def test_root_and_whoever_may_become_it_can_work(uid: int, sudo: str, can_ask: bool) -> None:
    assert judge_login(uid, "3.11", sudo, can_ask) is None


@pytest.mark.parametrize(
    ("uid", "python", "sudo", "can_ask", "found", "remedy"),
    [
        (1000, "3.11", "no sudo", True, "a login that is not root, and no sudo", "apt-get install"),
        (1000, "3.11", ASKS, False, f"sudo says: {ASKS}", "run on a terminal"),
        (1000, "3.11", NOT_HE, True, f"sudo says: {NOT_HE}", "usermod -aG sudo"),
        (0, None, "ok", False, "no python3 on the box", "apt-get install python3"),
        (1000, None, "ok", False, "no python3 on the box", "apt-get install python3"),
    ],
)
def test_a_login_that_is_not_enough_is_told(
    uid: int, python: str | None, sudo: str, can_ask: bool, found: str, remedy: str
) -> None:
    refusal = judge_login(uid, python, sudo, can_ask)
    assert refusal is not None
    assert refusal.found.startswith(found)
    assert remedy in refusal.remedy


@pytest.mark.parametrize(
    ("user", "port", "command"),
    [
        (None, None, "`ssh box`"),
        ("admin", None, "`ssh admin@box`"),
        ("admin", 2222, "`ssh -p 2222 admin@box`"),
    ],
)
def test_what_to_try_by_hand_is_named(user: str | None, port: int | None, command: str) -> None:
    refusal = no_connection("timed out", user, "box", port)
    assert refusal.found == "no ssh connection: timed out"
    assert command in refusal.remedy
