"""An alias of control's ssh configuration is nothing that another machine knows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyinfra.api import Host, Inventory

from tasks import watching
from tasks.ssh_names import address_of, doubt_of

CONFIG = """
Host one
  HostName 192.168.1.11
Host two
  HostName lab.example
Host near
  HostName 127.0.0.1
Host same
  HostName SAME
"""


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "config"
    path.write_text(CONFIG)
    return path


def made(name: str, config: Path, **data: Any) -> Host:
    hosts = Inventory(([(name, {"ssh_config_file": str(config), **data})], {}))
    found = hosts.get_host(name)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "address", "doubted"),
    [
        ("one", "192.168.1.11", False),
        ("two", "two", True),
        ("near", "near", True),
        ("same", "same", False),
        ("three", "three", False),
        ("192.168.1.12", "192.168.1.12", False),
        ("@local", "@local", False),
    ],
)
def test_an_alias_stands_for_its_address_and_no_other_name(
    config: Path, name: str, address: str, *, doubted: bool
) -> None:
    host = made(name, config)
    assert address_of(host) == address
    assert ("set box_address" in (doubt_of(host) or "")) == doubted


def test_what_the_settings_say_goes_first(config: Path) -> None:
    said = made("two", config, box_address="10.0.0.2")
    assert (watching.address_of(said), watching.doubt_of(said)) == ("10.0.0.2", None)
    assert watching.address_of(made("three", config, ssh_hostname="one")) == "192.168.1.11"
    assert watching.doubt_of(made("three", config, ssh_hostname="two")) is not None


def test_a_configuration_that_cannot_be_read_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "broken"
    path.write_text("this is no option\n")
    assert address_of(made("one", path)) == "one"
