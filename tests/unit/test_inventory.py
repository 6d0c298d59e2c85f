"""Groups that were probably meant to be ours, and names that can't be meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aibox.decide.inventory import Named, judge, no_lists, ours_for
from tests.unit.conftest import ROOT

TWO = ["one", "two"]


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("site", "site"),
        ("monitors", "monitor"),
        ("gateway", "gateways"),
        ("Gateways", "gateways"),
        ("stie", "site"),
        ("gatewyas", "gateways"),
        ("monitoring", "monitor"),
        ("kitchen", None),
        ("site2", None),
        ("site_b", None),
        ("home", None),
        ("gate", None),
        ("all", None),
    ],
)
def test_a_group_that_is_nearly_ours_is_none_of_a_persons_own(name: str, meant: str | None) -> None:
    assert ours_for(name) == meant


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ({"site": TWO}, None),
        ({"site": TWO, "monitor": ["one"], "gateways": TWO}, None),
        ({"site": TWO, "monitor": ["watcher"], "kitchen": ["two"]}, None),
        ({"one": ["one"], "kitchen": ["two"]}, None),
        ({"site": TWO, "monitors": ["one"]}, "monitors is no group"),
        ({"site": TWO, "one": ["two"]}, "one is a box and a group of other boxes too"),
        ({"site": TWO, "one": TWO}, "one is a box and a group of other boxes too"),
        ({"site": TWO, "gateways": ["tow"]}, "in no group of boxes; did you mean two?"),
        ({"site": TWO, "gateways": ["x"], "monitor": ["x"]}, "x is in the group `gateways`"),
        ({"site": TWO, "monitor": ["ai"], "kitchen": ["ai"]}, None),
    ],
)
def test_what_cannot_be_meant_is_refused(groups: dict[str, list[str]], said: str | None) -> None:
    every = list(dict.fromkeys(name for held in groups.values() for name in held))
    found = judge(Named(every, {**groups, "inventory": every}, of_all=["all", "inventory"]))
    assert (found is None) == (said is None), found
    assert (said or "") in (found.found if found else "")


def test_a_file_that_is_named_like_a_group_of_ours_holds_every_host() -> None:
    assert judge(Named(TWO, {"lab": TWO, "sites": TWO}, of_all=["all", "sites"])) is None


def test_a_text_that_is_no_list_is_shown_as_one() -> None:
    found = judge(Named([], {}, no_lists=no_lists("site = 'one'\n")))
    assert found is not None
    assert found.remedy == 'write site = ["one"]'


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("monitor = 'one'", {"monitor": "'one'"}),
        ("monitor = True", {"monitor": "True"}),
        ("site = {'one', 'two'}", {"site": "{'one', 'two'}"}),
        ("site = f'{1}'", {"site": "f'{1}'"}),
        ("monitor = None\ngateways = []\nsite = (['a', ('b', {})], {})\n", {}),
        ("site = ('a', 'b')", {"site": "('a', 'b')"}),
        ("site = ('a', {})", {"site": "('a', {})"}),
        ("gateways = ()", {"gateways": "()"}),
        ("gateways = [['a', 'b']]", {"gateways": "[['a', 'b']]"}),
        ("site = ['a', None]", {"site": "['a', None]"}),
        ("site = ['a', '']", {"site": "['a', '']"}),
        ("site = [('a',)]", {"site": "[('a',)]"}),
        ("site = [('a', 'b')]", {"site": "[('a', 'b')]"}),
        ("site = [('a', None)]", {"site": "[('a', None)]"}),
        ("site = [('a', data), name, ('b', dict(x=1)), f'{1}', ('c', {**data})]", {}),
        ("site = 'one'\nsite = [site]\n", {}),
        ("site = made()", {}),
        ("site = [", {}),
    ],
)
def test_what_stands_where_a_list_has_to_be(text: str, found: dict[str, str]) -> None:
    assert no_lists(text) == found


@pytest.mark.parametrize(
    "name", ["a b", "a ", "a\n", "a\x1b[1m", "a\0", "a\udcff", "a*", "[::1]", "-a"]
)
def test_a_name_that_no_word_of_limit_can_mean_is_refused(name: str) -> None:
    found = judge(Named([name], {"site": [name]}))
    assert found is not None
    assert found.found.isprintable()
    assert "is no name of a host" in found.found


@pytest.mark.parametrize(
    "name", ["Ai-Box", "a.b.c", "1.2.3.4", "fe80::1", "@local", "@ssh/a", "bücher"]
)
def test_a_name_that_may_be_one_is_left_to_ssh(name: str) -> None:
    assert judge(Named([name], {"site": [name]})) is None


INVENTORIES = [
    ("site = ['one', 'two']\none = ['two']\n", "one is a box and a group of other boxes too"),
    ("site = ['one', 'two']\nmonitors = ['one']\n", "did you mean monitor?"),
    ("site = 'one'\n", 'write site = ["one"]'),
    ("site = ['one', 'two']\ngateways = ['tow']\n", "did you mean two?"),
    ("site = ('one', 'two')\n", "site = ('one', 'two') in the inventory is no list of names"),
    ("site = ['one']\nraise KeyError('x')\n", "inventory, line 2: KeyError: 'x'"),
    ("import sys\nsite = ['one']\nsys.exit(0)\n", "inventory, line 3: it ends the run itself"),
    ("mine = [('a', 'x')]\n", "inventory: ValueError: "),
    ("site = [", "never closed"),
    ("site = ['one ']\n", "'one ' in the inventory is no name of a host"),
]


@pytest.mark.parametrize(("text", "said"), INVENTORIES)
def test_a_run_ends_with_it_before_any_connection(tmp_path: Path, text: str, said: str) -> None:
    inventory = tmp_path / "inventory"
    inventory.write_text(text)
    for words in (
        ["-m", "pyinfra", "--dry", str(inventory), "deploy.py", "--limit", "one"],
        ["-m", "tasks.monitoring_files", str(inventory), "--into", str(tmp_path / "written")],
        ["-m", "tasks.named", str(inventory)],
    ):
        done = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1, (words, done.stderr)
        assert said in done.stderr and "Traceback" not in done.stderr, (words, done.stderr)
        assert "onnect" not in done.stderr, (words, done.stderr)
