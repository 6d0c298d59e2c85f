"""What every later stage stands on: apt that waits its turn, packages, and aibox on the box."""

from __future__ import annotations

from pyinfra import host, state
from pyinfra.api import QuoteString, StringCommand, deploy, operation

from aibox.decide import apt
from aibox.decide.preflight import unfinished
from tasks import aibox_wheel, brought
from tasks.box import AIBOX_FOLDER, STATE_FOLDER, Box
from tasks.drift_report import because
from tasks.facts import Aibox, Probe
from tasks.operations import Commands, laid_down, packages, refused, roots_own

# venvs; what fetches weights; what Triton and FlashInfer compile with in the server.
PACKAGES = ["python3-venv", "python3-dev", "gcc", "g++", "ca-certificates"]
APT_WAITS = b"""# unattended-upgrades may hold the lock: wait for it, 5 minutes.
DPkg::Lock::Timeout "300";
"""


@deploy("Base")
def laid_out(box: Box) -> None:
    brought.begun(name="What was there before is written down", box=box)
    laid_down(
        name="apt waits for its lock",
        path=apt.CONF,
        content=APT_WAITS,
    )
    dpkg_finished(name="dpkg has finished", box=box)
    packages(
        name="Packages of the distribution",
        names=[*PACKAGES, *release_packages(box)],
    )
    aibox_installed(name="aibox in its own venv")
    venv = f"{AIBOX_FOLDER}/{aibox_wheel.identity()}"
    roots_own(name="Owners of aibox's folders", folders=[AIBOX_FOLDER, venv, STATE_FOLDER])


def release_packages(box: Box) -> list[str]:
    """What building and running this release needs beside the usual."""
    patching = ["patch"] if box.settings.patches else []
    return [*patching, *box.settings.release_extra_packages]


@operation()
def dpkg_finished(box: Box) -> Commands:
    """What a power cut or a killed run left half-way is finished; apt does nothing before that.

    A driver that cannot be finished is left to its own stage, which may replace it.
    """
    broken = host.get_fact(Probe, "dpkg")["broken"]
    if not broken:
        host.noop("every package is installed or gone")
        return
    for package in broken:
        because(host, f"{package}, left so by a run that was cut off")
    yield StringCommand("sh -c", QuoteString(FINISH))
    found = host.get_fact(Probe, "dpkg")["broken"]
    left = [one for one in found if one.partition(":")[0] not in box.driver.packages]
    if state.is_executing and left:
        yield refused(unfinished(tuple(left)))


# Each is tried, whatever the one before said: what is left after it is what counts. A downgrade is
# one that our pin asks for; what was cut off while it was unpacked has to be unpacked again.
FINISH = """export DEBIAN_FRONTEND=noninteractive
apt="apt-get -qy -o DPkg::Lock::Timeout=300 --no-install-recommends --allow-downgrades"
dpkg --force-confdef --force-confold --configure -a
$apt -f install
half=$(dpkg-query -W -f '${db:Status-Eflag} ${binary:Package}\n' | sed -n 's/^reinstreq //p')
test -z "$half" || $apt --allow-change-held-packages --reinstall install $half
true"""


@operation()
def aibox_installed() -> Commands:
    """aibox, hash-locked, in /opt/aibox/<version>-<lock8>, reached through the link `current`.

    A venv without the file `complete` is half of a killed run and is made anew.
    """
    identity = aibox_wheel.identity()
    found = host.get_fact(Aibox, folder=AIBOX_FOLDER)
    if found == identity:
        host.noop(f"aibox {identity} is installed")
        return
    because(host, f"aibox {found or '(none)'} is installed, not {identity}")
    yield StringCommand(INSTALL, "install", AIBOX_FOLDER, identity, _stdin=aibox_wheel.parcel())


# $1 folder, $2 identity; the wheel and its lock come as a tar on standard input.
INSTALL = """set -e
install() {
  umask 022
  new=$1/$2
  mkdir -p "$1"
  # A run whose control was killed goes on over here: the next one waits for what it makes.
  exec 9>/run/aibox-install.lock
  flock 9
  if ! test -e "$new/complete"; then
    rm -rf "$new"
    /usr/bin/python3 -m venv "$new"
    mkdir "$new/parcel"
    base64 -d | tar -x -C "$new/parcel"
    pip="$new/bin/python -m pip --disable-pip-version-check --no-cache-dir -q install"
    $pip --require-hashes --only-binary :all: -r "$new/parcel/aibox.txt"
    $pip --no-deps --no-index "$new"/parcel/*.whl
    # What came from the distribution's own Python goes: the rest is the same on every box.
    "$new/bin/python" -m pip --disable-pip-version-check -qq uninstall -y pip setuptools
    rm -f "$new"/bin/[Aa]ctivate*
    sync -f "$new"
    touch "$new/complete"
  fi
  ln -sfnT "$2" "$1/.current.new"
  mv -fT "$1/.current.new" "$1/current"
  cd "$1"
  ls -t | grep -vxF "$2" | tail -n +3 | while read -r old; do
    test "$old" = current || rm -rf "./$old"
  done
}
"""
