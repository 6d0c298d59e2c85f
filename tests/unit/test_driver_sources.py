import re
from dataclasses import replace

import pytest

from aibox.decide.driver_sources import (
    CONTRIB,
    KEY,
    REMOVABLE,
    SOURCE,
    cleaned_sources,
    contrib_source,
    modprobe_text,
    modules_load_text,
    packages_spec,
    power_unit_text,
    preferences_text,
    repository_question,
    repository_url,
    source_text,
    toolkit_spec,
    unattended_text,
)
from tests.unit.driver_report import NEW, URL, WANTED, bare, evidence

LIST = "/etc/apt/sources.list"
FOLDER = "/etc/apt/sources.list.d"


@pytest.mark.parametrize(
    ("os_id", "os_version", "folder"),
    [
        ("debian", "12", "debian12"),
        ("debian", "13", "debian13"),
        ("ubuntu", "24.04", "ubuntu2404"),
        ("ubuntu", "26.04", "ubuntu2604"),
    ],
)
def test_each_distribution_has_its_folder(os_id: str, os_version: str, folder: str) -> None:
    for base in ("https://x.example/repos", "https://x.example/repos/"):
        url = repository_url(base, os_id, os_version)
        assert url == f"https://x.example/repos/{folder}/x86_64/"


def test_the_source_is_flat_and_has_a_key_of_its_own() -> None:
    lines = source_text(URL).splitlines()
    assert lines[1:] == ["Types: deb", f"URIs: {URL}", "Suites: /", f"Signed-By: {KEY}"]


def test_the_pin_is_the_exact_version_and_stands_before_others() -> None:
    first, second, third = preferences_text("580.178.04").split("\n\n")
    assert "Package: src:*nvidia*:any src:cuda-drivers:any src:cuda-compat:any" in first
    assert "Pin: version 580.178.04-*\nPin-Priority: 1000" in first
    assert "src:*nvidia*:any" in second and second.endswith(
        "Pin: release l=NVIDIA CUDA\nPin-Priority: 100"
    )
    assert third == "Package: *\nPin: release l=NVIDIA CUDA\nPin-Priority: 100\n"


def test_unattended_upgrades_know_the_families() -> None:
    names = re.findall(r'"(.+)";', unattended_text())
    for package in ("nvidia-driver-cuda", "libnvidia-ml1", "libcuda1", "cuda-toolkit-13-0"):
        assert any(re.match(name, package) for name in names)
    assert not any(re.match(name, "linux-image-amd64") for name in names)


def test_nouveau_is_off_and_hmm_only_on_demand() -> None:
    assert "\nblacklist nouveau\n" in modprobe_text(False)
    assert "uvm_disable_hmm" not in modprobe_text(False)
    assert "\noptions nvidia_uvm uvm_disable_hmm=1\n" in modprobe_text(True)
    assert modules_load_text().splitlines()[-1] == "nvidia-uvm"


def test_the_power_limit_is_set_after_persistence() -> None:
    text = power_unit_text(450, ["GPU-0"])
    assert "After=nvidia-persistenced.service\n" in text
    assert "ExecStart=/usr/bin/nvidia-smi -i GPU-0 -pl 450\n" in text
    assert "nvidia-smi -pl 450\n" in power_unit_text(450, [])
    # stopped, the card has its own limit again; systemd makes one "$" of two
    asked = "/usr/bin/nvidia-smi -i GPU-0 --query-gpu=power.default_limit"
    assert f"/usr/bin/nvidia-smi -i GPU-0 -pl $$({asked} --format=csv,noheader,nounits)" in text
    several = power_unit_text(450, ["GPU-0", "GPU-1"])
    for uuid in ("GPU-0", "GPU-1"):
        assert f"ExecStart=/usr/bin/nvidia-smi -i {uuid} -pl 450\n" in several
        assert f"nvidia-smi -i {uuid} --query-gpu" in several


# --- NVIDIA's repository, listed by others ---

DEBIAN = "deb http://deb.example/debian bookworm main\n"
NVIDIA = "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64/"


