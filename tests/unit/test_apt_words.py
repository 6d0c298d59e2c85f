"""What apt and dpkg print, and what a person reads of it. The texts are apt 2.6's and apt 3.0's."""

import pytest

from aibox.decide import apt
from aibox.decide.apt import Status

# --- progress ---


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (
            "dlstatus:1:42.1000:Retrieving file 2 of 9\n",
            Status("downloading", 42.1, "Retrieving file 2 of 9"),
        ),
        (
            "pmstatus:hello:60.0000:Configuring hello (amd64)\n",
            Status("installing", 60.0, "Configuring hello (amd64)"),
        ),
        (
            "pmstatus:libc6:amd64:20.0000:Unpacking libc6 (amd64)",
            Status("installing", 20.0, "Unpacking libc6 (amd64)"),
        ),
        ("pmerror:/var/cache/x.deb:40.0:trying to overwrite", None),
        ("dlstatus:1:", None),
        ("Setting up hello (2.10-5) ...", None),
        ("", None),
    ],
)
def test_a_line_of_the_status_channel_is_read(line: str, status: Status | None) -> None:
    assert apt.status_of(line) == status


# --- locks ---

WAITING = (
    "Waiting for cache lock: Could not get lock /var/lib/dpkg/lock-frontend. "
    "It is held by process 180 (unattended-upgr)...\n"
)
FRONTEND = (
    WAITING + "E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), "
    "is another process using it?\n"
)
LISTS = (
    "Reading package lists...\n"
    "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 206 (apt-get)\n"
    "E: Unable to lock directory /var/lib/apt/lists/\n"
)
DPKG_12 = "dpkg: error: dpkg frontend lock was locked by another process with pid 206\n"
DPKG_13 = "dpkg: error: dpkg frontend lock was locked by /usr/bin/python3.13 process with pid 180\n"


@pytest.mark.parametrize(
    ("said", "holder"),
    [
        (FRONTEND, "unattended-upgr (process 180)"),
        (FRONTEND.replace("E:", "Error:"), "unattended-upgr (process 180)"),
        (LISTS, "apt-get (process 206)"),
        (DPKG_12, "a program (process 206)"),
        (DPKG_13, "python3.13 (process 180)"),
    ],
)
def test_a_lock_names_its_holder(said: str, holder: str) -> None:
    assert apt.is_locked(said)
    assert apt.holder(said) == holder
    assert apt.explained(said).found.startswith(holder)


def test_a_lock_that_was_waited_for_is_no_failure() -> None:
    assert not apt.is_locked(WAITING + "Setting up hello (2.10-5) ...\n")


# --- causes ---

NO_KEY_12 = """\
Err:1 http://hub/nvidia  InRelease
  The following signatures couldn't be verified because the public key is not available: \
NO_PUBKEY A4B469963BF863CC
W: GPG error: http://hub/nvidia  InRelease: The following signatures couldn't be verified because \
the public key is not available: NO_PUBKEY A4B469963BF863CC
E: The repository 'http://hub/nvidia  InRelease' is not signed.
"""
NO_KEY_13 = """\
Err:1 http://hub/nvidia  InRelease
  Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing key \
EB693B3035CD5710E231E123A4B469963BF863CC, which is needed to verify signature.
Warning: OpenPGP signature verification failed: http://hub/nvidia  InRelease: Sub-process \
/usr/bin/sqv returned an error code (1), error message is: Missing key \
EB693B3035CD5710E231E123A4B469963BF863CC, which is needed to verify signature.
Error: The repository 'http://hub/nvidia  InRelease' is not signed.
"""
NOT_FOUND = """\
Err:5 http://hub/nvidia  libnvidia-compute-580 580.126.16-0ubuntu1
  404  Not Found [IP: 10.0.0.1 80]
E: Failed to fetch http://hub/nvidia/libnvidia-compute-580_580.126.16.deb  404  Not Found [IP: …]
E: Unable to fetch some archives, maybe run apt-get update or try with --fix-missing?
"""
NO_RELEASE = "E: The repository 'http://hub/wrong  Release' does not have a Release file.\n"
HASH = "E: Failed to fetch http://hub/x.deb  Hash Sum mismatch\n   Hashes of expected file:\n"
SIZE = "E: Failed to fetch http://hub/x.deb  File has unexpected size (5 != 6). Mirror sync?\n"
DISK = "E: You don't have enough free space in /var/cache/apt/archives/.\n"
DISK_DPKG = """\
dpkg: error processing archive /var/cache/apt/archives/cuda_13.deb (--unpack):
 cannot copy extracted data for './usr/x' to '/usr/x.dpkg-new': failed to write (No space left on \
device)
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
TWICE = (
    "E: Conflicting values set for option Signed-By regarding source "
    "https://hub/repos/debian12/x86_64/ /: /usr/share/keyrings/a.gpg != /b.asc\n"
)
UNMET = """\
Some packages could not be installed. This may mean that you have
requested an impossible situation.

