"""What the model hub means by a refusal, in words."""

from dataclasses import dataclass

from aibox.decide.refusal import Refusal

WHERE_TOKEN = "secrets/hub-token (one line, mode 600) or the environment as HF_TOKEN"  # noqa: S105  a place, no token
AGAIN = "run the deploy again: what is there already is kept"


@dataclass(frozen=True)
class Asked:
    """What the hub was asked for; with_token: whether a token went along."""

    hub: str
    repository: str
    commit: str
    path: str
    with_token: bool

    @property
    def at(self) -> str:
        """The address, without what a person need not see."""
        return f"{self.hub}/{self.repository}/resolve/{self.commit}"


def passing(status: int) -> bool:
    """Whether the same question may be answered a moment later."""
    return status in (408, 429) or status >= 500


def refusal_of(status: int, code: str, asked: Asked) -> Refusal:
    """Why the hub does not give a file. code: its header X-Error-Code, empty without one.

    Without a token the hub says 401 RepoNotFound of a repository that it does not know, or does
    not show; with one 404 of the same name.
    """
    if code == "RepoNotFound":
        return Refusal(
            f"{asked.hub} knows no {asked.repository}, or does not show it to us ({status})",
            "the repository that the model's card names",
            f"correct `repository` in the card; for a private one put a token into {WHERE_TOKEN}",
        )
    if status in (401, 403):
        return no_access(status, asked)
    if code == "RevisionNotFound":
        return Refusal(
            f"{asked.repository} has no commit {asked.commit} any more (404 at {asked.at})",
            "the commit of the weights lock",
            "pin the weights anew (make lock-model) and read what changed",
        )
    if status == 404:
        return Refusal(
            f"{asked.path} is not on the hub (404 at {asked.at})",
            "every file of the weights lock",
            "see what became of this commit on the hub; if it is gone, pin the weights anew",
        )
    return Refusal(
        f"the hub answered with {status} {code}".rstrip() + f" at {asked.at}",
        f"the file {asked.path}",
        f"see whether the hub is well, then {AGAIN}",
    )


def no_access(status: int, asked: Asked) -> Refusal:
    page = f"{asked.hub}/{asked.repository}"
    if not asked.with_token:
        return Refusal(
            f"{asked.repository} is gated: the hub wants a token ({status} at {asked.at})",
            "a token of an account that was given access",
            f"ask for access at {page}, then put the token into {WHERE_TOKEN}",
        )
    if status == 401:
        return Refusal(
            f"the hub does not know our token (401 at {asked.at})",
            "a token that is valid",
            f"make one at {asked.hub}/settings/tokens and put it into {WHERE_TOKEN}",
        )
    return Refusal(
        f"{asked.repository} is gated, and not open to this token (403 at {asked.at})",
        "a token of an account that was given access",
        f"ask for access at {page} with the token's account, or put another token into "
        f"{WHERE_TOKEN}",
    )


def unreachable(words: str, asked: Asked) -> Refusal:
    """No answer, or one that breaks off again and again. words: what the last try ended with."""
    return Refusal(
        f"the hub cannot be reached: {words} at {asked.at}",
        f"the file {asked.path}",
        "see that the box reaches the hub, then run the deploy again: it goes on from there",
    )


def another_size(found: str, wanted: int, asked: Asked) -> Refusal:
    return Refusal(
        f"{asked.path} has {found} bytes at {asked.at}",
        f"{wanted} bytes, as the weights lock says",
        "look at who answers for the hub; if it is the hub, pin the weights anew",
    )


def no_ranges(status: int, asked: Asked) -> Refusal:
    return Refusal(
        f"{status} without the asked range at {asked.at}",
        "a hub that gives parts of a file (206 Partial Content)",
        "correct the setting `hub`, or see what stands between the box and the hub",
    )
