"""The question "repository", with real apt against a small signed repository of its own."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aibox.box.probe import files
from aibox.box.probe import repository as probe
from aibox.decide.driver_refusals import RepositoryAnswer

TOOLS = ("apt-get", "apt-cache", "apt-ftparchive", "dpkg-deb", "gpg")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not on this machine: {MISSING}")

DRIVER = "aiboxtest-driver"
PREFERENCES = f"""\
Package: {DRIVER} aiboxtest-library
Pin: version 580.178.04-*
Pin-Priority: 1000
"""


@dataclass(frozen=True)
class Repository:
    url: str
    folder: Path
    fingerprint: str
    gpg: tuple[str, ...]

    def sign(self) -> None:
        release = self.folder / "Release"
        release.unlink(missing_ok=True)
        (self.folder / "InRelease").unlink(missing_ok=True)
        text = output(
            "apt-ftparchive",
            "-o",
            "APT::FTPArchive::Release::Label=T",
            "release",
            ".",
            cwd=self.folder,
        )
        release.write_text(text)
        clear = [*self.gpg, "--clearsign", "-o", str(self.folder / "InRelease"), str(release)]
        output(*clear)

    def index(self) -> None:
        (self.folder / "Packages").write_text(
            output("apt-ftparchive", "packages", ".", cwd=self.folder)
        )
        self.sign()


def output(*command: str, cwd: Path | None = None) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=cwd)
    return done.stdout


def package(folder: Path, name: str, version: str, more: str = "") -> None:
    tree = folder / f".{name}-{version}"
    (tree / "DEBIAN").mkdir(parents=True)
    (tree / "DEBIAN/control").write_text(
        f"Package: {name}\nVersion: {version}\nArchitecture: all\nMaintainer: A <a@b>\n"
        f"Installed-Size: 100\nDescription: stand-in\n{more}"
    )
    target = folder / f"{name}_{version}_all.deb"
    output("dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(target))
    shutil.rmtree(tree)


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    home, folder = tmp_path_factory.mktemp("keys"), tmp_path_factory.mktemp("repository")
    gpg = ("gpg", "--homedir", str(home), "--batch", "--quiet", "--yes")
    output(*gpg, "--passphrase", "", "--quick-gen-key", "Stand-in <a@b>", "rsa2048")
    colons = output(*gpg, "--list-keys", "--with-colons").splitlines()
    fingerprint = next(line.split(":")[9] for line in colons if line.startswith("fpr"))
    (folder / probe.KEY_NAME).write_text(output(*gpg, "--armor", "--export"))
    for version in ("580.178.04-1", "590.48.01-1"):
        package(folder, DRIVER, version, f"Depends: aiboxtest-library (= {version})\n")
        package(folder, "aiboxtest-library", version)
    package(folder, "aiboxtest-lonely", "1", "Depends: aiboxtest-nowhere\n")
    package(folder, "aiboxtest-pushing", "1", "Conflicts: apt-utils\n")
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}/"
        try:
            yield Repository(url, folder, fingerprint, gpg)
        finally:
            server.shutdown()
            thread.join()
            subprocess.run(
                ["gpgconf", "--homedir", str(home), "--kill", "all"],
                check=False,
                capture_output=True,
            )


@pytest.fixture
def repository(built: Repository) -> Repository:
    built.index()
    return built


def asked(repository: Repository, **changes: Any) -> dict[str, Any]:
    question: dict[str, Any] = {
        "url": repository.url,
        "fingerprint": repository.fingerprint,
        "os": "debian 12",
        "sources": {},
        "source": f"Types: deb\nURIs: {repository.url}\nSuites: /\nSigned-By: @KEY@\n",
        "preferences": PREFERENCES,
        "packages": [f"{DRIVER}=580.178.04-*"],
        "toolkit": None,
        "headers": [],
        "also": [],
    }
    return {**question, **changes}


def answer(repository: Repository, **changes: Any) -> RepositoryAnswer:

    return RepositoryAnswer.parse(json.dumps(probe.repository(asked(repository, **changes))))


def test_what_is_offered_and_what_it_takes(repository: Repository) -> None:
    found = answer(repository, toolkit="aiboxtest-library", headers=["linux-headers-9.9"])
    assert found.error is None
    assert found.unresolved is None
    assert found.key_fingerprint == repository.fingerprint
    assert found.offers == {
        DRIVER: ("590.48.01-1", "580.178.04-1"),
        "aiboxtest-library": ("590.48.01-1", "580.178.04-1"),
        "linux-headers-9.9": (),
    }
    files = repository.folder.glob("*_580.178.04-1_all.deb")
    assert found.download_bytes == sum(file.stat().st_size for file in files)
    assert found.disk_bytes == 2 * 100 * 1024
    assert found.removes == ()


def test_nothing_of_it_stays(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = tmp_path / "var/tmp"
    kept.mkdir(parents=True)
    folders: list[Path] = []
    lay_out = probe.lay_out

    def noted(folder: Path, *rest: Any) -> None:
        folders.append(folder.parent)
        lay_out(folder, *rest)

    monkeypatch.setattr(probe, "lay_out", noted)
    monkeypatch.setattr(files, "ROOT", tmp_path)
    lists = Path("/var/lib/apt/lists")
    before = sorted(lists.glob("*"))
    assert answer(repository).error is None
    assert (sorted(lists.glob("*")), folders, list(kept.iterdir())) == (before, [kept], [])


def test_a_version_that_is_not_offered_is_told_by_its_offers(repository: Repository) -> None:
    found = answer(repository, packages=[f"{DRIVER}=600.1-*"])
    assert (found.error, found.unresolved) == (None, None)
    assert found.offers[DRIVER] == ("590.48.01-1", "580.178.04-1")


def test_what_cannot_be_had_together_is_in_apts_words(repository: Repository) -> None:
    found = answer(repository, packages=["aiboxtest-lonely=*"])
    assert found.error is None
    assert "aiboxtest-nowhere" in (found.unresolved or "")


def test_what_would_be_removed_is_named(repository: Repository) -> None:
    found = answer(repository, packages=["aiboxtest-pushing=1"])
    assert "apt-utils" in found.removes


def test_another_key_ends_it_there(repository: Repository) -> None:
    found = answer(repository, fingerprint="A" * 40)
    assert found.key_fingerprint == repository.fingerprint
    assert found.offers == {}
    assert found.error is None


def test_a_wrong_address_is_told_by_its_status(repository: Repository) -> None:
    found = answer(repository, url=f"{repository.url}elsewhere/")
    assert found.key is None
    assert "HTTP 404" in (found.error or "")
    assert "elsewhere" in (found.error or "")


def test_a_server_that_is_not_there_is_told(repository: Repository) -> None:
    found = answer(repository, url="http://127.0.0.1:9/")
    assert "refused" in (found.error or "")


def test_lists_changed_after_the_signing_are_refused_by_apt(repository: Repository) -> None:
    with (repository.folder / "InRelease").open("r+") as file:
        text = file.read().replace("SHA256:", "SHA256: ", 1)
        file.seek(0)
        file.write(text.replace("Date:", "Date: ", 1))
    found = answer(repository)
    assert found.offers == {}
    assert "BADSIG" in (found.error or "") or "ignature" in (found.error or "")


def test_packages_changed_after_the_signing_are_refused_by_apt(repository: Repository) -> None:
    packages = repository.folder / "Packages"
    packages.write_text(packages.read_text().replace("stand-in", "changed!", 1))
    error = answer(repository).error or ""
    assert "Hash Sum mismatch" in error or "unexpected size" in error
    assert "SHA256:" not in error  # apt's table of sums helps nobody


def test_a_repository_signed_by_another_key_is_refused_by_apt(
    repository: Repository, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    gpg = ("gpg", "--homedir", str(tmp_path), "--batch", "--quiet", "--yes")
    output(*gpg, "--passphrase", "", "--quick-gen-key", "Other <c@d>", "rsa2048")
    Repository(repository.url, repository.folder, "", gpg).sign()
    subprocess.run(
        ["gpgconf", "--homedir", str(tmp_path), "--kill", "all"], check=False, capture_output=True
    )
    found = answer(repository)
    assert "NO_PUBKEY" in (found.error or "") or "Missing key" in (found.error or "")


def test_another_source_that_is_broken_is_not_ours(repository: Repository) -> None:
    other = {"/etc/apt/sources.list.d/x.list": "deb [trusted=yes] http://127.0.0.1:9/other ./\n"}
    found = answer(repository, sources=other)
    assert found.error is None
    assert found.offers[DRIVER]


def test_a_repository_listed_twice_is_told(repository: Repository) -> None:
    other = {"/etc/apt/sources.list.d/x.list": f"deb [trusted=yes] {repository.url} /\n"}
    found = answer(repository, sources=other)
    assert "Conflicting values" in (found.error or "")


def test_hooks_of_the_box_are_not_run(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"
    hooks = tmp_path / "etc/apt/apt.conf.d/99hooks"
    hooks.parent.mkdir(parents=True)
    hooks.write_text(
        "".join(
            f'APT::Update::{hook} {{ "touch {trace}"; }};\n'
            for hook in ("Pre-Invoke", "Post-Invoke", "Post-Invoke-Success")
        )
    )
    for path in (tmp_path, *tmp_path.parents):
        if path.owner() == Path("~").expanduser().owner() and len(path.parts) > 2:
            path.chmod(0o755)  # apt fetches as a user of its own
    monkeypatch.setattr(files, "ROOT", tmp_path)
    assert answer(repository).error is None
    assert not trace.exists()


# --- the reading of apt's words alone ---

ERRORS = """\
Hit:1 http://mirror.invalid/debian trixie InRelease
Err:2 http://hub/x  InRelease
  Sub-process /usr/bin/sqv returned an error code (1)
  Missing key EB69
