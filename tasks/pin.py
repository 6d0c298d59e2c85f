"""Pin a model's weights: `make lock-model MODEL=NAME` writes commit, sizes and sums of its files.

The lock <cards>/<NAME>.lock.json is what a box fetches, to the bit. Nothing large is downloaded:
the hub publishes the sums of the large files, the small ones are fetched and hashed. A lock that
is there is only replaced with --renew, and what would change is shown first.
"""

from __future__ import annotations

import argparse
import hashlib
import runpy
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from httpx2 import HTTPError
from huggingface_hub import HfApi
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils.tqdm import disable_progress_bars
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aibox.box.job import write_whole
from aibox.card import CardError, ModelCard, load_card, load_weights_lock, lock_path
from aibox.decide.hub import WHERE_TOKEN
from aibox.decide.pins import changes, judge_paths, lock_text, read_by_vllm, summed_up
from aibox.decide.refusal import Refusal, of_file
from aibox.decide.weights import LockedFile, WeightsLock
from aibox.faults import faults_of
from aibox.kinds import ControlFolder, ModelName, Url
from aibox.parser import Parser
from tasks.box import PROJECT
from tasks.given_secrets import SecretError
from tasks.hub_token import token

METADATA_TIMEOUT_S = 30


class PinError(Exception):
    """A lock that cannot be made; says why in the three lines of a refusal."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        self.refusal = Refusal(found, expected, remedy)
        super().__init__(str(self.refusal))


class UnknownRevisionError(PinError):
    """The hub has the repository, and nothing of it under this name."""


class Source(BaseModel):
    """What pinning needs of the settings."""

    model_config = ConfigDict(frozen=True, strict=True)

    model: ModelName = Field(description="the name of a model card, text")
    hub: Url = Field(description="an http or https URL, text")
    cards_folder: ControlFolder = Field(description="a path, text")

    @property
    def cards(self) -> Path:
        return PROJECT / self.cards_folder


def main(words: list[str] | None = None) -> int:
    """Returns 0 when the lock is as it should be, 1 after a refusal."""
    given = parser().parse_args(words)
    try:
        source = source_from(PROJECT / "group_data", given)
        for line in pin(source, given.revision, renew=given.renew):
            print(line)
    except (PinError, CardError, SecretError) as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted: the lock is as it was", file=sys.stderr)
        return 1
    return 0


def parser() -> Parser:
    parser = Parser(prog="python -m tasks.pin", description=__doc__)
    parser.add_argument("name", help="the model card's name, such as qwen3.8-27b")
    parser.add_argument("--revision", default="main", help="a branch, tag or commit (default main)")
    parser.add_argument("--hub", help="URL of the hub, instead of the setting `hub`")
    parser.add_argument("--cards", help="folder of card and lock, instead of `cards_folder`")
    parser.add_argument("--renew", action="store_true", help="replace a lock that would change")
    return parser


def pin(source: Source, revision: str, *, renew: bool) -> Iterator[str]:
    """Make the lock of a model, or find it as it should be; yields what it has to say.

    Raises PinError, CardError and SecretError.
    """
    old = lock_there(source, renew=renew)
    new = asked_of_the_hub(source, revision)
    path, summary = lock_path(source.cards, source.model), summed_up(new)
    different = changes(old, new) if old else []
    yield from different
    if old and not different:
        yield f"{path} is as the hub says: {summary}"
        return
    if old and not renew:
        raise PinError(
            f"a lock that would change ({path})",
            "weights that stay as they were pinned",
            f"take the change with --renew, or keep to it with --revision {old.commit}",
        )
    write(path, new)
    yield f"{path} is written: {summary}"


def asked_of_the_hub(source: Source, revision: str) -> WeightsLock:
    """The lock as the hub has it now. Raises PinError, CardError and SecretError."""
    card = load_card(source.cards, source.model)
    with in_words(source.hub, card, revision):
        return lock_of(HfApi(source.hub, token=token() or False), card, revision)


def write(path: Path, lock: WeightsLock) -> None:
    """Raises PinError."""
    try:
        write_whole(path, lock_text(lock))
    except OSError as error:
        raise unwritable(error) from None


# --- settings, token and the lock that is there ------------------------------------------------


def source_from(group_data: Path, given: argparse.Namespace) -> Source:
    """all.py, site.py over it, and the command line over both."""
    values: dict[str, Any] = {}
    for file in (group_data / "all.py", group_data / "site.py"):
        values |= settings_in(file)
    values |= {"model": given.name}
    values |= {"hub": given.hub} if given.hub else {}
    values |= {"cards_folder": given.cards} if given.cards else {}
    try:
        return Source.model_validate({key: values.get(key) for key in Source.model_fields})
    except ValidationError as error:
        faults = "; ".join(f"{key}: {fault}" for key, fault in faults_of(error, Source))
        raise PinError(faults, "settings that can work", "correct them and run again") from None


def settings_in(file: Path) -> Mapping[str, Any]:
    """The names a file of group data sets, as pyinfra reads it; none when there is no file."""
    if not file.exists():
        return {}
    try:
        return runpy.run_path(str(file))
    except Exception as error:  # the file is a person's own code
        words = f"{type(error).__name__}: {error}"
        raise PinError(f"{file}: {words}", "settings as Python", "correct the file") from None


def lock_there(source: Source, *, renew: bool) -> WeightsLock | None:
    """The lock that is there. A broken one is an error, but not for one who wants it renewed."""
    try:
        return load_weights_lock(source.cards, source.model)
    except CardError as error:
        if renew:
            return None
        path = lock_path(source.cards, source.model)
        fault = error.faults[0].partition("; make it anew")[0]
        raise PinError(fault, "a lock, or none", f"make {path} anew with --renew") from None


# --- the hub ------------------------------------------------------------------------------------


def lock_of(hub: HfApi, card: ModelCard, revision: str) -> WeightsLock:
    """The lock of what the hub has at a revision. Raises PinError, and what the client raises."""
    info = hub.model_info(
        card.repository, revision=revision, files_metadata=True, timeout=METADATA_TIMEOUT_S
    )
    wanted = [file for file in info.siblings or [] if read_by_vllm(file.rfilename)]
    refusal = judge_paths(file.rfilename for file in wanted)
    if refusal:
        raise PinError(refusal.found, refusal.expected, refusal.remedy)
    if not info.sha:
        raise ValueError("an answer without a commit")
    files = {
        file.rfilename: LockedFile(file.lfs.size, file.lfs.sha256) for file in wanted if file.lfs
    }
    small = [file for file in wanted if not file.lfs]
    files |= hashed(hub, card.repository, info.sha, small)
    # Read back as a deploy reads it: what the hub sent must be a lock.
    return WeightsLock.parse(lock_text(WeightsLock(card.repository, info.sha, files)))


@dataclass(frozen=True)
class Sums:
    """size in bytes, sha256, and the sha1 by which git names the same content."""

    size: int
    sha256: str
    git_blob: str


def sums(content: bytes) -> Sums:
    blob = hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False)
    return Sums(len(content), hashlib.sha256(content).hexdigest(), blob.hexdigest())


def hashed(
    hub: HfApi, repository: str, commit: str, files: Iterable[RepoSibling]
) -> dict[str, LockedFile]:
    """Files that lie in git itself: fetched, held against git's own sum, and hashed."""
    disable_progress_bars()
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for file in files:
            path = hub.hf_hub_download(
                repository, file.rfilename, revision=commit, local_dir=folder
            )
            came = sums(Path(path).read_bytes())
            if came.git_blob != file.blob_id:
                raise PinError(
                    f"{file.rfilename} came damaged: git's sum is {came.git_blob}",
                    f"{file.blob_id}, as the hub lists it",
                    "run again; if it stays, something between here and the hub changes files",
                )
            found[file.rfilename] = LockedFile(came.size, came.sha256)
    return found


