"""pyinfra's own words that say nothing after a refusal, and those that do."""

import logging

import click
import pytest
from pyinfra import logger

from tasks import own_words

COUNT = f"[{click.style('box', bold=True)}] {click.style('Error: ', 'red')}executed 0 commands"
NO_HOST = f"--> {click.style('pyinfra error', 'red')}: No hosts remaining!"
IN_A_FILE = NO_HOST.replace("error", "error in /x/tasks/plan.py line 40")


@pytest.mark.parametrize(
    ("text", "refused", "shown"),
    [
        (COUNT, ["box"], False),
        (COUNT, ["other"], True),
        (COUNT, [], True),
        (NO_HOST, ["box"], False),
        (IN_A_FILE, ["box"], False),
        (NO_HOST, [], True),
        (f"{COUNT} (failed after 1/2 retries)", ["box"], True),
        ("[box] found     no aibox on this box", ["box"], True),
        ("--> pyinfra error in /x/tasks/preflight.py line 68: a setting", ["box"], True),
    ],
)
def test_only_what_says_nothing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, text: str, refused: list[str], shown: bool
) -> None:
    monkeypatch.setattr(own_words, "refused_boxes", lambda: refused)
    record = logging.LogRecord("pyinfra", logging.ERROR, "", 0, text, None, None)
    assert own_words.AfterARefusal().filter(record) is shown


def test_it_stands_before_pyinfras_own_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "filters", [])
    own_words.left_out()
    assert [type(one) for one in logger.filters] == [own_words.AfterARefusal]