Err:3 http://other/y  InRelease
  404  Not Found
Warning: OpenPGP signature verification failed: http://hub/x  InRelease: Missing key EB69
Warning: http://hub/x/InRelease: Policy will reject signature within a year, see --audit
Error: The repository 'http://hub/x  InRelease' is not signed.
Error: The repository 'http://other/y  Release' does not have a Release file.
"""


def test_only_complaints_of_our_source_count() -> None:
    found = (probe.complaint_of(ERRORS, "http://hub/x/") or "").splitlines()
    assert found[0] == "Err:2 http://hub/x  InRelease"
    assert found[2] == "Missing key EB69"
    assert len(found) == 5
    assert not any("other" in line or "Policy" in line for line in found)
    assert probe.complaint_of(ERRORS, "http://third/z") is None


def test_offers_are_listed_newest_first_and_once() -> None:
    said = (
        "  hello |  1:2.10-5 | http://a trixie/main amd64 Packages\n"
        "  hello |  1:2.10-5 | http://b trixie/main amd64 Packages\n"
        "  hello |      2.9 | http://a bookworm/main amd64 Packages\n"
        "  hello |      2.8 | http://a bookworm/main Sources\n"
    )
    assert probe.madison(said) == {"hello": ["1:2.10-5", "2.9"]}
    assert probe.madison("") == {}


@pytest.mark.parametrize(
    ("glob", "version"),
    [("2.10-*", "1:2.10-5"), ("1:2.10-*", "1:2.10-5"), ("2.*", "1:2.10-5"), ("3*", None)],
)
def test_a_glob_may_leave_out_the_epoch(glob: str, version: str | None) -> None:
    assert probe.fitting(glob, ["1:2.10-5", "2.9"]) == version


def test_a_simulation_is_read() -> None:
    said = (
        "Remv old-driver [535.1]\nPurg older [1]\n"
        "Inst libcuda1 [535.1] (580.178.04-1 NVIDIA:nvidia [amd64]) []\n"
        "Inst nvidia-open (580.178.04-1 NVIDIA:nvidia [amd64])\n"
        "Conf libcuda1 (580.178.04-1 NVIDIA:nvidia [amd64])\n"
    )
    assert probe.simulation(said) == {
        "installed": {"libcuda1": "580.178.04-1", "nvidia-open": "580.178.04-1"},
        "removed": ["old-driver", "older"],
    }
    uris = "'http://a/x.deb' x.deb 53228 MD5Sum:20\n'http://a/y.deb' y.deb 2 SHA256:1\n"
    assert probe.download_size(uris) == 53230
