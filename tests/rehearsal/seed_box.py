"""A box as its owner built it by hand: his user, venv, unit, hub cache, and what else he runs.

    box = make_seed_box(make_box, hub, "mine")    everything of his runs
    before = his(box)
    deploy({box: standin(hub.url)}, "-y")         the product adopts it
    rollback(box)                                 and he takes his own back
    assert his(box) == before

What is his is as in a write-up of such a box: vLLM in a venv of his home, `--max-num-seqs 512` and
no MTP, weights where the hub's own client lays them, a proxy on 4000 and LiteLLM on 4001.
"""

from __future__ import annotations

import base64
import io
import tarfile
from dataclasses import dataclass

from tests.rehearsal.box import Box
from tests.rehearsal.candidates import INSTALLED, SCRIPT, UNIT, until_it_answers
from tests.rehearsal.checkpoints import TINY
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import repository
from tests.rehearsal.emulation.hub import MODELS, Hub
from tests.rehearsal.standin.build import WHEEL

ME, HOME = "me", "/home/me"
VENV = f"{HOME}/vllm-env"
CACHE = f"{HOME}/.cache/huggingface/hub"
REPOSITORY = f"rehearsal/{TINY}"
LISTENERS = {"stream-filter": 4000, "litellm": 4001}

HIS_UNIT = """\
[Unit]
Description=vLLM coder
After=network-online.target

[Service]
User=me
WorkingDirectory=/home/me
Environment=HF_HOME=/home/me/.cache/huggingface
Environment={script}
ExecStart={command} \\
    --dtype auto --max-model-len 262144 --attention-backend FLASHINFER \\
    --enable-prefix-caching --enable-auto-tool-choice --tool-call-parser qwen3_coder \\
    --reasoning-parser qwen3 --gpu-memory-utilization 0.87 --max-num-seqs 512 \\
    --served-model-name tiny-qwen3.5-mtp --host 127.0.0.1 --port 8000
Restart=on-failure
RestartSec=5

[Install]
WantedBy=multi-user.target
"""
LISTENER = """\
[Unit]
Description={name} of mine

[Service]
User=me
ExecStart=/usr/bin/python3 -m http.server {port} --directory /srv
Restart=always

[Install]
WantedBy=multi-user.target
"""
# As `pip install vllm` in a fresh venv leaves it; a pure wheel is unpacked, no more.
BUILD_VENV = f"""\
set -e
python3 -m venv --without-pip {VENV}
cd "$({VENV}/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
python3 -c 'import sys, urllib.request as r; r.urlretrieve(sys.argv[1], sys.argv[2])' \\
  "$1" {VENV}/w.whl
python3 -m zipfile -e {VENV}/w.whl .
rm {VENV}/w.whl
printf '#!{VENV}/bin/python\\nimport sys\\nfrom vllm.cli import main\\nsys.exit(main())\\n' \\
  >{VENV}/bin/vllm
chmod 755 {VENV}/bin/vllm
"""


@dataclass(frozen=True)
class His:
    """What must be his still, whatever the product does.

    unit: text, mode, owner and kind of the unit's file. enabled: as systemctl says. listeners:
    main process by unit. venv: one sum over every file's name, mode, owner, time and content.
    cache: the same of the hub cache.
    """

    unit: str
    enabled: str
    listeners: dict[str, str]
    venv: str
    cache: str


def make_seed_box(
    make_box: MakeBox, hub: Hub, name: str = "seed-box", *, start: bool = True
) -> Box:
    """A box with the driver that his hands installed, and all of his up unless `start` is False."""
    return seeded(make_box(name, "driven"), hub, start=start)


