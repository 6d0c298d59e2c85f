"""Reading what a box reports: JSON whose every value is of the type it promises, or words why."""

import json
from collections.abc import Sequence
from typing import Any


class Part:
    """One object of a report and where it stands; every reader checks the type it promises."""

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise ValueError(f"{where}: expected an object, found {short(value)}")
        self.where = where
        self.value: dict[str, Any] = value

    def _get(self, key: str, kinds: type | tuple[type, ...], words: str) -> Any:
        where = f"{self.where}.{key}"
        if key not in self.value:
            raise ValueError(f"{where}: missing, expected {words}")
        value = self.value[key]
        if isinstance(value, bool) and kinds is not bool:
            raise ValueError(f"{where}: expected {words}, found {short(value)}")
        if not isinstance(value, kinds):
            raise ValueError(f"{where}: expected {words}, found {short(value)}")
        return value

    def is_null(self, key: str) -> bool:
        """Whether null stands there; a missing key is not null, and its reader says so."""
        return self.value.get(key, "missing") is None

    def text(self, key: str) -> str:
        return str(self._get(key, str, "text"))

    def text_or_none(self, key: str) -> str | None:
        return None if self.is_null(key) else str(self._get(key, str, "text or null"))

    def texts(self, key: str) -> tuple[str, ...]:
        values = self._get(key, list, "a list of texts")
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{self.where}.{key}: expected texts, found {short(values)}")
        return tuple(values)

    def texts_by_name(self, key: str) -> dict[str, str]:
        """An object that holds texts only."""
        whole = self.part(key)
        return {name: whole.text(name) for name in whole.value}

    def lists_by_name(self, key: str) -> dict[str, tuple[str, ...]]:
        """An object that holds lists of texts only."""
        whole = self.part(key)
        return {name: whole.texts(name) for name in whole.value}

    def truth(self, key: str) -> bool:
        return bool(self._get(key, bool, "true or false"))

    def truth_or_none(self, key: str) -> bool | None:
        return None if self.is_null(key) else self.truth(key)

    def count(self, key: str) -> int:
        value = self._get(key, int, "a whole number")
        if value < 0:
            raise ValueError(f"{self.where}.{key}: expected 0 or more, found {short(value)}")
        return int(value)

    def count_or_none(self, key: str) -> int | None:
        return None if self.is_null(key) else self.count(key)

    def counts(self) -> dict[str, int]:
        return {key: self.count(key) for key in self.value}

    def whole_numbers(self, key: str) -> tuple[int, ...]:
        values = self._get(key, list, "a list of whole numbers")
        if not all(type(value) is int for value in values):
            raise ValueError(f"{self.where}.{key}: expected whole numbers, found {short(values)}")
        return tuple(values)

    def number_or_none(self, key: str, words: str = "a number or null") -> float | None:
        if self.is_null(key):
            return None
        value = self._get(key, (int, float), words)
        # Neither infinity nor a number too large for a float is of use to anyone.
        if not abs(value) < 1e15:
            raise ValueError(f"{self.where}.{key}: expected {words}, found {short(value)}")
        return float(value)

    def seconds(self, key: str) -> float:
        if self.is_null(key):
            raise ValueError(f"{self.where}.{key}: expected seconds, found null")
        return self.number_or_none(key, "seconds") or 0.0

    def seconds_or_none(self, key: str) -> float | None:
        return self.number_or_none(key, "seconds or null")

    def part(self, key: str) -> "Part":
        return Part(f"{self.where}.{key}", self._get(key, dict, "an object"))

    def part_or_none(self, key: str) -> "Part | None":
        return None if self.is_null(key) else self.part(key)

    def parts(self, key: str) -> dict[str, "Part"]:
        whole = self.part(key)
        return {name: whole.part(name) for name in whole.value}

    def list_of_parts(self, key: str) -> list["Part"]:
        values: Sequence[object] = self._get(key, list, "a list of objects")
        return [Part(f"{self.where}.{key}[{at}]", value) for at, value in enumerate(values)]


def document(where: str, text: str) -> Part:
    """A whole report from its JSON. where: what it is called in the words of a ValueError."""
    try:
        return Part(where, json_value(text))
    except ValueError as error:
        raise ValueError(f"the {where} is {error}") from None


def json_value(text: str) -> Any:
    """Raises ValueError in words that go on after a name and "is"."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None


def short(value: object) -> str:
    """A value for the words of a fault, at most 60 characters."""
    text = json.dumps(value) if not isinstance(value, int) or abs(value) < 1e18 else "a huge number"
    return text if len(text) <= 60 else text[:57] + "..."