@pytest.mark.parametrize(
    ("path", "text", "left"),
    [
        ("cuda-debian12-x86_64.list", f"deb [signed-by=/k.gpg] {NVIDIA} /\n", None),
        ("a.list", f"# by hand\ndeb {NVIDIA} /\n", None),
        ("a.list", f"deb {NVIDIA.rstrip('/')} /\n", None),
        ("a.list", f"deb {URL} /\n", None),
        # another distribution's folder
        ("a.list", f"deb {NVIDIA.replace('debian12', 'ubuntu2204')} /\n", None),
        ("a.list", "deb file:///var/cuda-repo-debian12-13-0-local /\n", None),
        ("a.list", f"{DEBIAN}deb {NVIDIA} /\ndeb-src {NVIDIA} /\n", DEBIAN),
        ("a.sources", f"Types: deb\nURIs: {NVIDIA}\nSuites: /\n", None),
        (
            "a.sources",
            f"Types: deb\nURIs: http://a.example {NVIDIA}\nSuites: /\n",
            "Types: deb\nURIs: http://a.example\nSuites: /\n",
        ),
        (
            "a.sources",
            f"Types: deb\nURIs:\n http://a.example\n {NVIDIA}\nSuites: /\n",
            "Types: deb\nURIs: http://a.example\nSuites: /\n",
        ),
        (
            "a.sources",
            f"Types: deb\nURIs: http://a.example\nSuites: x\n\nTypes: deb\nURIs: {NVIDIA}\n",
            "Types: deb\nURIs: http://a.example\nSuites: x",
        ),
    ],
)
def test_a_doubled_source_goes(path: str, text: str, left: str | None) -> None:
    sources = {LIST: DEBIAN, f"{FOLDER}/{path}": text}
    assert cleaned_sources(sources, URL) == {f"{FOLDER}/{path}": left}


@pytest.mark.parametrize(
    ("path", "text"),
    [
        (LIST, DEBIAN),
        (f"{FOLDER}/a.list", f"# deb {NVIDIA} /\n"),
        (f"{FOLDER}/a.sources", f"Types: deb\nURIs: {NVIDIA}\nSuites: /\nEnabled: no\n"),
        (f"{FOLDER}/a.sources", f"# {NVIDIA}\nTypes: deb\nURIs: http://a.example\nSuites: /\n"),
        (
            f"{FOLDER}/nvidia-container-toolkit.list",
            "deb https://nvidia.github.io/libnvidia-container/stable/deb/amd64 /\n",
        ),
        (SOURCE, source_text(URL)),
        (f"{FOLDER}/a.list", ""),
    ],
)
def test_other_sources_stay(path: str, text: str) -> None:
    assert cleaned_sources({path: text}, URL) == {}


def test_the_main_list_is_emptied_and_never_removed() -> None:
    assert cleaned_sources({LIST: f"deb {NVIDIA} /\n"}, URL) == {LIST: ""}


def test_clean_sources_are_clean() -> None:
    mixed = f"{DEBIAN}deb {NVIDIA} /\n"
    once = cleaned_sources({f"{FOLDER}/a.list": mixed}, URL)
    assert cleaned_sources({path: text for path, text in once.items() if text}, URL) == {}


# --- contrib ---

DEB822 = (
    "Types: deb deb-src\nURIs: mirror+file:///etc/apt/mirrors/debian.list\n"
    "Suites: trixie trixie-updates\nComponents: main\n"
    "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg\n"
)


def test_debian_without_contrib_gets_it_from_its_own_sources() -> None:
    options = "[arch=amd64 signed-by=/usr/share/keyrings/debian-archive-keyring.gpg]"
    text = contrib_source({LIST: f"deb {options} http://d.example bookworm main\n"}, "debian", "12")
    assert text is not None
    assert text.splitlines()[1:] == [
        "Types: deb",
        "URIs: http://d.example",
        "Suites: bookworm",
        "Components: contrib",
        "Architectures: amd64",
        "Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg",
    ]


def test_deb822_sources_are_taken_as_they_are() -> None:
    text = contrib_source({f"{FOLDER}/debian.sources": DEB822}, "debian", "13")
    assert text is not None
    expected = DEB822.replace("deb deb-src", "deb").replace(": main", ": contrib")
    assert text.partition("\n")[2] == expected