def seeded(box: Box, hub: Hub, *, start: bool = True) -> Box:
    """Lay down what is his on a box that has a driver; takes about 3 s."""
    box.run(f"useradd --create-home --shell /bin/bash {ME} && chmod 750 {HOME}")
    box.run(["runuser", "-u", ME, "--", "bash", "-c", BUILD_VENV, "-", wheel_of(hub)])
    lay_cache(box)
    write(box, INSTALLED, his_unit())
    for unit, port in LISTENERS.items():
        write(box, f"/etc/systemd/system/{unit}.service", LISTENER.format(name=unit, port=port))
    names = " ".join(LISTENERS)
    box.run(f"systemctl daemon-reload; systemctl enable -q {UNIT}")
    box.run(f"systemctl enable -q --now {names}")
    if start:
        start_his(box)
    return box


def wheel_of(hub: Hub) -> str:
    return f"{hub.url}/files/{WHEEL.replace('+', '%2B')}"


def his_unit(command: str | None = None) -> str:
    """The text of his unit. command: what stands before his flags; usually vLLM on his cache."""
    return HIS_UNIT.format(
        command=command or f"{VENV}/bin/vllm serve {snapshot()}",
        script=f"VLLM_STANDIN_SCRIPT={SCRIPT}",
    )


def snapshot() -> str:
    """The folder of the pinned commit in his hub cache."""
    return f"{cached()}/snapshots/{tiny().commit}"


def cached() -> str:
    return f"{CACHE}/models--{REPOSITORY.replace('/', '--')}"


def tiny() -> repository.Repository:
    found = repository.load(MODELS, REPOSITORY)
    assert found is not None
    return found


def start_his(box: Box) -> None:
    """Start his server and wait until it answers."""
    box.run(f"systemctl start {UNIT}")
    until_it_answers(box)


def write(box: Box, path: str, text: str) -> None:
    box.run(["sh", "-c", f"mkdir -p $(dirname {path}) && cat > {path}"], text=text)


def lay_cache(box: Box) -> None:
    """Blobs by their etag, refs/main, and the snapshot's links, as huggingface_hub lays them."""
    found, packed = tiny(), io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path, entry in found.entries.items():
            kind = for_his_group if path == "config.json" else plain
            archive.add(entry.file, f"blobs/{entry.etag}", filter=kind)
            link = tarfile.TarInfo(f"snapshots/{found.commit}/{path}")
            link.type, link.linkname = tarfile.SYMTYPE, f"../../blobs/{entry.etag}"
            archive.addfile(link)
        ref = tarfile.TarInfo("refs/main")
        ref.size = len(found.commit)
        archive.addfile(ref, io.BytesIO(found.commit.encode()))
    folder = cached()
    unpack = f"umask 0002; mkdir -p {folder} && base64 -d | tar xzC {folder}"
    box.run(
        ["runuser", "-u", ME, "--", "sh", "-c", unpack],
        text=base64.b64encode(packed.getvalue()).decode(),
    )


def plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mode, member.mtime = 0o644, 1_700_000_000
    return member


def for_his_group(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """As Ubuntu's umask, 0002, makes them all."""
    member = plain(member)
    member.mode = 0o664
    return member


def his(box: Box) -> His:
    """What is his, as it stands now."""
    return His(
        unit=box.run(f"stat -c '%F %a %U:%G %N' {INSTALLED}; sha256sum {INSTALLED}").stdout,
        enabled=box.run(f"systemctl is-enabled {UNIT}", check=False).stdout.strip(),
        listeners={unit: main_process(box, unit) for unit in LISTENERS},
        venv=fingerprint(box, VENV),
        cache=fingerprint(box, CACHE),
    )


def main_process(box: Box, unit: str) -> str:
    return box.run(f"systemctl show {unit} -p MainPID --value").stdout.strip()


def fingerprint(box: Box, folder: str) -> str:
    """Bytecode is left out: python writes it by itself. So are link counts."""
    listed = f"find {folder} -name __pycache__ -prune -o -printf '%p %y %m %U:%G %l\\n' | sort"
    times = f"find {folder} -name __pycache__ -prune -o -type f -printf '%p %s %T@\\n' | sort"
    sums = f"find {folder} -name __pycache__ -prune -o -type f -exec sha256sum {{}} + | sort"
    return box.run(f"({listed}; {times}; {sums}) | sha256sum").stdout.split()[0]
