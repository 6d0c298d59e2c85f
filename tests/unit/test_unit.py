import string
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibox.decide.unit import (
    FlagValue,
    differences,
    exec_start,
    flag_lines,
    server_command,
    systemd_assignment,
    systemd_word,
)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (True, ["--flag"]),
        (False, ["--no-flag"]),
        ("fp8", ["--flag", "fp8"]),
        ("", ["--flag", ""]),
        (480, ["--flag", "480"]),
        (-1, ["--flag", "-1"]),
        (0.87, ["--flag", "0.87"]),
        (["a", 2], ["--flag", "a", "2"]),
        ({"method": "mtp", "n": 2}, ["--flag", '{"method":"mtp","n":2}']),
        ({"b": True, "a": [None, "ü"]}, ["--flag", '{"b":true,"a":[null,"ü"]}']),
        ({}, ["--flag", "{}"]),
    ],
)
def test_a_flag_becomes_words(value: FlagValue, words: list[str]) -> None:
    assert flag_lines({"flag": value}) == [words]


@pytest.mark.parametrize(
    "value",
    [
        "--host",
        "-x",
        "a\nb",
        "\0",
        "\ud800",
        [],
        [True],
        [None],
        ["-x"],
        [["a"]],
        None,
        float("nan"),
        float("inf"),
        {"a": float("nan")},
        {"a": {1, 2}},
        {"a": "\ud800"},
    ],
)
def test_a_value_without_a_form_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="flag: "):
        flag_lines({"flag": value})


def test_the_units_own_flags_come_first() -> None:
    assert server_command("/opt/r", "/srv/w", 8000, {"dtype": "auto", "enforce-eager": True}) == [
        ["/opt/r/bin/vllm", "serve", "/srv/w"],
        ["--host", "localhost"],
        ["--port", "8000"],
        ["--allowed-origins", "[]"],
        ["--dtype", "auto"],
        ["--enforce-eager"],
    ]


# After systemd.service(5) "COMMAND LINES" and the table of escapes in systemd.syntax(7).
@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("--max-num-seqs", "--max-num-seqs"),
        ("0.87", "0.87"),
        ("[]", "[]"),
        ("", '""'),
        ("two words", '"two words"'),
        ("50%", "50%%"),
        ("%h", "%%h"),
        ("$HOME", "$$HOME"),
        ("${HOME}", '"$${HOME}"'),
        ("$", "$$"),
        ("$$", "$$$$"),
        ("a\\b", '"a\\\\b"'),
        ("\\", '"\\\\"'),
        ("\\n", '"\\\\n"'),
        ('"', "'\"'"),
        ("'", '"\'"'),
        ('it\'s "5"', '"it\'s \\"5\\""'),
        ('{"a":"b\\\\c"}', '\'{"a":"b\\\\\\\\c"}\''),
        ('{"method":"mtp"}', '\'{"method":"mtp"}\''),
        (";", "\\;"),
        (";x", '";x"'),
        ("a;", '"a;"'),
        ("#x", '"#x"'),
        ("tab\there", '"tab\\there"'),
        ("ünï→", '"ünï→"'),
        ("a|b>c&", '"a|b>c&"'),
    ],
)
def test_a_word_is_quoted_for_exec_start(text: str, word: str) -> None:
    assert systemd_word(text) == word


@pytest.mark.parametrize(
    "text",
    [
        *("a\nb", "a\rb", "a\0b", "\x1b[0m", "\x7f", "\x85", "\ud800"),
        *("\ufdd0", "a\ufffeb", "\U0002ffff"),
    ],
)
def test_what_no_unit_file_can_hold_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="no unit file can"):
        systemd_word(text)
    with pytest.raises(ValueError, match="no unit file can"):
        systemd_assignment("A", text)


@given(st.text())
def test_any_text_is_one_line_or_refused(text: str) -> None:
    try:
        word = systemd_word(text)
    except ValueError:
        return
    assert word
    assert "\n" not in word
    assert not word.startswith("#")


@given(st.text(string.printable.replace("\t", ""), min_size=1))
def test_a_word_never_ends_in_a_continuation(text: str) -> None:
    try:
        word = systemd_word(text)
    except ValueError:
        return
    assert not word.endswith("\\")


