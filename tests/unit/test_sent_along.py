"""What a box is sent to answer a question: the file that answers it, and all that this imports."""

from __future__ import annotations

import ast
import json
import shlex
import subprocess
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules

import pytest

from aibox.box import probe
from tasks import sent_along
from tasks.facts import ANSWERED_BY, Discovery, Probe
from tasks.sent_along import packed, program, texts
from tasks.taking_down import Ours

NOT_READ = "none of them"
NO_FETCHING: dict[str, object] = {
    "repository": "none/such",
    "from": "/none",
    "files": {},
    "sample": None,
}


@pytest.mark.parametrize("question", ANSWERED_BY)
def test_a_bare_python_can_load_what_is_sent_for_a_question(question: str, tmp_path: Path) -> None:
    done = run(program(ANSWERED_BY[question]), NOT_READ, "{}", tmp_path)
    assert done.stderr.splitlines()[-1] == f"KeyError: '{NOT_READ}'"


def run(text: str, question: str, asked: str, folder: Path) -> subprocess.CompletedProcess[str]:
    words = ["python3", "-IS", "-", question, asked]
    return subprocess.run(
        words, input=text, cwd=folder, text=True, capture_output=True, check=False
    )


@pytest.mark.parametrize("question", ANSWERED_BY)
def test_nothing_is_sent_that_a_fish_would_change(question: str) -> None:
    """Between quotes it takes two backslashes for one."""
    asked = json.dumps({"flags": '\\d+ \\\\ " é'})
    sent = Probe().command(question, asked).get_raw_value()
    assert "\\\\" not in sent
    assert "\\" not in program(ANSWERED_BY[question])
    words = shlex.split(sent.partition("<<")[0])
    assert json.loads(words[-1]) == json.loads(asked)


@pytest.mark.parametrize("question", ANSWERED_BY)
def test_what_arrives_is_the_module_as_it_is_here(question: str, tmp_path: Path) -> None:
    name = ANSWERED_BY[question]
    shown = "print(json.dumps(module.QUESTIONS[sys.argv[1]](json.loads(sys.argv[2]))))"
    text = program(name).replace("    exec(", "    print(repr(text)); exec(")
    done = run(text.replace(shown, ""), question, "{}", tmp_path)
    assert [ast.literal_eval(line) for line in done.stdout.splitlines()] == [*texts(name).values()]


@pytest.mark.parametrize(
    ("question", "files"),
    [
        ("cards", ["nvml"]),
        ("owners", ["owners"]),
        ("dpkg", ["commands", "packages"]),
        ("releases", ["files", "releases"]),
        ("weights", ["owners", "accounts", "files", "weights"]),
        ("server", ["files", "replies", "commands", "units", "server"]),
        ("repository", ["commands", "files", "openpgp", "replies", "repository"]),
    ],
)
def test_a_question_is_sent_its_own_file_after_those_that_it_needs(
    question: str, files: list[str]
) -> None:
    sent = list(texts(ANSWERED_BY[question]))
    assert sent == [
        "aibox",
        "aibox.box",
        "aibox.box.probe",
        *(f"aibox.box.probe.{f}" for f in files),
    ]


def test_each_question_has_one_file() -> None:
    names = [f"{probe.__name__}.{one.name}" for one in iter_modules(probe.__path__)]
    tables = [getattr(import_module(name), "QUESTIONS", {}) for name in names]
    assert sorted(ANSWERED_BY) == sorted(question for table in tables for question in table)


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("owners", {"paths": [str(Path(__file__)), "/none"]}),
        ("dpkg", {}),
        ("cards", {}),
        ("requests", {}),
        ("releases", {"folder": "/none", "records": []}),
        (
            "server",
            {"unit": "none.service", "port": 1, "proof": "/n", "release": "", "weights": ""},
        ),
    ],
)
def test_a_box_answers_as_the_function_does(question: str, asked: dict[str, object]) -> None:
    command = str(Probe().command(question, json.dumps(asked)))
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, check=True)
    function = import_module(ANSWERED_BY[question]).QUESTIONS[question]
    assert json.loads(done.stdout) == json.loads(json.dumps(function(asked)))


@pytest.mark.parametrize(
    "command",
    [
        Probe().command("paths_there", '{"paths": ["/"]}'),
        Discovery().command("fetching", json.dumps(NO_FETCHING)),
        Ours().command("records"),
    ],
)
def test_what_lies_in_the_working_directory_is_not_taken_for_pythons_own(
    command: object, tmp_path: Path
) -> None:
    for name in ("json", "re", "zlib", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not mine')\n")
    done = subprocess.run(
        ["sh", "-c", str(command)], cwd=tmp_path, text=True, capture_output=True, check=False
    )
    assert (done.stderr, done.returncode) == ("", 0)
    assert json.loads(done.stdout) is not None


def test_a_packed_program_is_the_same_one(tmp_path: Path) -> None:
    name, asked = ANSWERED_BY["owners"], json.dumps({"paths": ["/"]})
    plain, small = (run(text, "owners", asked, tmp_path) for text in (program(name), packed(name)))
    assert json.loads(plain.stdout) == {"/": ["root:root", "755"]}
    assert small.stdout == plain.stdout
    assert len(packed(name)) < len(program(name))


def test_imports_are_followed_wherever_they_stand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "aibox"
    folder.mkdir()
    made = {
        "__init__": "",
        "first": "ONE = 1\n",
        "second": 'def two():\n    from aibox.first import ONE\n    return ONE, "\\U0001f600\'"\n',
        "third": "import json\nfrom aibox import second\n"
        'QUESTIONS = {"q": lambda _: second.two()}\n',
        "other": "",
    }
    for name, text in made.items():
        (folder / f"{name}.py").write_text(text)
    monkeypatch.setattr(sent_along, "FOLDER", tmp_path)
    texts.cache_clear()
    try:
        assert list(texts("aibox.third")) == ["aibox", "aibox.first", "aibox.second", "aibox.third"]
        done = run(program("aibox.third"), "q", "{}", tmp_path)
    finally:
        texts.cache_clear()
    assert json.loads(done.stdout) == [1, "\U0001f600'"]


def test_a_question_that_is_none_is_an_error() -> None:
    with pytest.raises(KeyError):
        Probe().command("none such")
