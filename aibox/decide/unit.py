"""The server's command line: built from flags, written for systemd, compared with a running one.

Quoting follows systemd.service(5) "COMMAND LINES" and systemd.syntax(7) "QUOTING".
"""

import json
import math
import re
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

FlagValue: TypeAlias = bool | int | float | str | Sequence[str | int | float] | Mapping[str, object]

# Words of these characters need no quotes ("%" and "$" stand doubled by then). "#" and ";" are
# left out: a line of a unit file that begins with one is a comment, inside a continued line too.
_PLAIN = re.compile(r"[A-Za-z0-9_./:=,+@^~%$\[\]-]+")


def flag_lines(flags: Mapping[str, FlagValue]) -> list[list[str]]:
    """One list of words for each flag, in the order of the card.

    True is `--flag`, False `--no-flag`, a list several words, a mapping compact JSON, anything
    else text. Raises ValueError for a value that has no such form.
    """
    return [_flag_words(name, value) for name, value in flags.items()]


def _flag_words(name: str, value: FlagValue) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, str | int | float):
        return [f"--{name}", _value_word(name, value)]
    if isinstance(value, Mapping):
        return [f"--{name}", _compact_json(name, value)]
    if not isinstance(value, Sequence):
        raise ValueError(f"{name}: {value!r} has no form on a command line")
    if not value:
        raise ValueError(f"{name}: an empty list gives the flag no value")
    return [f"--{name}", *(_value_word(name, item) for item in value)]


def _value_word(name: str, value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"{name}: {value!r} is neither text nor a number")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{name}: {value!r} is no number a flag can take")
    if isinstance(value, str) and value.startswith("-"):
        raise ValueError(f"{name}: a value may not begin with '-', found {value!r}")
    return _writable(name, str(value))


def _compact_json(name: str, value: Mapping[str, object]) -> str:
    try:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{name}: cannot be written as JSON ({error})") from None
    return _writable(name, text)


def _writable(name: str, word: str) -> str:
    try:
        _refuse_unwritable(word)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return word


OWN_FLAGS = (["--host", "localhost"], ["--allowed-origins", "[]"])  # whatever the card says


def server_command(
    release_folder: str, weights_folder: str, port: int, flags: Mapping[str, FlagValue]
) -> list[list[str]]:
    """The whole command, one list of words for each line of the unit.

    The unit's own flags come first, OWN_FLAGS and the port: allowed-origins is closed because its
    default lets any page in the owner's browser post to the server.
    """
    return [
        [f"{release_folder}/bin/vllm", "serve", weights_folder],
        list(OWN_FLAGS[0]),
        ["--port", str(port)],
        list(OWN_FLAGS[1]),
        *flag_lines(flags),
    ]


def systemd_word(text: str) -> str:
    """One word of an ExecStart= line, quoted so that the process gets exactly this text.

    Raises ValueError for control characters (a newline would end the setting) except the tab.
    """
    if text == ";":
        return "\\;"
    return _quoted(text.replace("%", "%%").replace("$", "$$"))