@pytest.mark.parametrize(
    ("sources", "os_id", "os_version"),
    [
        ({LIST: "deb http://d.example bookworm main contrib\n"}, "debian", "12"),
        (
            {LIST: DEBIAN, f"{FOLDER}/c.list": DEBIAN.replace("main", "contrib main")},
            "debian",
            "12",
        ),
        ({LIST: DEBIAN}, "ubuntu", "24.04"),
        ({LIST: DEBIAN}, "debian", "13"),  # of another release
        ({LIST: "deb [signed-by=/k/tailscale.gpg] http://t.example bookworm main"}, "debian", "12"),
        ({LIST: "deb http://p.example bookworm-pgdg main"}, "debian", "12"),
        ({LIST: "deb-src http://d.example bookworm main"}, "debian", "12"),
        ({f"{FOLDER}/d.sources": f"Enabled: no\n{DEB822}"}, "debian", "13"),
        ({LIST: ""}, "debian", "12"),
        ({LIST: "deb"}, "debian", "12"),
    ],
)
def test_no_contrib_is_added_where_it_is_not_missing(
    sources: dict[str, str], os_id: str, os_version: str
) -> None:
    assert contrib_source(sources, os_id, os_version) is None


def test_contrib_of_ours_does_not_count() -> None:
    text = contrib_source({LIST: DEBIAN}, "debian", "12")
    assert text is not None
    assert contrib_source({LIST: DEBIAN, CONTRIB: text}, "debian", "12") == text


# --- what is asked for ---


def test_the_repository_is_tried_with_the_sources_as_they_will_be() -> None:
    found = evidence(
        bare(),
        sources={LIST: DEBIAN, f"{FOLDER}/cuda.list": f"deb {NVIDIA} /\n", SOURCE: "old"},
    )
    asked = repository_question(found, WANTED)
    assert list(asked["sources"]) == [LIST, CONTRIB]
    assert "Components: contrib" in asked["sources"][CONTRIB]
    assert asked["source"].endswith("Signed-By: @KEY@\n")
    assert asked["packages"][0] == "nvidia-driver-cuda=580.178.04-*"
    assert asked["headers"] == [f"linux-headers-{NEW}", "linux-headers-amd64"]
    assert asked["also"] == []
    of_ubuntu = replace(WANTED, os_id="ubuntu", os_version="24.04")
    assert "libnvidia-compute-580" in repository_question(evidence(), of_ubuntu)["also"]
    assert asked["toolkit"] == "cuda-toolkit-13-0"
    assert repository_question(found, replace(WANTED, cuda=None))["toolkit"] is None


def test_the_job_installs_headers_before_the_driver_and_holds_it() -> None:
    spec = packages_spec(evidence(bare()), WANTED)
    assert spec["install"][0] == {"name": f"linux-headers-{NEW}", "version": None}
    assert spec["install"][-1] == {"name": "nvidia-persistenced", "version": "580.178.04-*"}
    assert spec["hold"] == list(WANTED.packages)
    assert toolkit_spec(WANTED)["install"] == [{"name": "cuda-toolkit-13-0", "version": None}]
    assert toolkit_spec(replace(WANTED, cuda=None))["install"] == []


@pytest.mark.parametrize(
    ("name", "removable"),
    [
        ("nvidia-kernel-dkms", True),
        ("libnvidia-compute-580", True),
        ("libnvidia-compute-580:i386", True),
        ("libcuda1", True),
        ("libnvcuvid1", True),
        ("cuda-drivers", True),
        ("linux-modules-nvidia-580-generic", True),
        ("xserver-xorg-video-nvidia", True),
        ("nvidia-container-toolkit", False),
        ("libnvidia-container1", False),
        ("nvidia-docker2", False),
        ("linux-image-amd64", False),
        ("gdm3", False),
        ("libc6", False),
    ],
)
def test_only_other_drivers_may_be_pushed_out(name: str, removable: bool) -> None:
    assert bool(re.fullmatch(REMOVABLE, name)) == removable
