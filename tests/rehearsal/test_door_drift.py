"""What is changed by hand at the doors and their firewall: named by a drift check, then mended."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from aibox.decide import firewall, manifest
from aibox.decide.doors import (
    GATEWAY,
    GATEWAY_CODE,
    GATEWAY_CONFIG,
    GATEWAY_KEYS,
    MASTER_KEY,
    STREAM,
    STREAM_CONFIG,
    STREAM_KEYS,
)
from aibox.decide.manifest import Manifest
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.kill_harness import differences, manifest_of
from tests.rehearsal.provision import HostData, deploy, download_caches, standin
from tests.rehearsal.test_drift import RELOAD, check, edited, rows

pytestmark = pytest.mark.long

GATEWAY_VENV = "/opt/litellm/1.*"
STREAM_VENV = "/opt/vllm-stream/0.*"
DROP_IN = "mkdir -p /etc/systemd/system/{unit}.d && printf '[{part}]\\n{line}\\n' >{file}"


@dataclass(frozen=True)
class Kind:
    """A deed on the box, and what a check must say of it: "stage: reason" or "foreign: what"."""

    deed: str
    named: tuple[str, ...]


def masked(path: str) -> str:
    return f"ln -sfn /dev/null {path} && {RELOAD}"


# Each round is checked, then mended by one deploy.
ROUNDS: dict[str, dict[str, Kind]] = {
    "files and rules": {
        "the gateway's configuration": Kind(
            edited(GATEWAY_CONFIG, "s/drop_params/keep_params/")[0],
            (f"Gateway: {GATEWAY_CONFIG} has another content",),
        ),
        "the code around LiteLLM": Kind(
            edited(GATEWAY_CODE, "s/hmac.compare_digest/equal/")[0],
            (f"Gateway: {GATEWAY_CODE} has another content",),
        ),
        "the mode of its master key": Kind(
            f"chmod 644 {MASTER_KEY}",
            (f"Gateway: {MASTER_KEY} is root:root 644, not root:root 600",),
        ),
        "the owner of its further keys": Kind(
            f"chown guest {GATEWAY_KEYS}",
            (f"Gateway: {GATEWAY_KEYS} is guest:root 600, not root:root 600",),
        ),
        "a module of LiteLLM": Kind(
            f"echo '#' >>$(echo {GATEWAY_VENV}/lib/python3*/site-packages/litellm/main.py)",
            ("Gateway: /opt/litellm/1.", "litellm/main.py was changed since the venv was built"),
        ),
        "a module of the filter that is gone": Kind(
            f"rm $(echo {STREAM_VENV}/lib/python3*/site-packages/aibox/stream/sse.py)",
            ("Stream: /opt/vllm-stream/0.", "aibox/stream was changed since the venv was built"),
        ),
        "keys of the filter that nobody gave": Kind(
            f"echo 'al: sk-0123456789' >{STREAM_KEYS}; : >{STREAM_KEYS}; chmod 640 {STREAM_KEYS}",
            (
                f"Stream: {STREAM_KEYS} is root:root 640, not root:root 600",
                f"Stream: it runs since before {STREAM_KEYS} was laid down",
            ),
        ),
        "rules that were flushed": Kind(
            "nft flush ruleset", ("Firewall: there is no table of ours",)
        ),
        "rules for the next boot": Kind(
            edited(firewall.RULES, "s/accept/drop/")[0],
            (f"Firewall: {firewall.RULES} has another content",),
        ),
    },
    "units": {
        "the gateway is disabled": Kind(
            f"systemctl disable -q {GATEWAY.unit}",
            (f"Gateway: {GATEWAY.unit} is disabled or masked",),
        ),
        "the filter is masked": Kind(
            masked(STREAM.unit_file),
            (f"Stream: {STREAM.unit_file} is not there as a file",),
        ),
        "the firewall is disabled": Kind(
            f"systemctl disable -q {firewall.UNIT}",
            (f"Firewall: {firewall.UNIT} is disabled or masked",),
        ),
        "the firewall's unit": Kind(
            edited(firewall.UNIT_FILE, "s/^After=.*//")[0] + f" && {RELOAD}",
            (f"Firewall: {firewall.UNIT_FILE} has another content",),
        ),
        "a rule of the table": Kind(
            f"nft add rule {firewall.TABLE} input tcp dport 4000 drop",
            ("Firewall: our table is another one",),
        ),
    },
    "masked and stopped": {
        "the firewall is masked": Kind(
            masked(firewall.UNIT_FILE),
            (f"Firewall: {firewall.UNIT_FILE} is not there as a file",),
        ),
        "the gateway is stopped": Kind(
            f"systemctl stop {GATEWAY.unit}", ("Gateway: it does not run (inactive)",)
        ),
        "the filter's configuration is open to all": Kind(
            f"chmod 666 {STREAM_CONFIG}",
            (f"Stream: {STREAM_CONFIG} is root:root 666, not root:root 644",),
        ),
    },
}
DROP_INS = {
    GATEWAY.unit: ("Service", "Nice=5", "Gateway: systemd has not read its unit"),
    STREAM.unit: ("Service", "Nice=5", "Stream: systemd has not read its unit"),
    firewall.UNIT: ("Unit", "After=ssh.service", f"Firewall: {firewall.UNIT} has not been read"),
}


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return {**standin(hub.url), "stream": True, "gateway": True, "firewall": True}


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None], data: HostData) -> Iterator[Box]:
    name = layers("serving")
    with Box.up("door-drift", layer=name, binds=download_caches(), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        mended(box, data)
        yield box


@pytest.fixture(scope="module")
def undisturbed(box: Box) -> Manifest:
    return manifest_of(box)


def mended(box: Box, data: HostData) -> None:
    """One deploy, after which nothing is to be done."""
    done = deploy({box: data}, "-y")
    assert done.code == 0, done.said
    found = check({box: data})
    assert (found.code, found.table) == (0, f"{box.name}: in sync\n"), found.said


@pytest.mark.parametrize("name", ROUNDS)
def test_what_was_changed_by_hand_is_named_and_mended(
    box: Box, data: HostData, undisturbed: Manifest, name: str
) -> None:
    kinds = ROUNDS[name]
    box.run("\n".join(["set -e", *(kind.deed for kind in kinds.values())]))
    found = check({box: data})
    assert found.code == 2, found.said
    said = rows(found, box.name)
    assert [words for kind in kinds.values() for words in kind.named if words not in said] == []
    assert "sk-0123456789" not in found.said
    mended(box, data)
    assert differences(undisturbed, box) == []


def test_a_drop_in_is_foreign_and_read(box: Box, data: HostData, undisturbed: Manifest) -> None:
    """What it says is the person's: it stays, and systemd goes by it."""
    files = {unit: f"/etc/systemd/system/{unit}.d/mine.conf" for unit in DROP_INS}
    for unit, (part, line, _) in DROP_INS.items():
        box.run(DROP_IN.format(unit=unit, part=part, line=line, file=files[unit]))
    found = check({box: data})
    assert found.code == 2, found.said
    for unit, (_, _, words) in DROP_INS.items():
        assert words in rows(found, box.name)
        assert f"foreign: drop-in {files[unit]}" in rows(found, box.name)
    done = deploy({box: data}, "-y")
    assert done.code == 0, done.said
    accepted = {**data, "accepted": [f"drop-in {file}" for file in files.values()]}
    assert check({box: accepted}).code == 0
    shown = [str(one) for one in manifest.compare(undisturbed, manifest_of(box))]
    assert {unit for unit in DROP_INS for row in shown if unit in row} == set(DROP_INS), shown
    box.run(f"rm -r {' '.join(file.rpartition('/')[0] for file in files.values())}; {RELOAD}")
    mended(box, data)