The following packages have unmet dependencies:
 nvidia-driver-cuda : Depends: update-glx but it is not installable
                      Depends: libcuda1 (= 580.178.04-1) but 590.48.01-1 is to be installed
E: Unable to correct problems, you have held broken packages.
"""
UNMET_13 = """\
Solving dependencies...
Some packages could not be installed. This may mean that you have
The following packages have unmet dependencies:
 nvidia-driver-cuda : Depends: update-glx but it is not installable
Error: Unable to correct problems, you have held broken packages.
Error: The following information from --solver 3.0 may provide additional context:
   Unable to satisfy dependencies. Reached two conflicting assignments:
"""
UNKNOWN = "E: Unable to locate package linux-headers-6.1.0-9-amd64\n"
VERSION = "E: Version '9.9' for 'hello' was not found\n"
NO_CANDIDATE = "E: Package 'libfoo' has no installation candidate\n"
BUILD = """\
Building for 7.0.0-3-amd64
Error! Bad return status for module build on kernel: 7.0.0-3-amd64 (x86_64)
Consult /var/lib/dkms/nvidia/580.126.16/build/make.log for more information.
dpkg: error processing package nvidia-kernel-open-dkms (--configure):
 installed nvidia-kernel-open-dkms package post-installation script subprocess returned error exit \
status 10
Errors were encountered while processing:
 nvidia-kernel-open-dkms
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
HEADERS = """\
Error! Your kernel headers for kernel 6.1.0-40-amd64 cannot be found at \
/lib/modules/6.1.0-40-amd64/build or /lib/modules/6.1.0-40-amd64/source.
Please install the linux-headers-6.1.0-40-amd64 package or use the --kernelsourcedir option.
dpkg: error processing package nvidia-dkms-580-open (--configure):
 installed nvidia-dkms-580-open package post-installation script subprocess returned error exit \
status 1
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
POSTINST = """\
Setting up broken (1.0) ...
cannot reach the license server
pmstatus:broken:40.0000:Configuring broken
dpkg: error processing package broken (--configure):
 installed broken package post-installation script subprocess returned error exit status 3
dpkg: dependency problems prevent configuration of needs-broken:
 needs-broken depends on broken; however:
  Package broken is not configured yet.

dpkg: error processing package needs-broken (--configure):
 dependency problems - leaving unconfigured
Errors were encountered while processing:
 broken
 needs-broken
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
WAITING_FOR = """\
dpkg: dependency problems prevent configuration of nvidia-t:
 nvidia-t depends on nvidia-t-dkms (= 580.178.04-1); however:
  Package nvidia-t-dkms is not installed.

dpkg: error processing package nvidia-t (--configure):
 dependency problems - leaving unconfigured
Errors were encountered while processing:
 nvidia-t
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""
TORN = """\
dpkg: error processing package nvidia-t-dkms (--configure):
 package is in a very bad inconsistent state; you should
 reinstall it before attempting configuration
Errors were encountered while processing:
"""
NETWORK = """\
W: Failed to fetch http://127.0.0.1:9/x/InRelease  Could not connect to 127.0.0.1:9 (127.0.0.1). - \
connect (111: Connection refused)
E: Some index files failed to download. They have been ignored, or old ones used instead.
"""
RESOLVE = "E: Failed to fetch http://nohost/x.deb  Temporary failure resolving 'nohost'\n"
OVERWRITE = """\
dpkg: error processing archive /var/cache/apt/archives/b_1_all.deb (--unpack):
 trying to overwrite '/usr/bin/x', which is also in package a 1
