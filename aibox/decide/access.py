"""Can we work on the box at all? Decided from what the login shell says, before any sudo."""

from aibox.decide.refusal import Refusal


def judge_login(uid: int, python: str | None, sudo: str, can_ask: bool) -> Refusal | None:
    """Why this login is not enough; None when it is.

    sudo: "ok", "no sudo", or what `sudo -n true` said. can_ask: a password is at hand, or there
    is a terminal to ask for one.
    """
    if uid != 0 and sudo == "no sudo":
        return Refusal(
            "a login that is not root, and no sudo on the box",
            "root, or a login that may use sudo",
            "on the box, as root: `apt-get install sudo && usermod -aG sudo NAME`",
        )
    if uid != 0 and sudo != "ok" and not (can_ask and "password" in sudo):
        return Refusal(
            f"sudo says: {sudo}",
            "a login that may use sudo",
            "let it use sudo (on the box, as root: `usermod -aG sudo NAME`); where sudo wants a "
            "password, run on a terminal, which asks for it",
        )
    if python is None:
        return Refusal("no python3 on the box", "python3", "on it: `sudo apt-get install python3`")
    return None
