"""The words of `--data`: those that a program knows, and what is said of any other."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from aibox.decide.nearest import nearest
from aibox.decide.refusal import Refusal

OF_OTHERS = ("_", "ssh_")  # how names begin that pyinfra and a person may use for themselves
SETTINGS = "a setting (group_data/all.py has every one)"


def refusal_of(
    given: Iterable[str],
    own: Sequence[str],
    settings: Collection[str],
    renamed: Mapping[str, str],
    of_others: Collection[str] = (),
) -> Refusal | None:
    """Why what `--data` says can't be meant, every fault in one; None where it can.

    given: each as it was typed, NAME=VALUE. own: words of the program that is to run. settings:
    names that any of ours takes. renamed: {older name of a setting: its name now}. of_others: names
    that are neither, and allowed.
    """
    known = {*own, *settings, *of_others}
    faults: list[str] = []
    remedies: list[str] = []
    for text in given:
        name, is_pair, value = text.partition("=")
        if is_pair and (name in known or name.startswith(OF_OTHERS)):
            continue
        meant = renamed.get(name) or nearest(name, own) or nearest(name, settings)
        faults.append(f"--data {text}: {'an unknown word' if is_pair else 'no value'}")
        if meant:
            faults[-1] += f"; did you mean {meant}?"
        remedies.append(f"--data {meant}={value or '…'}" if meant else f"leave --data {text} out")
    if not faults:
        return None
    expected = f"{', '.join(own)}, or {SETTINGS}" if own else SETTINGS
    return Refusal("; ".join(faults), f"NAME=VALUE, NAME being {expected}", "; ".join(remedies))