@contextmanager
def in_words(hub: str, card: ModelCard, revision: str) -> Iterator[None]:
    """Says in words what can go wrong between here and the hub."""
    repository = card.repository
    try:
        yield
    except GatedRepoError as error:
        raise no_access(hub, repository, status(error)) from None
    except RepositoryNotFoundError:
        raise PinError(
            f"{hub} knows no {repository}, or does not show it to us",
            "the repository that the model's card names",
            f"correct `repository` in the card; for a private one put a token into {WHERE_TOKEN}",
        ) from None
    except RevisionNotFoundError:
        raise UnknownRevisionError(
            f"{repository} has no revision {revision!r}",
            "a branch, a tag or a commit of 40 hex digits",
            f"look at {hub}/{repository}/commits/main and name one with --revision",
        ) from None
    except HfHubHTTPError as error:
        if status(error) in (401, 403):
            raise no_access(hub, repository, status(error)) from None
        raise PinError(
            f"{hub} answered with status {status(error)}",
            f"an answer about {repository}",
            "try again later; see whether the hub is well",
        ) from None
    except OfflineModeIsEnabled:
        raise PinError(
            "HF_HUB_OFFLINE in the environment", "a way to the hub", "unset it"
        ) from None
    except LocalEntryNotFoundError as error:  # the hub went away between two files
        raise unreachable(hub, error.__cause__ or error) from None
    except HTTPError as error:
        raise unreachable(hub, error) from None
    except HFValidationError as error:
        raise PinError(str(error), "a name the hub can have", "correct the card") from None
    except OSError as error:
        raise unwritable(error) from None
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise PinError(
            f"{hub} answered with something else ({error})",
            "a model hub that speaks the API of huggingface.co",
            "correct the setting `hub`",
        ) from None


def status(error: HfHubHTTPError) -> int:
    return error.response.status_code


def no_access(hub: str, repository: str, code: int) -> PinError:
    asked = f"ask for access at {hub}/{repository}, then "
    if code == 403:
        return PinError(
            f"{repository} is not open to this token (403)",
            "a token of an account that was given access",
            f"{asked}put that account's token into {WHERE_TOKEN}",
        )
    return PinError(
        f"{repository} needs a token (401)",
        "a token that the hub knows",
        f"{asked}put a token into {WHERE_TOKEN}",
    )


def unreachable(hub: str, error: BaseException) -> PinError:
    words = (str(error) or type(error).__name__).splitlines()[0]
    return PinError(
        f"{hub} cannot be reached ({words})",
        "an answer of the hub",
        "see to the network and the setting `hub`, or name another one with --hub",
    )


def unwritable(error: OSError) -> PinError:
    return PinError(
        of_file(error),
        "a disk with room that can be written",
        "mend this and run again: the lock is as it was",
    )


if __name__ == "__main__":
    sys.exit(main())