E: Sub-process /usr/bin/dpkg returned an error code (1)
"""


@pytest.mark.parametrize(
    ("said", "found", "do"),
    [
        (NO_KEY_12, ["NO_PUBKEY A4B469963BF863CC", "not trusted"], "install nothing"),
        (NO_KEY_13, ["Missing key EB693B30", "not trusted"], "install nothing"),
        (NOT_FOUND, ["http://hub/nvidia/libnvidia-compute-580_580.126.16.deb: 404"], "address"),
        (NO_RELEASE, ["http://hub/wrong: 404"], "address"),
        (HASH, ["http://hub/x.deb is not what"], "wait"),
        (SIZE, ["http://hub/x.deb is not what"], "wait"),
        (DISK, ["no space left on the disk in /var/cache/apt/archives/"], "free space"),
        (DISK_DPKG, ["no space left on the disk: ", "failed to write"], "free space"),
        (TWICE, ["https://hub/repos/debian12/x86_64/ is listed twice"], "grep -r"),
        (UNMET, ["update-glx but it is not installable", "libcuda1 (= 580"], "contrib"),
        (UNMET_13, ["update-glx but it is not installable"], "contrib"),
        (UNKNOWN, ["no source of this box offers linux-headers-6.1.0-9-amd64"], "policy"),
        (VERSION, ["no source of this box offers hello 9.9"], "policy hello"),
        (NO_CANDIDATE, ["offers libfoo"], "policy libfoo"),
        (
            BUILD,
            [
                "nvidia/580.126.16 does not build for kernel 7.0.0-3-amd64",
                "/var/lib/dkms/nvidia/580.126.16/build/make.log",
            ],
            "driver_version",
        ),
        (
            HEADERS,
            ["kernel headers for kernel 6.1.0-40-amd64 cannot be found"],
            "linux-headers-6.1.0-40-amd64",
        ),
        (
            POSTINST,
            ["broken: installed broken package post-installation", "the license server"],
            "dpkg --configure -a",
        ),
        (WAITING_FOR, ["nvidia-t can't be set up", "nvidia-t-dkms is not installed"], "-f install"),
        (TORN, ["nvidia-t-dkms: package is in a very bad", "reinstall it before"], "--configure"),
        (NETWORK, ["http://127.0.0.1:9/x/InRelease: Could not connect"], "network"),
        (RESOLVE, ["Temporary failure resolving 'nohost'"], "network"),
        (OVERWRITE, ["trying to overwrite '/usr/bin/x'"], "mend"),
        ("E: Something new entirely\n", ["Something new entirely"], "mend"),
        ("odd\n", ["odd"], "mend"),
        ("", ["no word"], "mend"),
    ],
)
def test_a_failure_is_put_in_words(said: str, found: list[str], do: str) -> None:
    refusal = apt.explained(said)
    for words in found:
        assert words in refusal.found
    assert do in refusal.remedy
    assert refusal.expected


def test_the_failing_package_is_named_and_not_those_that_wait_for_it() -> None:
    found = apt.explained(POSTINST).found
    assert "needs-broken" not in found
    assert "pmstatus" not in found


def test_headers_that_another_kernel_lacks_are_not_the_cause() -> None:
    """dkms skips a kernel without headers and goes on; what fails later is something else."""
    said = HEADERS.partition("dpkg:")[0] + "\n" * 20 + POSTINST
    assert "license server" in apt.explained(said).found


def test_headers_that_were_missing_are_remarked_after_a_success() -> None:
    said = HEADERS.partition("dpkg:")[0] + "Setting up nvidia-dkms-580-open ...\n"
    assert len(apt.remarks(said)) == 1
    assert "6.1.0-40-amd64" in apt.remarks(said)[0]
    assert apt.remarks("Setting up hello (2.10-5) ...\n") == []


def test_an_update_that_failed_in_part_says_so() -> None:
    words = apt.failed_refreshes(NETWORK)
    assert len(words) == 1
    assert "127.0.0.1:9" in words[0]
    assert apt.failed_refreshes("W: Target Packages is configured multiple times in x\n") == []
    assert apt.failed_refreshes("E: Type 'x' is not known on line 1\n") == [
        "Type 'x' is not known on line 1"
    ]


# --- what it may do ---


def test_only_the_families_may_be_removed() -> None:
    assert apt.outside(["nvidia-dkms-580", "python3"], r"nvidia[-\w]*") == ["python3"]
    assert apt.outside(["nvidia-dkms-580"], r"nvidia[-\w]*") == []
    assert apt.outside(["xnvidia"], "nvidia") == ["xnvidia"]


def test_a_version_that_nobody_offers_is_told_with_those_that_are() -> None:
    refusal = apt.pin_refusal("libcuda1", "580.999-*", ["590.48.01-1", "580.178.04-1"])
    assert refusal.found == "libcuda1 is offered as 590.48.01-1, 580.178.04-1"
    assert refusal.expected == "libcuda1 580.999-*"
    assert "no source" in apt.pin_refusal("libcuda1", "580.999-*", []).found
    many = [f"1.{number}" for number in range(10)]
    assert apt.pin_refusal("x", "2*", many).found.endswith("and 2 more")


def test_versions_are_asserted() -> None:
    wanted = {"a": "1", "b": "2", "c": None, "d": None}
    wrong = apt.wrong_versions(wanted, {"a": "1", "b": "1", "c": "9"})
    assert wrong == {"b": "1", "d": None}
    refusal = apt.versions_refusal(wrong, wanted)
    assert refusal.found.endswith("b 1, d not installed")
    assert refusal.expected == "b 2, d"


def test_a_package_without_its_archive_is_found() -> None:
    said = "E: The package libcuda1 needs to be reinstalled, but I can't find an archive for it.\n"
    assert apt.reinstall_required(said) == ["libcuda1"]
