"""The emulated NVIDIA repository, judged by apt itself in a root folder of its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aibox.decide.driver_sources import preferences_text
from tests.rehearsal import image
from tests.rehearsal.emulation import nvidia_repository
from tests.rehearsal.emulation.debian_package import Package, deb, stanza
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.emulation.nvidia_packages import (
    DEBIAN,
    DISTRIBUTIONS,
    DRIVERS,
    UBUNTU,
    catalogue,
)
from tests.rehearsal.emulation.nvidia_repository import (
    KEY_FILE,
    OTHER_KEY,
    WITHOUT_HEADERS,
    WRONG_SIGNATURE,
    Repositories,
)
from tests.rehearsal.machine import CHECKOUT, cache_folder, environment

# Of the rehearsal itself; every deploy of the short tests stands on it too.
pytestmark = pytest.mark.long

KERNEL = os.uname().release
HEADLESS = ["nvidia-driver-cuda", "nvidia-kernel-open-dkms"]
SUITES = {"debian12": "bookworm", "debian13": "trixie"}
# What these packages want of a distribution that is not asked here.
THERE = ("libc6", "init-system-helpers", "kmod", "make")


@dataclass
class Apt:
    """apt with a root folder of its own, where nothing or only what a test says is installed."""

    root: Path

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env={**environment(), "APT_CONFIG": str(self.root / "apt.conf")},
            capture_output=True,
            text=True,
            check=False,
        )

    def lay(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def add_source(self, name: str, url: str, key: Path) -> None:
        lines = f"Types: deb\nURIs: {url}/\nSuites: /\nSigned-By: {key}\n"
        self.lay(f"etc/apt/sources.list.d/{name}.sources", lines)

    def prefer(self, version: str) -> None:
        """The preferences that a deploy lays down for a driver."""
        self.lay("etc/apt/preferences.d/nvidia", preferences_text(version))

    def has(self, *packages: Package) -> None:
        """Say that packages are installed, besides what the distribution has."""
        basis = [Package(name, "99", name) for name in THERE]
        for package in (*basis, *packages):
            status = f"Status: install ok installed\n{package.control}\n"
            with (self.root / "status").open("a") as file:
                file.write(status)

    def candidate(self, name: str) -> str:
        shown = self("apt-cache", "policy", name).stdout
        found = re.search(r"Candidate: (\S+)", shown)
        return found[1] if found else ""

    def versions(self, name: str) -> list[str]:
        lines = self("apt-cache", "madison", name).stdout.splitlines()
        return [line.split("|")[1].strip() for line in lines]

    def simulated(self, *words: str) -> dict[str, str]:
        """{package: version} of an installation; "" for one that would be removed."""
        plan = ["apt-get", "-qq", "-s", "-y", "--no-install-recommends", "--allow-downgrades"]
        done = self(*plan, "install", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        installed = re.findall(r"^Inst (\S+) (?:\[\S+\] )?\((\S+)", done.stdout, re.MULTILINE)
        removed = re.findall(r"^Remv (\S+)", done.stdout, re.MULTILINE)
        return {**dict.fromkeys(removed, ""), **dict(installed)}


@pytest.fixture(scope="module")
def repositories() -> Repositories:
    return nvidia_repository.served(cache_folder() / "files")


@pytest.fixture(scope="module")
def server(repositories: Repositories) -> Iterator[Hub]:
    with Hub(files=repositories.files) as hub:
        yield hub


@pytest.fixture
def empty(tmp_path: Path) -> Apt:
    """An apt without a source."""
    return new_apt(tmp_path)


def new_apt(root: Path) -> Apt:
    apt = Apt(root)
    for folder in ("var/lib/apt/lists/partial", "var/cache/apt/archives/partial"):
        (root / folder).mkdir(parents=True)
    for folder in ("apt.conf.d", "preferences.d", "sources.list.d", "trusted.gpg.d"):
        (root / "etc/apt" / folder).mkdir(parents=True)
    own = f'Dir "{root}/";\nDir::State::status "{root}/status";\nAPT::Architecture "amd64";\n'
    own += 'APT::Sandbox::User "root";\nDir::Log "/dev/null";\nDebug::NoLocking "true";\n'
    apt.lay("apt.conf", own + image.apt_settings())
    apt.lay("status", "")
    return apt


@pytest.fixture
def apt_of(empty: Apt, repositories: Repositories, server: Hub) -> Callable[..., Apt]:
    """An apt that has read the repository of a distribution, and of a variant."""

    def read(distribution: str, variant: str = "whole") -> Apt:
        key = repositories.flat(distribution, variant) / KEY_FILE
        url = f"{repositories.url(server.url, variant)}/{distribution}/x86_64"
        empty.add_source("nvidia", url, key)
        done = empty("apt-get", "-qq", "update")
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return empty

    return read


@pytest.fixture(scope="module", params=DEBIAN)
def whole_debian(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    repositories: Repositories,
    server: Hub,
) -> Apt:
    """An apt with Debian's own sources, contrib among them, and the repository."""
    distribution: str = request.param
    sources = image.apt_sources(SUITES[distribution])
    if not sources:
        pytest.skip("this machine is no Debian, so it has no sources for Debian's packages")
    apt = new_apt(tmp_path_factory.mktemp(distribution))
    for number, text in enumerate(sources):
        kind = "sources" if text.startswith("Types:") else "list"
        apt.lay(
            f"etc/apt/sources.list.d/{number}.{kind}", re.sub(r"\bmain\b", "main contrib", text)
        )
    url = f"{repositories.url(server.url)}/{distribution}/x86_64"
    apt.add_source("nvidia", url, repositories.flat(distribution) / KEY_FILE)
    done = apt("apt-get", "-qq", "update")
    assert done.returncode == 0, done.stderr
    return apt


