"""Run inside the unit's sandbox in place of vLLM: what may it do? Prints one JSON object.

Each answer is "yes" or the kernel's reason against it.
"""

import ctypes
import errno
import json
import mmap
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

LIBC = ctypes.CDLL(None, use_errno=True)
MPOL_PREFERRED = 1


def main() -> None:
    weights, release = sys.argv[1:]
    found = {name: answer(ask) for name, ask in questions(Path(weights), release).items()}
    found["pids of others"] = str(len(others()))
    found["capabilities"] = status_line("CapEff") + status_line("CapBnd")
    found["no new privileges"] = status_line("NoNewPrivs")
    found["core files"] = str(resource.getrlimit(resource.RLIMIT_CORE)[1])
    print("PROBED " + json.dumps(found), flush=True)


def questions(weights: Path, release: str) -> dict[str, Callable[[], object]]:
    cache = Path(os.environ["VLLM_CACHE_ROOT"])
    return {
        "list /home": lambda: listed("/home/admin"),
        "list /root": lambda: listed("/root"),
        "see another's /tmp": Path("/tmp/anothers").stat,
        "write /usr": lambda: written(Path("/usr/local/bin/x")),
        "write /etc": lambda: written(Path("/etc/x")),
        "write the release": lambda: written(Path(release, "x")),
        "write the weights": lambda: written(weights / "x"),
        "write /var/lib/aibox": lambda: written(Path("/var/lib/aibox/x")),
        "write /proc/sys": lambda: Path("/proc/sys/vm/swappiness").write_text("60"),
        "make a suid file": suid,
        "mount": lambda: called("mount", b"tmpfs", b"/tmp", b"tmpfs", 0, None),
        "make a namespace": lambda: called("unshare", 0x10000000),
        "become root": lambda: os.setuid(0),
        "set the clock": lambda: time.clock_settime(time.CLOCK_REALTIME, time.time()),
        "name the host": lambda: socket.sethostname("other"),
        "trace a process": lambda: called("ptrace", 0, 0, None, None),
        "send packets": lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close(),
        "run in real time": lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)),
        "kill pid 1": lambda: os.kill(1, 0),
        "open /dev/net/tun": lambda: opened("/dev/net/tun"),
        "open /dev/nvidiactl": lambda: opened("/dev/nvidiactl"),
        "open /dev/nvidia0": lambda: opened("/dev/nvidia0"),
        "open /dev/nvidia-uvm": lambda: opened("/dev/nvidia-uvm"),
        "read the weights": (weights / "config.json").read_bytes,
        "read what starts were measured": lambda: listed("/var/lib/aibox"),
        "write every cache": caches,
        "compile and load": lambda: compiled(cache),
        "write and run memory": lambda: mmap.mmap(
            -1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
        ).close(),
        "share memory": lambda: written(Path("/dev/shm/psm_probe")),
        "make a file in memory": lambda: os.close(os.memfd_create("probe")),
        "bind to a node": lambda: called_by_number(238, MPOL_PREFERRED, None, 0),
        "bind to a core": lambda: os.sched_setaffinity(0, os.sched_getaffinity(0)),
        "be nice": lambda: os.nice(1),
        "open files": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 4096)),
        "watch a child": watched,
        "listen": lambda: socket.create_server(("127.0.0.1", 0)).close(),
        "ask the kernel for routes": lambda: socket.socket(
            socket.AF_NETLINK, socket.SOCK_RAW
        ).close(),
        "join two processes": socket.socketpair,
        "use io_uring or be told": io_uring,
    }


def answer(ask: Callable[[], object]) -> str:
    try:
        ask()
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    except OSError as error:
        return errno.errorcode.get(error.errno or 0, str(error))
    return "yes"


def called(name: str, *words: object) -> None:
    if getattr(LIBC, name)(*words) < 0:
        raise OSError(ctypes.get_errno(), name)


def called_by_number(number: int, *words: object) -> None:
    called("syscall", number, *words)


def written(path: Path) -> None:
    path.write_text("x")
    path.unlink()


def listed(folder: str) -> list[Path]:
    return sorted(Path(folder).iterdir())


def opened(path: str) -> None:
    os.close(os.open(path, os.O_RDWR))


def suid() -> None:
    path = Path(os.environ["HOME"], "suid")
    path.write_text("x")
    try:
        path.chmod(0o4755)
    finally:
        path.unlink()


def caches() -> None:
    """Every place that a variable of the unit names, and where a program without one writes."""
    names = [name for name in os.environ if "CACHE" in name or name.endswith(("_BASE", "_DIR"))]
    assert len(names) >= 8, names
    for folder in [*(os.environ[name] for name in names), str(Path.home() / ".cache"), "/tmp"]:
        if folder.startswith("/"):
            Path(folder).mkdir(parents=True, exist_ok=True)
            written(Path(folder, "probe"))


def compiled(cache: Path) -> None:
    """As Triton does: C to a shared object in the cache, loaded into this process."""
    cache.mkdir(parents=True, exist_ok=True)
    source, built = cache / "probe.c", cache / "probe.so"
    source.write_text("int answer(void) { return 42; }\n")
    command = ["gcc", "-O1", "-shared", "-fPIC", "-o", str(built), str(source)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    assert ctypes.CDLL(str(built)).answer() == 42


def watched() -> None:
    child = subprocess.Popen(["sleep", "60"])
    Path(f"/proc/{child.pid}/stat").read_text()
    listed(f"/proc/{child.pid}/fd")
    os.close(os.pidfd_open(child.pid))
    child.send_signal(signal.SIGTERM)
    child.wait()


def io_uring() -> None:
    """libuv tries it and goes on without; a killed process would not."""
    try:
        called_by_number(425, 1, ctypes.create_string_buffer(120))
    except OSError:
        return


def others() -> list[str]:
    """Processes of another user that can be seen."""
    found = [path for path in listed("/proc") if path.name.isdigit()]
    return [path.name for path in found if path.stat().st_uid != os.getuid()]


def status_line(name: str) -> str:
    rows = Path("/proc/self/status").read_text().splitlines()
    return next(row.split()[1] for row in rows if row.startswith(f"{name}:"))


if __name__ == "__main__":
    main()
