"""What changed between two states of the locks, package by package."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from aibox.decide.wheels import normal


@dataclass(frozen=True)
class Change:
    """One package: None where a lock has none. With equal versions the allowed files changed."""

    package: str
    old: str | None
    new: str | None

    def __str__(self) -> str:
        if self.old == self.new:
            return f"{self.package} {self.new}: other files (hashes) of the same version"
        return f"{self.package} {self.old or '(none)'} → {self.new or '(none)'}"


def entries(lock: str) -> dict[str, tuple[str, frozenset[str]]]:
    """{package: (versions as text, hashes)}: a universal lock may hold several of one package."""
    found: dict[str, tuple[str, frozenset[str]]] = {}
    for block in lock_blocks(lock):
        name, version, hashes = block
        before, known = found.get(name, ("", frozenset()))
        versions = sorted({*before.split(" and "), version} - {""})
        found[name] = (" and ".join(versions), known | hashes)
    return found


def lock_blocks(lock: str) -> list[tuple[str, str, frozenset[str]]]:
    joined = re.sub(r"\\\n", " ", lock)
    rows = re.findall(
        r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)(.*)$", joined, re.MULTILINE
    )
    return [
        (normal(name), version, frozenset(re.findall(r"sha256:[0-9a-f]+", rest)))
        for name, version, rest in rows
    ]


def changes(old: str, new: str) -> list[Change]:
    """From one lock's text to another's, by package."""
    before, after = entries(old), entries(new)
    return [
        Change(name, before.get(name, (None, None))[0], after.get(name, (None, None))[0])
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def report(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    """Lines for a person. old, new: {file: text}; a change that several files share stands once."""
    where: dict[Change, list[str]] = {}
    for file in sorted(old.keys() | new.keys()):
        for change in changes(old.get(file, ""), new.get(file, "")):
            where.setdefault(change, []).append(file)
    groups: dict[tuple[str, ...], list[Change]] = {}
    for change, files in where.items():
        groups.setdefault(tuple(files), []).append(change)
    lines = []
    for shared, found in sorted(groups.items()):
        lines.append(f"{', '.join(shared)}:")
        lines += [f"  {change}" for change in sorted(found, key=lambda one: one.package)]
    return lines or ["the locks are as they were"]
