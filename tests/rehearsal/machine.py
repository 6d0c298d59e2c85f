"""What the machine must have before it can hold rehearsal boxes, and how commands are run on it."""

from __future__ import annotations

import fcntl
import hashlib
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

PACKAGES = (
    "systemd-container",
    "mmdebstrap",
    "nftables",
    "iproute2",
    "openssh-client",
    "apt-utils",
    "gcc",
    "libc6-dev",
    "gpg",
    "gpg-agent",
)
CHECKOUT = Path(__file__).resolve().parents[2]
CHECKOUT_ID = hashlib.sha256(str(CHECKOUT).encode()).hexdigest()[:6]  # several share one cache
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class RehearsalError(Exception):
    """Something about the boxes cannot be done; the text is one paragraph for a person."""


def command(*arguments: str | Path, text: str | None = None, check: bool = True) -> str:
    """Run one command of the machine and return what it wrote to stdout.

    `text` goes in by stdin. Raises RehearsalError with the command's own words when it fails,
    unless `check` is off.
    """
    words = [str(argument) for argument in arguments]
    done = subprocess.run(
        words, input=text, capture_output=True, text=True, check=False, env=environment()
    )
    if check and done.returncode:
        said = (done.stderr or done.stdout).strip() or f"exit code {done.returncode}"
        raise RehearsalError(f"`{' '.join(words)}` failed: {said}")
    return done.stdout


def environment() -> dict[str, str]:
    """The environment for the machine's commands: nft and ip lie in sbin, apt must not ask."""
    return {
        **os.environ,
        "PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin",
        "DEBIAN_FRONTEND": "noninteractive",
        "LC_ALL": "C.UTF-8",
    }


@contextmanager
def undisturbed() -> Iterator[None]:
    """Hold back Ctrl-C and SIGTERM for the length of a short step that must not end half-way."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDING_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def locked(file: Path) -> Iterator[None]:
    """One process at a time; the others wait."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def cache_folder() -> Path:
    """Where images, layers, keys and disks lie: `rehearsal-boxes` in the user's cache."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rehearsal-boxes"


def os_release() -> dict[str, str]:
    """The fields of the machine's /etc/os-release, empty when there is none."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.split("=", 1) for line in lines if "=" in line)
    return {key: value.strip("\"'") for key, value in pairs}


@cache
def ready() -> None:
    """Check the machine once per process and install what is missing; raises RehearsalError."""
    if os.geteuid() != 0:
        raise RehearsalError(
            "Rehearsal boxes are containers with a network of their own, and only root may make"
            " them. Run the same command with sudo."
        )
    release = os_release()
    family = {release.get("ID", ""), *release.get("ID_LIKE", "").split()}
    if not family & {"debian", "ubuntu"}:
        name = release.get("PRETTY_NAME", "an unknown system")
        raise RehearsalError(
            f"This machine runs {name}; rehearsal boxes need Debian or Ubuntu, because their"
            " images are made with mmdebstrap and the machine's own apt sources. Run them in a"
            " virtual machine with Debian 12 or newer."
        )
    if missing := missing_packages():
        install(missing)


def missing_packages() -> list[str]:
    wanted = list(PACKAGES)
    if os_release().get("ID") != "debian":
        wanted.append("debian-archive-keyring")
    # dpkg-query fails when it knows none of a name; what it does know is still printed
    known = command(
        "dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\n", *wanted, check=False
    )
    installed = {line.split()[1] for line in known.splitlines() if line.startswith("installed ")}
    return [name for name in wanted if name not in installed]


def install(packages: list[str]) -> None:
    print(f"installing on this machine: {' '.join(packages)}", flush=True)
    apt = ["apt-get", "-qq", "-y", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=300"]
    with locked(cache_folder() / "install.lock"):  # two updates at once are an error of apt's
        try:
            command(*apt, "install", *packages)
        except RehearsalError:
            # the package lists are missing or older than what the mirror still holds
            command(*apt, "update")
            command(*apt, "install", *packages)