def package(distribution: str, name: str, driver: str) -> Package:
    packages = catalogue(distribution, KERNEL, b"")
    return next(p for p in packages if p.name == name and p.version.startswith(f"{driver}-"))


# -- what apt reads -------------------------------------------------------------------------------


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_exact_version_is_offered(apt_of: Callable[..., Apt], distribution: str) -> None:
    apt = apt_of(distribution)
    assert sorted(v.split("-")[0] for v in apt.versions("nvidia-open")) == sorted(DRIVERS)
    for name in ("cuda-toolkit-13-0", f"linux-headers-{KERNEL}", "cuda-keyring"):
        assert apt.candidate(name) not in ("", "(none)")
    assert apt.candidate("nvidia-driver-pinning-580") == "580-1"


def test_the_key_beside_the_packages_has_the_fingerprint_and_no_sha1(
    repositories: Repositories, tmp_path: Path
) -> None:
    def gpg(*words: str) -> str:
        command = ["gpg", "--batch", "--quiet", "--homedir", str(tmp_path), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    tmp_path.chmod(0o700)
    key = str(repositories.flat("debian13") / KEY_FILE)
    only_look = ("--with-colons", "--import-options", "show-only", "--import")
    assert f"fpr:::::::::{repositories.fingerprint}:" in gpg(*only_look, key)
    assert set(re.findall(r"digest algo (\d+)", gpg("--list-packets", key))) == {"10"}  # SHA-512


def test_the_other_kernels_headers_can_be_gone(apt_of: Callable[..., Apt]) -> None:
    apt = apt_of("debian12", WITHOUT_HEADERS)
    assert apt.candidate("nvidia-open").startswith("595")
    assert apt.candidate(f"linux-headers-{KERNEL}") == ""


# -- what apt refuses -----------------------------------------------------------------------------


@pytest.mark.parametrize("variant", [WRONG_SIGNATURE, OTHER_KEY])
def test_a_wrong_signature_and_another_key_are_refused(
    empty: Apt, repositories: Repositories, server: Hub, variant: str
) -> None:
    key = repositories.flat("debian12", variant) / KEY_FILE
    url = f"{repositories.url(server.url, variant)}/debian12/x86_64"
    empty.add_source("nvidia", url, key)
    done = empty("apt-get", "update")
    assert done.returncode != 0
    assert "is not signed" in done.stderr
    # gpgv's words, or those of sqv from Debian 13 on
    words = {WRONG_SIGNATURE: r"BADSIG|manipulated", OTHER_KEY: r"NO_PUBKEY|Missing key"}
    assert re.search(words[variant], done.stdout + done.stderr)


def test_a_wrong_address_is_404(empty: Apt, repositories: Repositories, server: Hub) -> None:
    url = f"{repositories.url(server.url)}/debian99/x86_64"
    empty.add_source("nvidia", url, repositories.flat("debian12") / KEY_FILE)
    done = empty("apt-get", "update")
    assert done.returncode != 0
    assert "404" in done.stdout


def test_the_keyrings_own_list_beside_another_source_breaks_apt(
    apt_of: Callable[..., Apt], repositories: Repositories, server: Hub
) -> None:
    apt = apt_of("debian12")
    file = next(repositories.flat("debian12").glob("cuda-keyring_*.deb"))
    subprocess.run(["dpkg-deb", "-x", file, apt.root], check=True)
    listed = apt.root / "etc/apt/sources.list.d/cuda-debian12-x86_64.list"
    real = "https://developer.download.nvidia.com/compute/cuda/repos"
    assert real in listed.read_text()
    listed.write_text(listed.read_text().replace(real, repositories.url(server.url)))
    done = apt("apt-get", "update")
    assert done.returncode != 0
    assert "Conflicting values set for option Signed-By" in done.stderr


# -- what is chosen -------------------------------------------------------------------------------


@pytest.mark.parametrize("driver", DRIVERS)
def test_a_pin_by_source_chooses_one_version_of_all(
    apt_of: Callable[..., Apt], driver: str
) -> None:
    apt = apt_of("debian12")
    apt.prefer(driver)
    for name in ("libcuda1", "nvidia-persistenced", "nvidia-modprobe", "cuda-drivers", *HEADLESS):
        assert apt.candidate(name) == f"{driver}-1"


def test_a_pin_that_matches_nothing_silently_leaves_the_newest(
    apt_of: Callable[..., Apt],
) -> None:
    apt = apt_of("debian12")
    apt.prefer("580.1.1")
    assert apt.candidate("nvidia-driver-cuda") == f"{DRIVERS[-1]}-1"


@pytest.mark.parametrize(
    ("of", "chosen"), [("580", "580.178.04-1"), ("590", "590.48.01-1"), ("580.65.06",) * 2]
)
def test_a_pinning_package_chooses_its_branch_or_version(
    apt_of: Callable[..., Apt], repositories: Repositories, of: str, chosen: str
) -> None:
    apt = apt_of("debian12")
    file = next(repositories.flat("debian12").glob(f"nvidia-driver-pinning-{of}_*.deb"))
    subprocess.run(["dpkg-deb", "-x", file, apt.root], check=True)
    assert apt.candidate("nvidia-open").startswith(chosen)


def test_unversioned_names_follow_the_newest(apt_of: Callable[..., Apt]) -> None:
    apt = apt_of("debian12")
    apt.has(Package("nvidia-installer-cleanup", "1", "nvidia-support"))
    cuda = apt.simulated("cuda")
    assert cuda["cuda-toolkit-13-1"]
    assert cuda["nvidia-kernel-dkms"] == f"{DRIVERS[-1]}-1"
    pieces = apt.simulated("nvidia-driver-cuda=580.65.06-1", "libcuda1=580.65.06-1",
                           "libnvidia-ml1=580.65.06-1")  # fmt: skip
    assert pieces["nvidia-persistenced"] == f"{DRIVERS[-1]}-1"


# -- Debian, with Debian's own packages -----------------------------------------------------------


@pytest.mark.parametrize("driver", ["580.178.04", "590.48.01"])
def test_debians_headless_set_comes_at_one_version_with_debians_dkms(
    whole_debian: Apt, driver: str
) -> None:
    whole_debian.prefer(driver)
    plan = whole_debian.simulated(*HEADLESS, f"linux-headers-{KERNEL}", "cuda-toolkit-13-0")
    ours = ("libcuda1", "libnvidia-ml1", "nvidia-persistenced", "nvidia-modprobe", *HEADLESS)
    assert {name: plan[name] for name in ours} == dict.fromkeys(ours, f"{driver}-1")
    assert not plan["dkms"].startswith("1:3.3")
    assert plan["cuda-nvcc-13-0"] == "13.0.88-1"
    assert "nvidia-installer-cleanup" in plan  # of contrib


def test_without_preferences_nvidias_own_dkms_would_be_taken(whole_debian: Apt) -> None:
    (whole_debian.root / "etc/apt/preferences.d/nvidia").unlink(missing_ok=True)
    assert whole_debian.simulated(*HEADLESS)["dkms"] == "1:3.3.0-1"


# -- changes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("old", "new"), [("595.71.05", "580.178.04"), ("580.178.04", "595.71.05")])
def test_debian_goes_down_and_up(apt_of: Callable[..., Apt], old: str, new: str) -> None:
    apt = apt_of("debian12")
    names = ["libcuda1", "libnvidia-ml1", "nvidia-persistenced", "nvidia-modprobe", *HEADLESS]
    apt.has(*(package("debian12", name, old) for name in names))
    apt.has(
        Package("nvidia-installer-cleanup", "1", "nvidia-support"), Package("dkms", "3", "dkms")
    )
    apt.prefer(new)
    assert apt.simulated(*names) == dict.fromkeys(names, f"{new}-1")


def test_the_open_module_takes_the_proprietary_ones_place(apt_of: Callable[..., Apt]) -> None:
    apt = apt_of("debian12")
    apt.has(package("debian12", "nvidia-kernel-dkms", "580.178.04"), Package("dkms", "3", "dkms"))
    apt.prefer("580.178.04")
    plan = apt.simulated("nvidia-kernel-open-dkms")
    assert plan == {"nvidia-kernel-dkms": "", "nvidia-kernel-open-dkms": "580.178.04-1"}


# -- Ubuntu, without Ubuntu's packages ------------------------------------------------------------


def ubuntu_set(driver: str) -> list[str]:
    tail = "-580" if driver.startswith("580") else ""
    return [f"libnvidia-compute{tail}", f"nvidia-dkms{tail}-open", f"nvidia-utils{tail}"]


@pytest.mark.parametrize("distribution", UBUNTU)
@pytest.mark.parametrize("driver", DRIVERS)
def test_ubuntus_headless_set_comes_at_one_version(
    apt_of: Callable[..., Apt], distribution: str, driver: str
) -> None:
    apt = apt_of(distribution)
    apt.has()
    apt.prefer(driver)
    names = [*ubuntu_set(driver), "nvidia-persistenced"]
    plan = apt.simulated(*names)
    assert {plan[name].split("-")[0] for name in names} == {driver}
    assert set(plan) == {*names, "dkms"}
    whole = apt.simulated("nvidia-open")
    assert {version.split("-")[0] for name, version in whole.items() if name != "dkms"} == {driver}


@pytest.mark.parametrize(("old", "new"), [("580.178.04", "595.71.05"), ("595.71.05", "580.178.04")])
def test_ubuntu_changes_between_named_and_unnamed_branches(
    apt_of: Callable[..., Apt], old: str, new: str
) -> None:
    apt = apt_of("ubuntu2404")
    apt.has(*(package("ubuntu2404", name, old) for name in ubuntu_set(old)))
    apt.has(Package("dkms", "3", "dkms"))
    apt.prefer(new)
    plan = apt.simulated(*ubuntu_set(new))
    assert {name for name, version in plan.items() if not version} == set(ubuntu_set(old))
    assert {plan[name].split("-")[0] for name in ubuntu_set(new)} == {new}


# -- how it is built ------------------------------------------------------------------------------


def test_the_same_sources_give_the_same_packages(repositories: Repositories) -> None:
    flat = repositories.flat("debian13")
    keyring = next(flat.glob("cuda-keyring_*.deb"))
    packages = [p for p in catalogue("debian13", KERNEL, b"") if p.name != "cuda-keyring"]
    anew = {p.file_name: stanza(p, deb(p)) for p in packages}
    index = (flat / "Packages").read_text()
    assert all(text in index for text in anew.values())
    assert {file.name for file in flat.glob("*.deb")} == {*anew, keyring.name}


def test_several_that_ask_at_once_get_one_whole_repository(tmp_path: Path) -> None:
    ask = (
        "import sys; from pathlib import Path;"
        "from tests.rehearsal.emulation.nvidia_repository import served;"
        "print(served(Path(sys.argv[1])).flat('debian12'))"
    )
    words = [sys.executable, "-c", ask, str(tmp_path / "files")]
    asking = [
        subprocess.Popen(words, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    said = [process.communicate(timeout=120)[0].strip() for process in asking]
    assert [process.returncode for process in asking] == [0, 0]
    assert said[0] == said[1]
    assert (Path(said[0]) / "InRelease").is_file()
    assert len(list((tmp_path / "files/nvidia").iterdir())) == 1
