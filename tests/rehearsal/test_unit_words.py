"""Command lines and environment through systemd itself: what is written is what a process gets."""

from __future__ import annotations

import base64
import io
import string
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st

from aibox.decide.unit import exec_start, systemd_assignment
from tasks.server import unit_text
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.provision import standin

Environment: TypeAlias = dict[str, str]

UNITS = 160  # in one go
PROGRAM = "/opt/words/show"
# The words as the kernel got them, before any library can touch them; two lines of base64.
SHOW = "#!/bin/sh\nbase64 -w0 /proc/$$/cmdline; echo; base64 -w0 /proc/$$/environ; echo\n"
UNIT = """[Service]
Type=oneshot
StandardOutput=file:/opt/words/{name}
{environment}
ExecStart={exec_start}
"""

# Each of these was once misread by somebody's quoting.
NASTY = (
    *(
        "",
        " ",
        "\t",
        "  two  blanks  ",
        "a\tb",
        "\\",
        "\\\\",
        "end\\",
        "\\n",
        "\\x41",
        "\\;",
        "a\\",
    ),
    *("%", "%%", "%n", "%h/%i", "100%", "$", "$$", "$HOME", "${HOME}", "$${HOME}", "${}", "a$b$"),
    *('"', "'", '""', "''", "it's", 'say "x"', 'it\'s "5"', "\"'\\", "'$HOME'", '"%h"'),
    *(
        ";",
        ";;",
        "; ",
        ";x",
        "#",
        "#x",
        "# x",
        "[Service]",
        "ExecStart=",
        "=",
        "A=b",
        "&&",
        "|",
        ">",
    ),
    *("@", "-", "+", "!", "!!", ":", "@a", "-a", "--", "+a", "!a", ":a", "~", "*", "?", "{a,b}"),
    *(
        "ünï→",
        "日本語",
        "🚀",
        "\u00a0",
        "\u2028",
        "\ufeff",
        "e\u0301",
        "\u202eabc",
        "{{ x }}",
        "`id`",
    ),
    *('{"method":"mtp","n":2}', '{"a":"%h $HOME ${X} \\\\ \\" \' # ; "}', "[]", "[1, 2]"),
    *("x" * 100_000, '\\"$% ' * 4_000),
)
WORDS = st.lists(
    st.one_of(
        st.sampled_from(NASTY),
        st.text(st.sampled_from("\"'\\$%;#{}= \tnx0a-@"), max_size=12),
        st.text(st.characters(blacklist_categories=("Cc", "Cs")), max_size=12),
    ),
    max_size=8,
)
NAMES = st.text(string.ascii_letters + string.digits + "_", min_size=1, max_size=8)
ENVIRONMENTS = st.dictionaries(NAMES.map(lambda name: f"W_{name}"), WORDS.map("".join), max_size=4)


@dataclass(frozen=True)
class Started:
    """What a process was started with."""

    words: list[str]
    environment: Environment

    @classmethod
    def parse(cls, shown: str) -> Started:
        """From what PROGRAM printed; the kernel's own words for the script come first."""
        command, environment = (base64.b64decode(line).decode() for line in shown.splitlines())
        pairs = dict(row.split("=", 1) for row in environment.split("\0")[:-1])
        return cls(command.split("\0")[2:-1], pairs)

    def of(self, names: Environment) -> Environment:
        return {name: value for name, value in self.environment.items() if name in names}


def writable(words: list[str], environment: Environment) -> bool:
    """Whether the product writes these at all; what it refuses is the unit tests' matter."""
    try:
        exec_start([[PROGRAM, *words]])
        for name, value in environment.items():
            systemd_assignment(name, value)
    except ValueError:
        return False
    return True


def drawn(count: int) -> list[tuple[list[str], Environment]]:
    """The same words every time: every nasty one by itself, then what hypothesis makes of them.

    Of those only what the product writes is kept; a nasty word must come through, not be refused.
    """
    found: list[tuple[list[str], Environment]] = [(list(NASTY), {"W_plain": "x"})]
    found += [(["first", *NASTY[at::10]], {"W_nasty": NASTY[at]}) for at in range(len(NASTY))]

    @seed(1)
    @settings(max_examples=count, phases=[Phase.generate], database=None, deadline=None)
    @given(WORDS, ENVIRONMENTS)
    def collect(words: list[str], environment: Environment) -> None:
        found.append((words, environment))

    collect()
    kept = [(words, environment) for words, environment in found if writable(words, environment)]
    in_words = {word for words, _ in kept for word in words}
    in_values = {environment.get("W_nasty") for _, environment in kept}
    lost = [word for word in NASTY if word not in in_words or word not in in_values]
    assert not lost, f"the product does not write {[word[:40] for word in lost]}"
    return kept


