"""What the probe says of files and folders, and that it needs nothing but Python itself."""

import fcntl
import ipaddress
import json
import os
import pwd
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from aibox.box.probe import (
    at_work,
    caches,
    containers,
    door_venv,
    drop_ins,
    files,
    foreign,
    foreign_unit,
    owners,
    processes,
    releases,
    server,
    serving,
    system,
    unit_files,
    units,
    weights,
)
from tasks.facts import ANSWERED_BY
from tasks.sent_along import program
from tests.unit.conftest import ROOT


def test_it_runs_from_standard_input_on_a_bare_python() -> None:
    asked = {"folders": ["/nowhere/at/all"], "ports": [1], "sizes": {"x": ["/nowhere"]}}
    asked |= {"user": "nobody-of-that-name", "unit": "none-such.service"}
    asked |= {"units": ["nowhere.service"], "keys": ["/nowhere/keys"]}
    answer = answer_of("system", asked)
    assert answer["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert answer["root"] == (os.geteuid() == 0)
    assert answer["disks"]["/nowhere/at/all"]["mount"] == "/"
    assert answer["ports"] == {"1": None}
    assert answer["sizes"] == {"x": 0}
    assert answer["account"] is None
    assert answer["foreign_unit"] is None
    assert isinstance(answer["serving"], list)
    assert answer["units"] == {"nowhere.service": None}
    assert answer["keys"] == []


def test_a_folder_that_is_not_there_lies_on_its_parents_disk(tmp_path: Path) -> None:
    found = system.disk(str(tmp_path / "a/b/c"))
    assert found == {**system.disk(str(tmp_path)), "free_bytes": found["free_bytes"]}
    assert found["filesystem"] == str(tmp_path.stat().st_dev)
    assert found["free_bytes"] > 0


@pytest.mark.parametrize("content", [None, "", "[1]", '"x"', "{"])
def test_a_release_without_its_record_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "release.json").write_text(content)
    assert releases.release({"folder": str(tmp_path)}) is None


def test_a_release_is_its_record(tmp_path: Path) -> None:
    (tmp_path / "release.json").write_text('{"version": "1"}')
    assert releases.release({"folder": str(tmp_path)}) == {"version": "1"}


