"""A model that is not pinned yet: the plan is made for what the hub has now, and Enter pins it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gevent.lock import BoundedSemaphore  # type: ignore[import-untyped]
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State, operation

from aibox.card import CardError, lock_path
from aibox.decide.pins import summed_up
from aibox.decide.refusal import Refusal
from aibox.decide.weights import WeightsLock
from aibox.settings import Settings
from tasks import invocation
from tasks.drift_report import because
from tasks.given_secrets import SecretError
from tasks.operations import Commands, say_refusal

_asked: dict[Path, WeightsLock | Refusal] = {}
_one_at_a_time = BoundedSemaphore()  # boxes are looked at beside each other


@dataclass(frozen=True)
class Pinned:
    """Settings with a weights lock; or without one, and why."""

    settings: Settings
    refusal: Refusal | None = None


def pinned(settings: Settings, commit_there: Callable[[Settings], str | None]) -> Pinned:
    """The settings with the lock of the project, or with the one that this run would write.

    commit_there: tells which commit of the model a box holds already, if any: it is preferred to
    the hub's current one. All boxes of a run get the same.
    """
    if settings.is_pinned:
        return Pinned(settings)
    if not invocation.can_ask() and not invocation.only_shows():
        return Pinned(settings, missing(settings))
    path = lock_path(settings.cards, settings.model)
    with _one_at_a_time:
        if path not in _asked:
            _asked[path] = asked_now(
                settings.model, settings.hub, settings.cards_folder, commit_there(settings)
            )
        lock = _asked[path]
    if isinstance(lock, Refusal):
        return Pinned(settings, lock)
    return Pinned(settings.pinned_at(lock))


def asked_now(model: str, hub: str, cards_folder: str, there: str | None) -> WeightsLock | Refusal:
    """The lock of the commit that a box holds, or of the newest where the hub has that no more."""
    from tasks import pin  # noqa: PLC0415  the hub's client, which hardly any run needs

    source = pin.Source(model=model, hub=hub, cards_folder=cards_folder)
    try:
        if there is not None:
            with suppress(pin.UnknownRevisionError):
                return pin.asked_of_the_hub(source, there)
        return pin.asked_of_the_hub(source, "main")
    except (pin.PinError, SecretError) as error:
        return error.refusal
    except CardError as error:
        return Refusal(str(error), "a card that can be read", "correct it")


def missing(settings: Settings) -> Refusal:
    return Refusal(
        f"the weights of {settings.model} are not pinned: there is no "
        f"{settings.cards_folder}/{settings.model}.lock.json",
        "a lock with one commit of the weights and the sum of each file",
        f"`make lock-model MODEL={settings.model}`, or deploy on a terminal without -y and --json: "
        "it shows what it would pin, and pins it when you agree",
    )


def is_pending(settings: Settings) -> bool:
    """Whether this run has yet to write the lock that it goes by."""
    return not lock_path(settings.cards, settings.model).exists()


def in_words(settings: Settings) -> str:
    """What the person agrees to with the plan."""
    lock = settings.weights
    return (
        f"{lock.repository} at {summed_up(lock)}: "
        f"{settings.cards_folder}/{settings.model}.lock.json is written when you agree"
    )


@operation()
def recorded(settings: Settings) -> Commands:
    """The lock lies in the project, before the first byte of the weights is fetched."""
    if not is_pending(settings):
        host.noop(f"{settings.model} is pinned")
        return
    because(host, f"{settings.model} is not pinned yet")
    yield FunctionCommand(write, (settings,), {})


def write(state: State, host: Host, settings: Settings) -> bool:
    from tasks import pin  # noqa: PLC0415  the hub's client, which hardly any run needs

    path = lock_path(settings.cards, settings.model)
    try:
        pin.write(path, settings.weights)
    except pin.PinError as error:
        say_refusal(host, error.refusal)
        return False
    host.log(f"{path} is written: {summed_up(settings.weights)}; commit it to your project")
    return True