def put(box: Box, files: dict[str, tuple[str, int]]) -> None:
    """Lay files down, {path: (content, mode)}, in one go."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path, (content, mode) in files.items():
            data = content.encode()
            member = tarfile.TarInfo(path.lstrip("/"))
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    box.run("base64 -d | tar -x -C /", text=base64.b64encode(packed.getvalue()).decode())


def read_back(box: Box, batch: list[tuple[list[str], Environment]]) -> list[Started]:
    """Start a unit for each command line and return what each process got."""
    files = {PROGRAM: (SHOW, 0o755)}
    names = [f"words-{number}" for number in range(len(batch))]
    for name, (words, environment) in zip(names, batch, strict=True):
        lines = [f"Environment={systemd_assignment(*pair)}" for pair in environment.items()]
        text = UNIT.format(
            name=name,
            environment="\n".join(lines),
            exec_start=exec_start([[PROGRAM], *([word] for word in words)]),
        )
        files[f"/etc/systemd/system/{name}.service"] = (text, 0o644)
    put(box, files)
    units = " ".join(names)
    box.run(f"systemctl daemon-reload && systemctl start {units}")
    shown = box.run(f"cd /opt/words && cat {units} && rm {units}").stdout.splitlines()
    return [Started.parse("\n".join(shown[at : at + 2])) for at in range(0, len(shown), 2)]


def came_through(box: Box, count: int) -> None:
    every = drawn(count)
    for at in range(0, len(every), UNITS):
        batch = every[at : at + UNITS]
        for (words, environment), found in zip(batch, read_back(box, batch), strict=True):
            assert found.words == words
            assert found.of(environment) == environment
    warnings = "journalctl -b -t systemd -p warning --no-pager | grep words- || true"
    assert box.run(f"journalctl --sync; {warnings}").stdout == ""


@pytest.fixture(scope="module")
def box(bridge: str) -> Iterator[Box]:
    assert bridge
    with Box.up("unit-words", owned=True) as made:
        yield made


def test_every_word_comes_through_as_written(box: Box) -> None:
    came_through(box, 70)


@pytest.mark.long
def test_every_word_comes_through_on_debian_13(bridge: str) -> None:
    assert bridge
    with Box.up("unit-words-trixie", suite="trixie", owned=True) as trixie:
        came_through(trixie, 600)
        the_products_unit_says_what_the_settings_say(trixie)


# --- the product's own unit -------------------------------------------------------------------

NASTY_FLAGS: dict[str, Any] = {
    "chat-template": '{{ messages }} 100% of ${HOME} costs $5; # "it\'s" \\',
    "hf-overrides": {"a b": ["%h", "$HOME", '"', "'", "\\", "\t", "ünï→"], "deep": {"n": None}},
    "served-model-name": ["tiny", "50%", "$USER", "@x", "; ", "#"],
    "middleware": ["", "one.Two"],
    "seed": 7,
}
NASTY_ENVIRONMENT = {
    "W_PERCENT": "100%h %n",
    "W_DOLLAR": "$HOME ${HOME} $$",
    "W_QUOTES": 'it\'s "5" \\',
    "W_EMPTY": "",
    "W_BLANK": " x  y ",
    "W_WORDS": "ünï→ # ; =",
}


def the_products_unit_says_what_the_settings_say(box: Box) -> None:
    """With a program that shows its words in the place of vLLM, and an aibox that is content."""
    data = {**standin("http://127.0.0.1:1"), "releases_folder": "/opt/words/releases"}
    nasty = {"serve": NASTY_FLAGS, "server_environment": NASTY_ENVIRONMENT}
    wanted = jobs.wanted({**data, **nasty})
    program = f"{wanted.release_folder}/bin/vllm"
    put(
        box,
        {
            wanted.unit_file: (unit_text(wanted), 0o644),
            program: (f"{SHOW}exec sleep 60\n", 0o755),
            "/opt/aibox/current/bin/aibox": ("#!/bin/sh\nexit 0\n", 0o755),
        },
    )
    box.run("id -u vllm || useradd --system --home-dir /var/lib/vllm-coder vllm")
    verified = box.run(f"systemd-analyze verify {wanted.unit_file} 2>&1", check=False)
    assert (verified.returncode, verified.stdout) == (0, "")
    box.run(f"systemctl daemon-reload && systemctl start {wanted.unit}")
    shown = f"journalctl -u {wanted.unit} -o cat --no-pager | grep -E '^[A-Za-z0-9+/=]+$'"
    both = f"test $({shown} | wc -l) = 2"
    jobs.until(lambda: box.run(both, check=False).returncode == 0, "it has not said its words")
    found = Started.parse(box.run(shown).stdout)
    box.run(f"systemctl stop {wanted.unit}")
    assert found.of(NASTY_ENVIRONMENT) == NASTY_ENVIRONMENT
    assert found.of(wanted.serving.environment) == wanted.serving.environment
    assert [program, *found.words] == wanted.serving.command
    assert value_of(found.words, "--chat-template") == [NASTY_FLAGS["chat-template"]]
    assert value_of(found.words, "--served-model-name") == NASTY_FLAGS["served-model-name"]
    assert value_of(found.words, "--middleware") == NASTY_FLAGS["middleware"]
    assert value_of(found.words, "--seed") == ["7"]


def value_of(words: list[str], flag: str) -> list[str]:
    """The words between a flag and the next one."""
    rest = words[words.index(flag) + 1 :]
    ends = [at for at, word in enumerate(rest) if word.startswith("--")]
    return rest[: ends[0]] if ends else rest


def test_the_products_unit_says_what_the_settings_say(box: Box) -> None:
    the_products_unit_says_what_the_settings_say(box)