def test_every_file_of_the_weights_is_seen(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/x").write_text("12345")
    (tmp_path / ".verified.json").write_text('{"files": {}}')
    status = (tmp_path / "deep/x").stat()
    assert weights.weights({"folder": str(tmp_path)}) == {
        "seen": {"deep/x": [5, status.st_mtime_ns, status.st_ino]},
        "shared": {},
        "verified": {"files": {}},
        "listed": None,
    }


def test_weights_that_are_not_there_are_nothing(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"seen": {}, "shared": {}, "verified": None, "listed": None}
    assert weights.weights({"folder": str(tmp_path / "none")}) == nothing


def test_sizes_are_what_the_disk_holds(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(100_000))
    found = system.size_of([str(tmp_path / "x"), str(tmp_path / "none")])
    assert 100_000 <= found < 200_000


def test_a_process_is_its_command_environment_and_start() -> None:
    words = [sys.executable, "-c", "print(flush=True); input()", 'say "x"', "", "ünï"]
    environment, pipe = {"A": "b=c", "EMPTY": ""}, subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        running.stdout.readline()  # it runs
        found = units.process(running.pid, "Sun 2026-11-29 16:31:02.500000 UTC")
        running.communicate(b"end\n")
    assert found is not None
    assert found["command"] == words
    assert environment.items() <= found["environment"].items()
    assert found["started"] == 1795969862.5


@pytest.mark.parametrize("started", ["", "n/a"])
def test_a_process_without_a_start_is_none(started: str) -> None:
    assert units.process(os.getpid(), started) is None


def test_a_file_that_is_gone_has_no_stamp(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    found = server.file_stamp(str(tmp_path / "x"))
    assert found is not None
    assert found["changed"] == (tmp_path / "x").stat().st_mtime
    assert server.file_stamp(str(tmp_path / "none")) is None
    assert server.file_stamp("") is None


def test_owners_are_named_and_what_is_not_there_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "x").touch(0o640)
    found = owners.owners({"paths": [str(tmp_path / "x"), str(tmp_path / "none")]})
    owner = f"{owners.user_name(os.getuid())}:{owners.group_name(os.getgid())}"
    assert found == {str(tmp_path / "x"): [owner, "640"]}


@pytest.mark.parametrize(
    ("digits", "address"),
    [
        ("0100007F", "127.0.0.1"),
        ("00000000", "0.0.0.0"),
        ("0701A8C0", "192.168.1.7"),
        ("00000000000000000000000000000000", "::"),
        ("00000000000000000000000001000000", "::1"),
        ("0000000000000000FFFF00000100007F", "::ffff:127.0.0.1"),
    ],
)
def test_the_kernels_addresses_are_read(digits: str, address: str) -> None:
    assert ipaddress.ip_address(foreign.address_of(digits)) == ipaddress.ip_address(address)


def test_a_listening_port_is_seen_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        found = [one for one in foreign.listeners() if one["port"] == port]
    assert [(one["address"], one["name"]) for one in found] == [
        ("127.0.0.1", processes.name_of(os.getpid()))
    ]


def test_the_port_that_control_came_in_by_is_found_above_sudo() -> None:
    code = (
        "import sys; sys.path.insert(0, '.')\n"
        "from aibox.box.probe import foreign\nprint(foreign.ssh_port())"
    )
    done = subprocess.run(
        ["sh", "-c", 'env -i "$0" -c "$1"; true', sys.executable, code],
        env={**os.environ, "SSH_CONNECTION": "10.0.0.1 50000 10.0.0.2 2222"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "2222"


@pytest.mark.parametrize(
    ("unit", "folders"),
    [
        ("vllm.service", ["vllm.service.d", "service.d"]),
        (
            "vllm-coder-a.service",
            [
                "vllm-coder-a.service.d",
                "vllm-.service.d",
                "vllm-coder-.service.d",
                "service.d",
            ],
        ),
    ],
)
def test_drop_ins_are_looked_for_where_systemd_does(unit: str, folders: list[str]) -> None:
    assert unit_files.drop_in_folders(unit) == folders


def test_a_drop_in_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    assert files.content(tmp_path / "none") == "# cannot be read: No such file or directory"


@pytest.mark.parametrize("folder", ["etc/systemd/system", "usr/local/lib/systemd/system"])
@pytest.mark.parametrize(
    ("content", "foreign"),
    [
        (None, False),
        ("", False),  # masked
        ("# Laid down by the deploy: change the model card.\n[Unit]\n", False),
        ("[Service]\nExecStart=/home/me/vllm serve /srv/w\n", True),
    ],
)
def test_a_units_file_is_foreign_where_a_person_would_lose_it(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str,
    content: str | None,
    foreign: bool,
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    name = "vllm-coder.service"
    (tmp_path / folder).mkdir(parents=True)
    if content is not None:
        (tmp_path / folder / name).write_text(content)
    his = {"path": f"/{folder}/{name}", "starts_container": False, "starts_vllm": True}
    assert foreign_unit.foreign_unit(name) == (his if foreign else None)


def test_a_unit_in_etc_hides_those_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    for folder, text in (("etc", ""), ("usr/lib", "[Service]\nExecStart=/his\n")):
        (tmp_path / folder / "systemd/system").mkdir(parents=True)
        (tmp_path / folder / "systemd/system/vllm-coder.service").write_text(text)
    assert foreign_unit.foreign_unit("vllm-coder.service") is None  # masked


@pytest.mark.parametrize(
    ("start", "container"),
    [
        ("/usr/bin/docker run --gpus all vllm/vllm-openai --model x", True),
        ("-/usr/bin/podman run x", True),
        ("/bin/sh -c 'docker start -a qwen'", True),
        ("/usr/bin/docker \\\n  compose up", True),
        ("/usr/bin/env \\\n  docker-compose up", True),
        ("/home/docker/bin/vllm serve m", False),
        ("/opt/vllm serve /srv/docker/qwen", False),
    ],
)
def test_a_unit_that_starts_a_container_is_known_by_its_file(start: str, container: bool) -> None:
    text = f"[Unit]\nAfter=docker.service x\n[Service]\nExecStart={start}\n"
    assert containers.starts_container(text) is container


@pytest.mark.parametrize(
    ("start", "serves"),
    [
        ("/home/me/vllm-env/bin/vllm serve /srv/w", True),
        ("/home/me/vllm-env/bin/vllm \\\n    serve /srv/w", True),
        ("/v/bin/python -m vllm.entrypoints.openai.api_server --model /srv/w", True),
        ("/bin/bash -lc 'source /v/bin/activate && exec vllm serve /srv/w'", True),
        ("/home/me/start.sh", True),
        ("/bin/sh /home/me/start.sh 8000", True),
        ("/home/me/other.sh", False),
        ("/home/me/vllm-env/bin/litellm --config /home/me/litellm.yaml", False),
        ("/usr/sbin/sshd -D", False),
        ("/usr/bin/python3 -m http.server 4001 --directory /srv/vllm", False),
    ],
)
def test_what_serves_vllm_is_known_by_its_unit_or_its_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, serves: bool
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    home = tmp_path / "home/me"
    home.mkdir(parents=True)
    (home / "start.sh").write_text('#!/bin/sh\nexec "$HOME/vllm-env/bin/vllm" \\\n  serve "$1"\n')
    (home / "other.sh").write_text("#!/bin/sh\nexec nginx\n")
    (home / "litellm.yaml").write_text("model: hosted_vllm/x\n")
    assert (
        foreign_unit.starts_vllm("none-such.service", f"[Service]\nExecStart={start}\n") is serves
    )


def test_a_drop_in_may_be_what_starts_vllm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    folder = tmp_path / "etc/systemd/system/x.service.d"
    folder.mkdir(parents=True)
    (folder / "10.conf").write_text("[Service]\nExecStart=\nExecStart=/v/bin/vllm serve w\n")
    assert foreign_unit.starts_vllm("x.service", "[Service]\nExecStart=/bin/true\n")


@pytest.mark.parametrize(
    ("units", "starter"),
    [
        ({"qwen": "docker run -p 8000:8000 vllm/vllm-openai"}, "qwen.service"),
        ({"qwen": "docker start -a qwen"}, "qwen.service"),
        ({"web": "docker run nginx", "qwen": "docker run vllm/vllm-openai"}, "qwen.service"),
        ({"web": "docker run nginx", "db": "docker run postgres"}, None),
        ({"idle": "docker run vllm/vllm-openai"}, None),
        ({}, None),
    ],
)
def test_the_unit_that_starts_dockers_container_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, units: dict[str, str], starter: str | None
) -> None:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    monkeypatch.setattr(
        containers, "active_state", lambda name: "active" if "idle" not in name else ""
    )
    group = f"0::/system.slice/docker-{'a' * 64}.scope\n"
    monkeypatch.setattr(containers, "groups_of_process", lambda _pid: group)
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    for name, start in units.items():
        (folder / f"{name}.service").write_text(f"[Service]\nExecStart=/usr/bin/{start}\n")
    assert containers.starter_of(7, 8000) == starter


def test_podmans_unit_holds_its_container(monkeypatch: pytest.MonkeyPatch) -> None:
    group = f"0::/system.slice/qwen.service/libpod-payload-{'a' * 64}\n"
    monkeypatch.setattr(containers, "groups_of_process", lambda _pid: group)
    assert containers.starter_of(7, None) == "qwen.service"


def test_what_keeps_all_containers_is_not_stopped_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    group = f"0::/system.slice/docker.service/docker/{'a' * 64}\n"
    monkeypatch.setattr(containers, "groups_of_process", lambda _pid: group)
    monkeypatch.setattr(containers, "PLACES_OF_UNITS", ())
    assert containers.starter_of(7, None) is None


# --- weights that lie on the box already ---------------------------------------------------------

SLEEPS = "import sys, time; print(flush=True); time.sleep(60)"
REPOSITORY = "org/name"


@pytest.fixture
def homes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A box with the homes of root, a person and a service, and no other."""
    people = [("root", 0), ("me", 1000), ("www", 33)]
    rows = [
        pwd.struct_passwd((name, "x", uid, uid, "", str(tmp_path / name), "/bin/sh"))
        for name, uid in people
    ]
    monkeypatch.setattr(pwd, "getpwall", lambda: rows)
    return tmp_path


def hub_in(folder: Path, repository: str = REPOSITORY) -> str:
    (folder / f"models--{repository.replace('/', '--')}").mkdir(parents=True)
    return str(folder)


@pytest.fixture
def nobody_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else runs on this machine."""
    monkeypatch.setattr(caches, "servers_of_vllm", list)


@pytest.mark.usefixtures("nobody_serves")
def test_weights_are_looked_for_in_the_homes_of_root_and_of_persons(homes: Path) -> None:
    other = hub_in(homes / "root/.cache/huggingface/hub", "org/other")
    hub_in(homes / "www/.cache/huggingface/hub")
    mine = hub_in(homes / "me/.cache/huggingface/hub")
    assert caches.weights_places(REPOSITORY) == [mine, other]  # what holds it comes first


@pytest.mark.usefixtures("nobody_serves")
def test_a_home_that_does_not_answer_is_passed_over(
    homes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file server that is off: to ask for it never ends."""
    mine = hub_in(homes / "me/.cache/huggingface/hub")
    hub_in(homes / "root/.cache/huggingface/hub")
    test = homes / "bin/test"
    test.parent.mkdir()
    test.write_text('#!/bin/sh\ncase "$2" in */root/*) exec sleep 60 ;; esac\nexec [ "$@" ]\n')
    test.chmod(0o755)
    monkeypatch.setenv("PATH", f"{test.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(caches, "FOLDER_ANSWERS_S", 0.5)
    began = time.monotonic()
    assert caches.weights_places(REPOSITORY) == [mine]
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(
    ("variable", "below"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("HOME", caches.HUB_CACHE)]
)
def test_weights_are_looked_for_where_a_running_server_has_them(
    homes: Path, variable: str, below: str
) -> None:
    hub = hub_in(homes / "data" / below)
    model = homes / "models/qwen"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    words = [sys.executable, "-c", SLEEPS, "/x/bin/vllm", "serve", "qwen", "--seed", "7"]
    environment = {variable: str(homes / "data")}
    with subprocess.Popen(
        words, cwd=homes / "models", env=environment, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout
        running.stdout.readline()
        try:
            places = caches.weights_places(REPOSITORY)
            ours = [one for one in places if one.startswith(str(homes))]  # others may serve as well
            assert ours == [hub, str(model)]
        finally:
            running.kill()


@pytest.mark.parametrize(
    ("words", "is_one"),
    [
        (["/v/bin/python", "/v/bin/vllm", "serve", "/w"], True),
        (["python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "/w"], True),
        (["python3", "-m", "vllm.entrypoints.api_server", "--model", "/w"], True),
        (["python3", "-m", "vllm", "serve", "/w"], True),
        (["python3", "-m", "vllm.entrypoints.cli.main", "serve", "/w"], True),
        (["python3", "-m", "vllm.entrypoints.cli.main", "bench"], False),
        (["python3", "/v/site-packages/vllm/entrypoints/openai/api_server.py"], True),
        (["/usr/bin/docker", "run", "image", "vllm", "serve", "/w"], False),
        (["uv", "run", "vllm", "serve", "/w"], False),
        (["bash", "-c", "vllm serve /w"], False),
        (["/v/bin/vllm", "bench", "serve"], False),
        (["grep", "vllm"], False),
        ([], False),
    ],
)
def test_a_server_of_vllm_is_known_by_its_command_line(words: list[str], is_one: bool) -> None:
    assert processes.is_vllm(words) is is_one


@pytest.mark.parametrize(
    ("others", "alone"),
    [
        ([], True),
        ([{"manager": "user", "unit": "vllm-coder.service"}], False),
        ([{"manager": "none", "unit": None}], False),
    ],
)
def test_a_server_is_alone_where_nobody_else_serves(
    others: list[dict[str, Any]], alone: bool
) -> None:
    ours = {"manager": "system", "unit": "vllm-coder.service"}
    assert serving.is_alone([ours, *others], {"unit": "vllm-coder.service"}) is alone
    assert not serving.is_alone(others, {"unit": "vllm-coder.service"})


def test_what_nobody_tells_is_not_known() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    assert serving.running_at(port) is None


def test_who_holds_the_lock_of_a_deploy_is_told(tmp_path: Path) -> None:
    lock, jobs = tmp_path / "lock", tmp_path / "jobs"
    asked = {"jobs": str(jobs), "lock": str(lock)}
    assert at_work.at_work(asked) == {"jobs": [], "by": None}
    lock.write_text(json.dumps({"who": "me@desk", "since": time.time() - 60}))
    assert at_work.at_work(asked)["by"] is None  # left behind by one that has ended
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        by = answer_of("at_work", asked)["by"]
        assert (by["who"], 59 < by["seconds"] < 90) == ("me@desk", True)
        lock.write_text("")
        assert at_work.at_work(asked)["by"] == {}


def answer_of(question: str, asked: dict[str, Any]) -> Any:
    """By the program that is sent along for a question."""
    words = [sys.executable, "-IS", "-", question, json.dumps(asked)]
    source = program(ANSWERED_BY[question])
    done = subprocess.run(words, input=source, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


LISTENS = """
import socket, time
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*(one.getsockname()[1] for one in held), flush=True)
time.sleep(60)
"""


def test_a_server_of_vllm_is_seen_on_whatever_port_it_listens() -> None:
    words = [sys.executable, "-c", LISTENS, "/x/bin/vllm", "serve", "qwen"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as running:
        assert running.stdout
        ports = sorted(map(int, running.stdout.readline().split()))
        try:
            found = serving.serving({"unit": "none-such.service"})
            group = f"x{processes.groups_of_process(running.pid)}"
        finally:
            running.kill()
    [one] = [one for one in found if running.pid == one["pid"]]
    assert (one["ports"], one["vllm"]) == (ports, True)
    assert not processes.is_within(group, "none-such.service")


@pytest.mark.parametrize(
    ("path", "within"),
    [
        ("/system.slice/vllm.service", True),
        ("/system.slice/vllm.service/worker", True),
        ("/my.slice/my-vllm.service", False),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service", False),
        (f"/system.slice/docker-{'a' * 64}.scope", False),
    ],
)
def test_a_units_processes_are_those_of_its_own_control_group(path: str, within: bool) -> None:
    assert processes.is_within(f"0::{path}\n", "vllm.service") is within


def test_what_can_be_linked_takes_no_room(homes: Path, tmp_path: Path) -> None:
    hub = Path(hub_in(homes / "me/.cache/huggingface/hub"))
    shard = hub / "models--org--name/snapshots/c/x.safetensors"
    shard.parent.mkdir(parents=True)
    shard.write_bytes(b"12345")
    shard.chmod(0o644)
    files = {"x.safetensors": [5, ["models--org--name/snapshots/*/x.safetensors"]]}
    asked = {"repository": REPOSITORY, "to": [str(tmp_path / "to")], "files": files}
    assert caches.linkable({**asked, "from": None}) == 5
    assert caches.linkable({**asked, "from": str(hub)}) == 5
    assert caches.linkable({**asked, "from": str(tmp_path / "none")}) == 0
    (tmp_path / "to").mkdir()
    (tmp_path / "to/x.safetensors").write_bytes(b"12345")
    assert caches.linkable({**asked, "from": None}) == 0  # it is there, and counted as such


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("/system.slice/vllm.service", ("system", "vllm.service")),
        (
            "/user.slice/user-1000.slice/user@1000.service/app.slice/vllm.service",
            ("user", "vllm.service"),
        ),
        ("/user.slice/user-1000.slice/session-3.scope", ("none", None)),
        (f"/system.slice/docker-{'a' * 64}.scope", ("container", "a" * 12)),
        ("/", ("none", None)),
    ],
)
def test_who_keeps_a_process_is_told_by_its_control_group(
    path: str, found: tuple[str, str | None]
) -> None:
    assert processes.manager_of(f"0::{path}\n") == found


def test_the_names_of_what_a_units_own_files_set(tmp_path: Path) -> None:
    """Values stay on the box; what a drop-in sets by itself is shown with the drop-in."""
    unit, drop_in = tmp_path / "x.service", tmp_path / "x.conf"
    (tmp_path / "one.env").write_text("# A=1\nFROM_FILE=hunter2\n  SPACED = 2\nnonsense\n")
    (tmp_path / "two.env").write_text("FROM_DROP_IN=3\n")
    unit.write_text(
        '[Service]\nEnvironment=HF_HOME=/home/me/.cache "SPOKEN=a B=c" \\\n  NEXT=1\n'
        f"EnvironmentFile=-{tmp_path}/one.*\nEnvironmentFile=/nowhere/at/all\n"
        "PassEnvironment=LET_THROUGH\n# Environment=COMMENT=1\nUnsetEnvironment=GONE\n"
    )
    drop_in.write_text(f"[Service]\nEnvironment=SHOWN=1\nEnvironmentFile={tmp_path}/two.env\n")
    names = ["FROM_DROP_IN", "FROM_FILE", "HF_HOME", "LET_THROUGH", "NEXT", "SPACED", "SPOKEN"]
    assert drop_ins.given_by(unit, [drop_in]) == names
    assert drop_ins.given_by(Path(), []) == []
    unit.write_text('[Service]\nEnvironment="A=1\nEnvironmentFile=relative\n')
    assert drop_ins.given_by(unit, []) == ['"A']


@pytest.mark.parametrize(
    ("text", "theirs"),
    [
        ("[Service]\n", True),
        ("# Laid down by the deploy: change the settings\n[Service]\n", False),
        ("\n", False),
        (None, False),
    ],
    ids=["a person's", "ours", "empty", "none"],
)
def test_a_persons_unit_is_known(tmp_path: Path, text: str | None, theirs: bool) -> None:
    if text is not None:
        (tmp_path / "x.service").write_text(text)
    assert unit_files.is_a_persons(tmp_path / "x.service") is theirs


OURS = "# Laid down by the deploy; what you change here goes.\n[Unit]\n"


@pytest.mark.parametrize(
    ("place", "text", "recorded", "whose"),
    [
        (None, "", False, None),
        (None, "", True, "ours"),
        ("/etc/systemd/system", OURS, False, "ours"),
        ("/etc/systemd/system", OURS, True, "ours"),
        ("/etc/systemd/system", "[Service]\nExecStart=/home/me/proxy\n", False, "foreign"),
        ("/usr/local/lib/systemd/system", "[Service]\n", False, "foreign"),
        ("/usr/lib/systemd/system", "[Service]\n", False, "foreign"),
        ("/etc/systemd/system", "", False, None),
        ("/etc/systemd/system", "", True, "ours"),
    ],
)
def test_whose_a_doors_unit_is(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    place: str | None,
    text: str,
    recorded: bool,
    whose: str | None,
) -> None:
    """One that a person has named as we would is theirs, wherever systemd finds it."""
    monkeypatch.setattr(files, "ROOT", tmp_path)
    deployed = tmp_path / "deployed.json"
    if recorded:
        deployed.write_text(json.dumps({"units": {"litellm.service": {"enabled": True}}}))
    if place:
        folder = tmp_path / place.lstrip("/")
        folder.mkdir(parents=True)
        (folder / "litellm.service").write_text(text)
    assert unit_files.unit_of_whom("litellm.service", deployed) == whose


def venv_made(folder: Path) -> None:
    """A venv whose files are older than its record."""
    for name in ("lib/a.py", "lib/__pycache__/a.pyc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    for path in (*folder.rglob("*"),):
        os.utime(path, (1000, 1000))
    (folder / "release.json").write_text('{"lock_sha256": "ab"}')
    os.utime(folder / "release.json", (2000, 2000))


@pytest.mark.parametrize(
    ("name", "touched"),
    [(None, None), ("lib/a.py", "lib/a.py"), ("lib", "lib"), ("lib/__pycache__/a.pyc", None)],
)
def test_what_was_changed_in_a_venv_since_it_was_built(
    tmp_path: Path, name: str | None, touched: str | None
) -> None:
    venv_made(tmp_path)
    if name:
        os.utime(tmp_path / name, (3000, 3000))
    answer = door_venv.door_venv({"folder": str(tmp_path)})
    assert answer == {"record": {"lock_sha256": "ab"}, "touched": touched}


def test_a_venv_without_its_record_is_none(tmp_path: Path) -> None:
    assert door_venv.door_venv({"folder": str(tmp_path)}) == {"record": None, "touched": None}
