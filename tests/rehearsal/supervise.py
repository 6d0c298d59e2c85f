"""Keeps one box running: its own process, detached, in the control group of the box.

    python -m tests.rehearsal.supervise SPEC.json

It is started in a mount namespace of its own, so that the box's root file system and its network
namespace are nobody else's and vanish with the box's processes, however these end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.rehearsal import cgroup, network
from tests.rehearsal.machine import RehearsalError, command, environment

REBOOT = 133  # systemd-nspawn's exit code with --keep-unit when the box asked for a reboot


@dataclass(frozen=True)
class Spec:
    """What a box is made of. Paths are relative to `cache`: mount options have a length limit."""

    machine_name: str
    hostname: str
    address: str
    subnet: str
    cache: str
    folder: str
    lower: list[str]  # topmost first, the image last
    binds: dict[str, str]
    namespace: str


def start(spec: Spec, package_folder: Path) -> None:
    """Start the box's process and return when it stands on its own. Raises RehearsalError."""
    file = Path(spec.cache) / spec.folder / "spec.json"
    file.write_text(json.dumps(asdict(spec)))
    words = ["unshare", "--mount", "--propagation", "slave", "--"]
    words += [sys.executable, "-m", "tests.rehearsal.supervise", str(file)]
    done = subprocess.run(
        words,
        cwd=package_folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        start_new_session=True,
        env=environment(),
    )
    if done.returncode:
        raise RehearsalError(f"The box {spec.hostname} could not start: {done.stderr.strip()}")


def main(spec_file: str) -> None:
    spec = Spec(**json.loads(Path(spec_file).read_text()))
    os.chdir(spec.cache)
    os.umask(0o022)  # a strict one of the caller would lock the box's users out
    cgroup.join(spec.machine_name)
    try:
        mount_root(spec)
        prepare_root(spec)
    except RehearsalError as fault:
        sys.exit(str(fault))
    detach(Path(spec.folder, "console.log"))
    try:
        while boot(spec) == REBOOT:
            pass
    except RehearsalError as fault:
        print(fault, flush=True)
    network.unplug(spec.machine_name)


def boot(spec: Spec) -> int:
    """Run the box, with a network that knows nothing of an earlier boot, until it ends."""
    subnet, namespace = network.Subnet(spec.subnet), Path(spec.namespace)
    network.plug_in(spec.machine_name, spec.address, subnet, namespace, os.getpid())
    code = subprocess.run(boot_command(spec), check=False, env=environment()).returncode
    print(f"the box ended with code {code}", flush=True)
    return code


def detach(log: Path) -> None:
    """Leave the starter's process tree, so that the box outlives it; write to `log` from here."""
    with log.open("ab") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    if os.fork():
        os._exit(0)


def mount_root(spec: Spec) -> None:
    disk = Path(spec.folder, "disk")
    (disk / "upper").mkdir(parents=True, exist_ok=True)
    # left by a power cut, it would forbid a volatile mount
    shutil.rmtree(disk / "work", ignore_errors=True)
    (disk / "work").mkdir()
    root = Path(spec.folder, "root")
    root.mkdir(exist_ok=True)
    for lower in spec.lower:
        if not Path(lower).is_dir():
            raise RehearsalError(f"{lower}, on which it stands, is gone. Bring the box up anew.")
    options = f"lowerdir={':'.join(spec.lower)},upperdir={disk}/upper,workdir={disk}/work"
    # volatile: no fsync reaches the disk, which is safe against everything but a crash of the
    # machine itself; redirect_dir: a folder of a layer can be renamed, as on a real disk
    options += ",volatile,redirect_dir=on,index=off,metacopy=off"
    # the older mount call has no limit of 256 characters for lowerdir
    os.environ["LIBMOUNT_FORCE_MOUNT2"] = "always"
    command("mount", "-t", "overlay", spec.machine_name, "-o", options, root)


def prepare_root(spec: Spec) -> None:
    """What makes a fresh box this one: name, name server, identity and journal of its own."""
    done = Path(spec.folder, "prepared")
    if done.exists():
        return
    etc = Path(spec.folder, "root", "etc")
    (etc / "hostname").write_text(f"{spec.hostname}\n")
    (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {spec.hostname}\n")
    (etc / "resolv.conf").unlink(missing_ok=True)
    (etc / "resolv.conf").write_text(name_servers())
    (etc / "machine-id").write_text("")
    for journal in Path(spec.folder, "root", "var/log/journal").glob("*"):
        shutil.rmtree(journal)
    done.touch()


def name_servers() -> str:
    """The machine's resolv.conf; a name server on its loopback does not answer boxes."""
    text = Path("/etc/resolv.conf").read_text()
    behind = Path("/run/systemd/resolve/resolv.conf")
    if "nameserver 127." in text and behind.exists():
        return behind.read_text()
    return text


def boot_command(spec: Spec) -> list[str]:
    # a time namespace, so that /proc/uptime and the boot time start with this boot
    uptime = int(float(Path("/proc/uptime").read_text().split()[0]))
    words = ["unshare", "--time", "--fork", f"--monotonic=-{uptime}", f"--boottime=-{uptime}"]
    words += ["--", "env", "SYSTEMD_NSPAWN_UNIFIED_HIERARCHY=1"]
    # /tmp as the suite has it, not a tenth of memory
    words += ["SYSTEMD_NSPAWN_API_VFS_WRITABLE=network", "SYSTEMD_NSPAWN_TMPFS_TMP=0"]
    words += ["systemd-nspawn", "--quiet", "--boot", "--directory", f"{spec.folder}/root"]
    words += [f"--machine={spec.machine_name}", f"--hostname={spec.hostname}"]
    words += ["--register=no", "--keep-unit", f"--network-namespace-path={spec.namespace}"]
    words += ["--resolv-conf=off", "--timezone=off", "--console=pipe", "--link-journal=no"]
    # bpf: systemd in the box enforces DeviceAllow= with it
    words += ["--capability=CAP_NET_ADMIN", "--system-call-filter=bpf"]
    words += ["--kill-signal=SIGRTMIN+3"]
    for outside, inside in spec.binds.items():
        words += [f"--bind={escaped(outside)}:{escaped(inside)}"]
    return words


def escaped(path: str) -> str:
    return path.replace("\\", "\\\\").replace(":", "\\:")


if __name__ == "__main__":
    main(sys.argv[1])
