"""How somebody started a vLLM: the model and the flags, out of a command line or a unit file."""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

DEFAULT_PORT = 8000  # vLLM's own
API_SERVERS = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.api_server")
MODULES = ("vllm", "vllm.entrypoints.cli.main")
MODEL_FLAGS = ("model", "model-tag")
# vLLM 0.31.0's short names.
SHORT = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dpa": "data-parallel-address",
    "dpb": "data-parallel-backend",
    "dpe": "data-parallel-external-lb",
    "dph": "data-parallel-hybrid-lb",
    "dpl": "data-parallel-size-local",
    "dpm": "data-parallel-multi-port-external-lb",
    "dpn": "data-parallel-rank",
    "dpp": "data-parallel-rpc-port",
    "dpr": "data-parallel-start-rank",
    "dcp": "decode-context-parallel-size",
    "pcp": "prefill-context-parallel-size",
    "ep": "enable-expert-parallel",
    "n": "nnodes",
    "r": "node-rank",
    "asc": "api-server-count",
    "q": "quantization",
    "ac": "attention-config",
    "cc": "compilation-config",
    "dc": "diffusion-config",
    "sc": "speculative-config",
}


@dataclass(frozen=True)
class Launch:
    """model: as it was given, "" where it was not. flags: each with its values, names with "-"."""

    model: str
    flags: tuple[tuple[str, ...], ...]

    def values(self, name: str) -> tuple[str, ...] | None:
        """What stands behind a flag, the last time that it is given; None without it."""
        found = [flag[1:] for flag in self.flags if flag[0] == f"--{name}"]
        return found[-1] if found else None

    def value(self, name: str) -> str | None:
        values = self.values(name)
        return values[0] if values else None

    @property
    def port(self) -> int:
        given = self.value("port") or ""
        return int(given) if given.isascii() and given.isdigit() else DEFAULT_PORT

    @property
    def served_names(self) -> tuple[str, ...]:
        """What clients call the model: vLLM's default is the model as it was given."""
        return self.values("served-model-name") or ((self.model,) if self.model else ())

    def without(self, *names: str) -> list[str]:
        """The flags as words of a command line, but for these."""
        left = (flag for flag in self.flags if flag[0].removeprefix("--") not in names)
        return [word for flag in left for word in flag]


def launched(command: Sequence[str]) -> Launch | None:
    """A command line that starts vLLM's server, whatever stands in front; None for another."""
    words = list(command)
    for at, word in enumerate(words):
        rest = words[at + 1 :]
        if PurePosixPath(word).name == "vllm" and rest[:1] == ["serve"]:
            return launch(rest[1:])
        if word == "-m" and rest[:1] and rest[0] in API_SERVERS:
            return launch(rest[1:])
        if word == "-m" and rest[:1] and rest[0] in MODULES and rest[1:2] == ["serve"]:
            return launch(rest[2:])
        if word.endswith(
            ("vllm/entrypoints/openai/api_server.py", "vllm/entrypoints/api_server.py")
        ):
            return launch(rest)
        if word.endswith("c") and re.fullmatch(r"-\w+", word) and rest and "vllm" in rest[0]:
            inner = launched(in_words(rest[0]))
            if inner is not None:
                return inner
    return None


def launch(words: Sequence[str]) -> Launch:
    """The words behind `vllm serve`, or behind the module's name."""
    positional: list[str] = []
    flags: list[list[str]] = []
    for word in words:
        if word in (";", "&&", "|", "||", "&") or word.startswith((">", "2>")):
            break  # the rest is the shell's
        if re.match(r"--?[A-Za-z]", word):
            name, equals, value = word.partition("=")
            bare = name.lstrip("-").replace("_", "-")
            bare = SHORT.get(bare, bare) if not name.startswith("--") else bare
            flags.append([f"--{bare}", value] if equals else [f"--{bare}"])
        elif flags:
            flags[-1].append(word)
        else:
            positional.append(word)
    named = [
        flag[1] for flag in flags if flag[0].removeprefix("--") in MODEL_FLAGS and len(flag) > 1
    ]
    model = (positional or named or [""])[0]
    own = [flag for flag in flags if flag[0].removeprefix("--") not in MODEL_FLAGS]
    return Launch(model, tuple(tuple(flag) for flag in own))


# --- unit files, whoever has written them; what can't be read is left out ------------------------

CONTINUED = re.compile(r"\\\r?\n(?:[ \t]*[#;].*\n)*")  # comments between are passed over
PREFIXES = "@-:+!|"  # of a command line, systemd.service(5)


def of_unit(*texts: str) -> Launch | None:
    """The server that a unit starts. texts: its file, then its drop-ins."""
    found = [launched(words) for words in starts(texts)]
    return next((one for one in reversed(found) if one is not None), None)


def settings(unit: str) -> list[tuple[str, str]]:
    """(name, value) of each line of [Service]; continued lines are one."""
    section, found = "", []
    for line in CONTINUED.sub(" ", unit).splitlines():
        stripped = line.strip()
        if stripped.startswith("["):
            section = stripped
        elif section == "[Service]" and "=" in stripped and stripped[0] not in "#;":
            name, _, value = stripped.partition("=")
            found.append((name.strip(), value.strip()))
    return found


def starts(texts: Iterable[str]) -> list[list[str]]:
    """The words of each ExecStart. texts: a unit's file, then its drop-ins."""
    given = (value for text in texts for name, value in settings(text) if name == "ExecStart")
    return [in_words(value.lstrip(PREFIXES)) for value in given if value]


def environment(texts: Iterable[str]) -> dict[str, str]:
    """The variables that these set by themselves; a last one wins."""
    given = (value for text in texts for name, value in settings(text) if name == "Environment")
    return dict(pair for value in given for pair in assignments(value))


def assignments(value: str) -> list[tuple[str, str]]:
    """(name, text) of each variable in an Environment=."""
    words = (word.partition("=") for word in in_words(value))
    return [(name, text) for name, equals, text in words if equals]


def in_words(line: str) -> list[str]:
    """A line of a shell or of a unit in words; as good as can be where its quotes do not close."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