@pytest.mark.parametrize(
    ("name", "value", "assignment"),
    [
        ("A", "b", "A=b"),
        ("A", "", "A="),
        ("A", "$HOME", "A=$HOME"),
        ("A", "${HOME}", '"A=${HOME}"'),
        ("A", "50%", "A=50%%"),
        ("A", "word1 word2", '"A=word1 word2"'),
        ("A", 'say "x"', "'A=say \"x\"'"),
        ("A", "it's \\", '"A=it\'s \\\\"'),
        ("A", "a=b", "A=a=b"),
    ],
)
def test_an_assignment_is_quoted_for_environment(name: str, value: str, assignment: str) -> None:
    assert systemd_assignment(name, value) == assignment


@pytest.mark.parametrize("name", ["", "1A", "A B", "A-B", "A=B", "Ä"])
def test_a_variable_has_a_plain_name(name: str) -> None:
    with pytest.raises(ValueError, match="not a name"):
        systemd_assignment(name, "x")


def test_exec_start_has_one_flag_a_line() -> None:
    lines = [["/opt/r/bin/vllm", "serve"], ["--port", "8000"], ["--config", '{"a":"$b c"}']]
    assert exec_start(lines) == (
        '/opt/r/bin/vllm serve \\\n    --port 8000 \\\n    --config \'{"a":"$$b c"}\''
    )


@pytest.mark.parametrize("program", ["vllm", "./vllm", "-/bin/vllm", "/bin/my vllm", "/$x", "/%h"])
def test_the_program_is_a_plain_absolute_path(program: str) -> None:
    with pytest.raises(ValueError, match="plain absolute path"):
        exec_start([[program]])


WANTED = ["/opt/r/bin/vllm", "serve", "/srv/w", "--port", "8000", "--enable-prefix-caching"]
WANTED += ["--max-num-seqs", "480", "--speculative-config", '{"method":"mtp","n":2}']


def changed(old: Sequence[str], new: Sequence[str]) -> list[str]:
    text = "\0".join(WANTED)
    assert "\0".join(old) in text
    return text.replace("\0".join(old), "\0".join(new)).split("\0")


@pytest.mark.parametrize(
    "running",
    [
        WANTED,
        ["/opt/r/bin/python3", *WANTED],
        ["/usr/bin/python3.11", "-I", *WANTED],
        [*WANTED[:3], *WANTED[6:], *WANTED[3:6]],
        changed(["--max-num-seqs", "480"], ["--max-num-seqs=480"]),
        changed(["--max-num-seqs"], ["--max_num_seqs"]),
        changed(['{"method":"mtp","n":2}'], ['{"n": 2, "method": "mtp"}']),
    ],
)
def test_command_lines_of_one_meaning_do_not_differ(running: list[str]) -> None:
    assert differences(running, WANTED) == []


@pytest.mark.parametrize(
    ("running", "rows"),
    [
        (
            changed(["480"], ["512"]),
            ["with --max-num-seqs 512, wanted --max-num-seqs 480"],
        ),
        (
            changed(["--max-num-seqs", "480"], ["--seed", "1"]),
            ["without --max-num-seqs 480", "with --seed 1, which is not wanted"],
        ),
        (
            changed(["--enable-prefix-caching"], ["--no-enable-prefix-caching"]),
            ["with --no-enable-prefix-caching, wanted --enable-prefix-caching"],
        ),
        (
            changed(["/opt/r/bin/vllm"], ["/opt/q/bin/vllm"]),
            ["/opt/q/bin/vllm serve /srv/w, wanted /opt/r/bin/vllm serve /srv/w"],
        ),
        (
            changed(['"n":2'], ['"n":2.0'])
            if False
            else changed(['{"method":"mtp","n":2}'], ['{"method":"mtp","n":true}']),
            [
                'with --speculative-config {"method":"mtp","n":true}, '
                'wanted --speculative-config {"method":"mtp","n":2}'
            ],
        ),
        (
            [*WANTED, "--port", "8001"],
            ["with --port 8000 and --port 8001, wanted --port 8000"],
        ),
        (
            [*WANTED, "--no-enable-prefix-caching"],
            [
                "with --enable-prefix-caching and --no-enable-prefix-caching, "
                "wanted --enable-prefix-caching"
            ],
        ),
    ],
)
def test_differences_are_told_flag_by_flag(running: list[str], rows: list[str]) -> None:
    assert differences(running, WANTED) == rows


def test_nothing_running_differs_in_everything() -> None:
    assert differences([], ["/bin/x", "--a"]) == ["nothing, wanted /bin/x", "without --a"]


@given(st.lists(st.text(max_size=6)), st.lists(st.text(max_size=6)))
def test_equal_command_lines_never_differ(running: list[str], other: list[str]) -> None:
    assert differences(["/bin/x", *running], ["/bin/x", *running]) == []
    assert isinstance(differences(running, other), list)
