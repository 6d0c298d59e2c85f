"""What an inventory names: our groups, groups that were probably meant to be ours, and who has to
be a box."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from aibox.decide.nearest import did_you_mean, nearest
from aibox.decide.refusal import Refusal

SITE, MONITOR, GATEWAYS = "site", "monitor", "gateways"
OURS = (SITE, MONITOR, GATEWAYS)
WRITTEN = ast.JoinedStr | ast.Set | ast.Dict


@dataclass(frozen=True)
class Named:
    """every: the hosts. groups: {name: its hosts}. of_all: names of groups that hold every host
    without saying anything of them. no_lists: {name: what stands there instead of a list}, as
    Python."""

    every: Sequence[str]
    groups: Mapping[str, Sequence[str]]
    of_all: Collection[str] = ()
    no_lists: Mapping[str, str] = field(default_factory=dict)

    def is_box(self, host: str) -> bool:
        """Whether a host is in a group that says what it is, beside ours of other things."""
        others = {*self.groups} - {MONITOR, GATEWAYS, *self.of_all}
        return any(host in self.groups[name] for name in others)


def judge(named: Named) -> Refusal | None:
    """What can't be meant, whatever --limit says; None where all of it can."""
    return next(faults(named), None)


def faults(named: Named) -> Iterator[Refusal]:
    yield from no_lists_of_ours(named.no_lists)
    yield from (no_name(name) for name in named.every if is_no_name(name))
    for name in named.groups:
        meant = None if name in named.of_all else ours_for(name)
        if meant not in (None, name):
            yield misspelt(name, str(meant))
    yield from (box_and_group(one) for one in named.every if {*named.groups.get(one, ())} - {one})
    boxes = [one for one in named.every if named.is_box(one)]
    for one in named.groups.get(GATEWAYS, ()):
        if one not in boxes:
            yield no_box(one, boxes)


def no_lists_of_ours(found: Mapping[str, str]) -> Iterator[Refusal]:
    """found: see Named.no_lists."""
    yield from (no_list(name, value) for name, value in found.items() if name in OURS)


# --- what was probably meant ---------------------------------------------------------------------


def ours_for(name: str) -> str | None:
    """The group of ours that is meant; None for a person's own, as `site2` and `kitchen` are."""
    if name in OURS:
        return name
    return nearest(name.lower(), OURS, alike=0.75) if name.isalpha() else None


def no_lists(text: str) -> dict[str, str]:
    """{name: value, as Python} of an inventory's names that hold something and no list of hosts.

    pyinfra passes over these. Only what is written out is seen; nothing of the text is carried out.
    """
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError):  # pyinfra says it
        return {}
    found: dict[str, str] = {}
    for one in statements:
        if not isinstance(one, ast.Assign):
            continue
        for target in one.targets:
            if isinstance(target, ast.Name):
                found.pop(target.id, None)
                if is_no_list(one.value):
                    found[target.id] = ast.unparse(one.value)
    return found


def is_no_list(value: ast.expr) -> bool:
    """Of names, as far as it is written out. `None`, `False` and the like say that there is nobody;
    a pair may be such a list and data for all of its hosts."""
    if isinstance(value, ast.Constant):
        return bool(value.value)
    if isinstance(value, ast.List):
        return any(map(is_no_host, value.elts))
    if isinstance(value, ast.Tuple):
        return len(value.elts) != 2 or is_no_list(value.elts[0]) or is_no_data(value.elts[1])
    return isinstance(value, WRITTEN)


def is_no_host(value: ast.expr) -> bool:
    """A host is a name, or a pair of a name and data."""
    if isinstance(value, ast.Constant):
        return not (isinstance(value.value, str) and value.value)
    if isinstance(value, ast.Tuple):
        return len(value.elts) != 2 or is_no_host(value.elts[0]) or is_no_data(value.elts[1])
    return isinstance(value, ast.List | ast.Dict | ast.Set)


def is_no_data(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant | ast.List | ast.Tuple | ast.Set | ast.JoinedStr)


def is_no_name(name: str) -> bool:
    """Whether a host can't be called so: as a word of --limit it would name nobody, or others."""
    plain = name.isprintable() and not any(one.isspace() or one in "*?[]" for one in name)
    return not plain or name.startswith("-")


# --- in words ------------------------------------------------------------------------------------


def no_list(name: str, value: str) -> Refusal:
    wanted = f"[{value}]" if value[0] in "'\"" else '["ai-box"], with the names of your hosts'
    return Refusal(
        f"{name} = {value} in the inventory is no list of names",
        'a list of names, also of one; with data of its own a host is ("ai-box", {…})',
        f"write {name} = {wanted}".replace("'", '"'),
    )


def no_name(name: str) -> Refusal:
    return Refusal(
        f"{name!r} in the inventory is no name of a host",
        "a name or an address without blanks, signs for patterns (* ? [ ]) and a leading -",
        "write it as your ssh configuration has it",
    )


def unreadable(said: str, line: int | None, error: BaseException) -> Refusal:
    """An inventory is a person's own code. line: where in it, if that is known."""
    where = f"{said}, line {line}" if line else said
    ends = isinstance(error, SystemExit)
    return Refusal(
        f"{where}: {'it ends the run itself' if ends else f'{type(error).__name__}: {error}'}",
        "an inventory that can be read: names of groups, each with a list of hosts",
        "correct it, and run it again",
    )


def misspelt(name: str, meant: str) -> Refusal:
    return Refusal(
        f"{name} is no group that this project knows; did you mean {meant}?",
        f"{', '.join(OURS)}, or a name of your own that is unlike these",
        f"write {meant} in the inventory, or give the group another name",
    )


def box_and_group(name: str) -> Refusal:
    return Refusal(
        f"{name} is a box and a group of other boxes too",
        "names by which each box can be meant alone",
        "give the group another name in the inventory",
    )


def no_box(name: str, boxes: Iterable[str]) -> Refusal:
    return Refusal(
        f"{name} is in the group `{GATEWAYS}`, and in no group of boxes{did_you_mean(name, boxes)}",
        "gateways that are boxes themselves",
        f"name it in `{SITE}` too, or take it out of `{GATEWAYS}` in the inventory",
    )
