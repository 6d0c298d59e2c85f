"""Do we get onto the box, and can we work there? Decided before any sudo."""

from aibox.decide.refusal import Refusal


def judge_login(
    uid: int, python: str | None, sudo: str, can_ask: bool, greeting: str = ""
) -> Refusal | None:
    """Why this login is not enough; None when it is.

    greeting: what its shell prints before the answer to any command.
    sudo: "ok", "no sudo", or what `sudo -n true` said. can_ask: a password is at hand, or there
    is a terminal to ask for one.
    """
    if greeting:
        return Refusal(
            f"the login shell says {greeting.splitlines()[0]!r} before each answer",
            "a shell that is silent when it runs a command (scp and rsync need that too)",
            "in its start-up file (~/.bashrc, ~/.zshenv, ~/.config/fish/config.fish) print only "
            "where the shell is interactive",
        )
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


def no_connection(said: str, user: str | None, address: str, port: int | None) -> Refusal:
    """Nobody answered, or nobody let us in. said: the words of the ssh client."""
    words = ["ssh", *(["-p", str(port)] if port else []), f"{user}@{address}" if user else address]
    return Refusal(
        f"no ssh connection: {said.replace('[Errno None] ', '')}",
        "a login over ssh that asks for nothing",
        f"make `{' '.join(words)}` work from here, then run again",
    )