def systemd_assignment(name: str, value: str) -> str:
    """One `NAME=value` for Environment=, where "%" is expanded and "$" is not."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise ValueError(f"{name!r} is not a name for an environment variable")
    return _quoted(f"{name}={value}".replace("%", "%%"))


def _quoted(text: str) -> str:
    _refuse_unwritable(text)
    if _PLAIN.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace("\t", "\\t")
    if '"' in text and "'" not in text:  # JSON stays readable
        return f"'{escaped}'"
    return '"' + escaped.replace('"', '\\"') + '"'


def _refuse_unwritable(text: str) -> None:
    for character in text:
        category = unicodedata.category(character)
        control = category == "Cs" or (category == "Cc" and character != "\t")
        # systemd takes Unicode's noncharacters for broken UTF-8 and drops the whole line
        code = ord(character)
        if control or code & 0xFFFE == 0xFFFE or 0xFDD0 <= code <= 0xFDEF:
            raise ValueError(f"{text!r} holds a character that no unit file can ({character!r})")


def exec_start(lines: Sequence[Sequence[str]]) -> str:
    """The value of ExecStart=: one list of words a line, the others indented below the first."""
    program = lines[0][0]
    if not re.fullmatch(r"/[A-Za-z0-9_./:+@~-]+", program):
        raise ValueError(f"the program must be a plain absolute path, found {program!r}")
    return " \\\n    ".join(" ".join(systemd_word(word) for word in line) for line in lines)


def differences(running: Sequence[str], wanted: Sequence[str]) -> list[str]:
    """How a running command line differs from the wanted one, flag by flag; empty when it doesn't.

    Each row ends a sentence that begins with "it runs ...". The interpreter that the kernel puts
    in front of a script is skipped, JSON is compared by its meaning, the order of different flags
    does not count.
    """
    running_head, running_flags = _parsed(_without_interpreter(running))
    wanted_head, wanted_flags = _parsed(wanted)
    found = []
    if running_head != wanted_head:
        found.append(f"{_joined(running_head)}, wanted {_joined(wanted_head)}")
    return found + [_difference(*pair) for pair in _differing(running_flags, wanted_flags)]


def flag_changes(older: Sequence[str], newer: Sequence[str]) -> list[str]:
    """What changed from one list of flags to the next: first "--seed 7 -> --seed 8", then what
    comes ("+ --seed 8", MTP before the rest), then what goes ("- --seed 7")."""
    changed, come, gone = [], [], []
    for now, then in _differing(_parsed(older)[1], _parsed(newer)[1]):
        if now and then:
            changed.append(f"{_occurrences(now)} -> {_occurrences(then)}")
        elif then:
            come.append(f"+ {_occurrences(then)}")
        else:
            gone.append(f"- {_occurrences(now)}")
    return [*changed, *sorted(come, key=lambda row: "speculative" not in row), *gone]


def _differing(
    running: "_Flags", wanted: "_Flags"
) -> Iterator[tuple[list[list[str]], list[list[str]]]]:
    for name in dict.fromkeys([*wanted, *running]):
        now, then = running.get(name, []), wanted.get(name, [])
        if [_canonical(words) for words in now] != [_canonical(words) for words in then]:
            yield now, then


def _without_interpreter(command: Sequence[str]) -> Sequence[str]:
    if not command or not command[0].rsplit("/", 1)[-1].startswith("python"):
        return command
    rest = list(command[1:])
    while rest and rest[0].startswith("-"):
        rest.pop(0)
    return rest or command


_Flags: TypeAlias = dict[str, list[list[str]]]


def _parsed(command: Sequence[str]) -> tuple[list[str], _Flags]:
    """Words before the first flag, and for each flag every occurrence as written."""
    head: list[str] = []
    flags: _Flags = {}
    current = head
    for word in command:
        if not re.match(r"--?[A-Za-z]", word):
            current.append(word)
            continue
        name, equals, value = word.partition("=")
        current = [name, value] if equals else [name]
        key = name.lstrip("-").replace("_", "-")
        flags.setdefault(key.removeprefix("no-"), []).append(current)
    return head, flags


def _canonical(words: Sequence[str]) -> list[str]:
    return [words[0].replace("_", "-"), *(_canonical_value(word) for word in words[1:])]


def _canonical_value(word: str) -> str:
    if not word.startswith(("{", "[")):
        return word
    try:
        return json.dumps(json.loads(word), sort_keys=True)
    except (ValueError, RecursionError):
        return word


def _difference(now: list[list[str]], then: list[list[str]]) -> str:
    if not then:
        return f"with {_occurrences(now)}, which is not wanted"
    if not now:
        return f"without {_occurrences(then)}"
    return f"with {_occurrences(now)}, wanted {_occurrences(then)}"


def _occurrences(occurrences: list[list[str]]) -> str:
    return " and ".join(_joined(words) for words in occurrences)


def _joined(words: Sequence[str]) -> str:
    return " ".join(words) if words else "nothing"
