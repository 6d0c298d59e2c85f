"""The pristine root file system of a box, one per suite: a bare Debian server with python3 and ssh.

Images lie in the user's cache, named by suite and by a hash of everything that goes into them, and
are built once however many processes ask. The client key of the boxes lies beside them.
"""

from __future__ import annotations

import hashlib
import inspect
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from tests.rehearsal import cgroup, registry
from tests.rehearsal.emulation import gpu
from tests.rehearsal.machine import (
    RehearsalError,
    cache_folder,
    command,
    environment,
    locked,
    os_release,
    undisturbed,
)

SUITES: dict[str, tuple[str, ...]] = {  # with the packages that only this suite's servers have
    "bookworm": (),
    "trixie": ("linux-sysctl-defaults",),
}
# a minimal server: what the deploy needs beyond this it must install itself
PACKAGES = (
    "systemd",
    "systemd-sysv",
    "dbus",
    "libpam-systemd",
    "udev",
    "kmod",
    "openssh-server",
    "openssh-sftp-server",
    "python3",
    "sudo",
    "ca-certificates",
    "cron",
    "iproute2",
    "iputils-ping",
    "less",
    "netbase",
    "procps",
)
# no apt of its own during a test, nothing that the clock starts and that writes (a test may see
# midnight), and nothing that waits for a network set up from outside
MASKED_UNITS = (
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "apt-daily.service",
    "apt-daily-upgrade.service",
    "dpkg-db-backup.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
    "logrotate.timer",
    "man-db.timer",
    "systemd-tmpfiles-clean.timer",
    "e2scrub_reap.service",
    "systemd-networkd-wait-online.service",
    "systemd-timesyncd.service",
)
COPIED_APT_SETTINGS = re.compile(
    r"Acquire::(Check-Valid-Until|Check-Date|Languages|Retries|ForceIPv4|https?::Proxy)\b"
)
MACHINE_CERTIFICATES = Path("/usr/local/share/ca-certificates")
UNUSED_FOR_S = 2 * 24 * 3600  # two checkouts with different recipes must not undo each other


def ready(suite: str) -> str:
    """Have the image of a suite, built when there is none; returns its folder name in images/."""
    if suite not in SUITES:
        raise RehearsalError(f"There is no image of {suite!r}; there are: {', '.join(SUITES)}.")
    make_key()
    name = f"{suite}-{recipe_hash(suite)}"
    folder = images() / name
    if not (folder / "root").is_dir():
        with locked(images() / f"{suite}.lock"):
            if not (folder / "root").is_dir():
                build(suite, folder)
    os.utime(folder)
    return name


def images() -> Path:
    return cache_folder() / "images"


def private_key() -> Path:
    return cache_folder() / "keys" / "id_ed25519"


def public_key() -> str:
    return private_key().with_suffix(".pub").read_text()


def make_key() -> None:
    """Have the one ssh key of this cache, accepted by every box."""
    if private_key().exists():
        return
    with locked(cache_folder() / "keys" / "lock"):
        if not private_key().exists():
            aside = private_key().with_name("new")
            aside.unlink(missing_ok=True)
            command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "rehearsal", "-f", aside)
            aside.with_suffix(".pub").replace(private_key().with_suffix(".pub"))
            aside.replace(private_key())


def host_keys(image: str) -> list[str]:
    """The public host keys of an image, each "type key"."""
    files = sorted((images() / image / "root/etc/ssh").glob("ssh_host_*_key.pub"))
    return [" ".join(file.read_text().split()[:2]) for file in files]


def recipe_hash(suite: str) -> str:
    parts = [suite, public_key(), apt_settings(), *apt_sources(suite)]
    parts += [*PACKAGES, *SUITES[suite], *MASKED_UNITS, gpu.fingerprint()]
    parts += [inspect.getsource(step) for step in (bootstrap, settle, lay_key, lay_certificates)]
    parts += [certificate.read_text() for certificate in machine_certificates()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:12]


def build(suite: str, folder: Path) -> None:
    """Build the image aside and move it to `folder` when it is whole; about half a minute."""
    print(f"building the {suite} image, about half a minute", flush=True)
    cgroup.end(build_group(suite))  # a build whose starter was killed
    for left in images().glob(f"{suite}-*.building"):
        remove_image(left)
    aside = folder.with_suffix(".building")
    aside.mkdir(parents=True)
    umask = os.umask(0o022)  # a strict one of the caller would lock the box's users out
    try:
        bootstrap(suite, aside)
        settle(aside / "root")
        install_emulation(aside / "root")
        command("sync", "-f", aside)
        aside.rename(folder)
    except BaseException:
        with undisturbed():
            cgroup.end(build_group(suite))
            remove_image(aside)
        raise
    finally:
        os.umask(umask)
    cgroup.end(build_group(suite))
    remove_unused(suite, keep=folder.name)


def bootstrap(suite: str, aside: Path) -> None:
    """Run mmdebstrap with the machine's own sources, moved to the suite."""
    words = ["mmdebstrap", "--variant=minbase", "--mode=root", "--format=directory"]
    words += [f"--include={','.join((*PACKAGES, *SUITES[suite]))}", "--skip=cleanup/apt/lists"]
    words += [f"--aptopt={line.rstrip(';')}" for line in apt_settings().splitlines()]
    words += [suite, str(aside / "root")]
    for number, text in enumerate(apt_sources(suite)):
        source = aside / f"{number}.{'sources' if text.startswith('Types:') else 'list'}"
        source.write_text(text)
        words.append(str(source))
    log = aside / "build.log"
    with (
        log.open("w") as output,
        # a session of its own: Ctrl-C reaches it through us, once, and it can clean up
        subprocess.Popen(
            words,
            stdout=output,
            stderr=output,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=environment(),
        ) as process,
    ):
        try:
            cgroup.join(build_group(suite), process.pid)
            code = process.wait()
        except BaseException:
            with undisturbed():
                end_bootstrap(process)
            raise
    if code:
        tail = "\n".join(log.read_text().splitlines()[-15:])
        raise RehearsalError(f"mmdebstrap could not build the {suite} image:\n{tail}")