def test_the_manifest_holds_what_the_doors_are_made_of(box: Box, undisturbed: Manifest) -> None:
    bit = undisturbed["bit"]
    assert set(bit["doors"]) == {"stream", "gateway"}
    for door in (STREAM, GATEWAY):
        assert {door.unit_file, *door.files, *door.keys} <= set(bit["files"])
        assert bit["units"][door.unit]["state"] == "active"
        assert bit["venvs"][door.name]["distributions"]
        venv = f"{door.root}/{bit['doors'][door.name]}"
        assert bit["links"][f"{door.root}/current"] == bit["doors"][door.name]
        assert "lock.txt" in box.run(f"ls {venv}").stdout
        assert "lock.txt" in bit["venvs"][door.name]["parts"]
    for key in (MASTER_KEY, GATEWAY_KEYS, STREAM_KEYS):
        assert bit["files"][key]["sha256"] == "secret"
        assert bit["files"][key]["mode"] == "600"
    assert {firewall.RULES, firewall.UNIT_FILE} <= set(bit["files"])
    assert bit["units"][firewall.UNIT] == {**bit["units"][firewall.UNIT], "enabled": "enabled"}
    kept = box.run(f"sha256sum {GATEWAY_CONFIG}").stdout.split()[0]
    assert bit["files"][GATEWAY_CONFIG]["sha256"] == kept


def test_a_key_of_another_mode_cuts_nobody_off(box: Box, data: HostData) -> None:
    started = [box.run(f"systemctl show {one.unit} -p InvocationID") for one in (STREAM, GATEWAY)]
    with contextlib.ExitStack() as after:
        after.callback(box.run, f"chmod 600 {MASTER_KEY} {STREAM_KEYS}")
        box.run(f"chmod 644 {MASTER_KEY} {STREAM_KEYS}")
        mended(box, data)
    now = [box.run(f"systemctl show {one.unit} -p InvocationID") for one in (STREAM, GATEWAY)]
    assert [one.stdout for one in now] == [one.stdout for one in started]