def build_group(suite: str) -> str:
    """The control group of a build of this cache: it can be found when its starter was killed."""
    return f"build-{suite}-{hashlib.sha256(str(images()).encode()).hexdigest()[:6]}"


def end_bootstrap(process: subprocess.Popen[bytes]) -> None:
    """Let mmdebstrap undo what it has mounted, and kill it when it does not end."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGINT)
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
        return
    process.kill()


def settle(root: Path) -> None:
    """Users, keys, certificates, apt and journald as a server has them."""
    for user, groups in (("admin", "sudo"), ("guest", "users")):
        command("chroot", root, "useradd", "-m", "-s", "/bin/bash", "-G", groups, user)
        lay_key(root, f"home/{user}")
        command("chroot", root, "chown", "-R", f"{user}:{user}", f"/home/{user}/.ssh")
    lay_key(root, "root")
    sudoers = root / "etc/sudoers.d/admin"
    sudoers.write_text("admin ALL=(ALL) NOPASSWD: ALL\n")
    sudoers.chmod(0o440)
    ssh_settings = "UseDNS no\nPermitRootLogin prohibit-password\n"
    (root / "etc/ssh/sshd_config.d/rehearsal.conf").write_text(ssh_settings)
    (root / "etc/apt/apt.conf.d/90machine").write_text(apt_settings())
    lay_certificates(root)
    for unit in MASKED_UNITS:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    (root / "var/log/journal").mkdir(exist_ok=True)  # keeps the journal over a reboot
    (root / "etc/machine-id").write_text("")
    (root / "var/lib/dbus").mkdir(exist_ok=True)
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    (root / "var/lib/dbus/machine-id").symlink_to("/etc/machine-id")


def lay_key(root: Path, home: str) -> None:
    folder = root / home / ".ssh"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    (folder / "authorized_keys").write_text(public_key())
    (folder / "authorized_keys").chmod(0o600)


def lay_certificates(root: Path) -> None:
    """The machine's own authorities, for where https is signed anew; nothing on other machines."""
    certificates = machine_certificates()
    if not certificates:
        return
    for certificate in certificates:
        target = root / str(MACHINE_CERTIFICATES).lstrip("/")
        target.mkdir(parents=True, exist_ok=True)
        shutil.copy(certificate, target)
    command("chroot", root, "update-ca-certificates")
    # both look at a list of their own otherwise
    (root / "etc/pip.conf").write_text("[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n")
    (root / "etc/uv").mkdir()
    (root / "etc/uv/uv.toml").write_text("system-certs = true\n")


def install_emulation(root: Path) -> None:
    gpu.install_into(root, command)


def machine_certificates() -> list[Path]:
    return sorted(MACHINE_CERTIFICATES.glob("*.crt"))


def apt_settings() -> str:
    """The machine's apt settings that a box needs to reach the same mirrors, as apt.conf lines."""
    lines = command("apt-config", "dump").splitlines()
    return "".join(f"{line}\n" for line in lines if COPIED_APT_SETTINGS.match(line))


def apt_sources(suite: str) -> list[str]:
    """The machine's sources of the distribution itself, moved to `suite`: one text per file.

    Empty on a machine of another distribution, where mmdebstrap's own default serves.
    """
    own = os_release().get("VERSION_CODENAME", "")
    if os_release().get("ID") != "debian" or not own:
        return []
    lines = [
        line
        for file in (Path("/etc/apt/sources.list"), *Path("/etc/apt/sources.list.d").glob("*.list"))
        if file.exists()
        for line in file.read_text().splitlines()
        if re.match(rf"deb\s.*\s{own}(-security|-updates)?/?(updates)?\s+main\b", line)
    ]
    stanzas = [
        stanza.strip()
        for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources"))
        for stanza in re.split(r"\n\s*\n", file.read_text())
        if re.search(rf"^Suites:.*\b{own}(-security|-updates)?\s*$", stanza, re.M)
        and re.search(r"^Components:.*\bmain\b", stanza, re.M)
    ]
    texts = ["\n".join(lines) + "\n"] if lines else []
    if stanzas:
        fields = (line for s in stanzas for line in [*s.splitlines(), ""] if line[:1] != "#")
        texts.append("\n".join(fields).strip() + "\n")
    return [re.sub(rf"\b{own}\b", suite, text) for text in texts]


def remove_unused(suite: str, keep: str) -> None:
    """Remove images of older recipes, with their layers, that no box and nobody lately used."""
    with registry.opened() as record:
        used = {entry.image for entry in record.boxes.values()} | {keep}
        for old in images().glob(f"{suite}-*"):
            if old.name not in used and time.time() - old.stat().st_mtime > UNUSED_FOR_S:
                remove_image(old)
                command("rm", "-rf", "--one-file-system", cache_folder() / "layers" / old.name)


def remove_image(folder: Path) -> None:
    """Remove an image folder; what a killed build has mounted in it is unmounted first."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted(mounts, reverse=True):
        if mount.startswith(f"{folder}/"):
            command("umount", "-l", mount)
    command("rm", "-rf", "--one-file-system", folder)
