"""A driver as a person installs it: by apt from NVIDIA's repository, following a page of advice.

Nothing here is the product's, so that what the product finds afterwards is somebody else's work.
"""

from __future__ import annotations

from tests.rehearsal.box import Box
from tests.rehearsal.emulation import nvidia_repository
from tests.rehearsal.provision import files_folder

DRIVER = "580.178.04"  # of the branch that NVIDIA facts, row 1, ask for
USERLAND = ("nvidia-driver-cuda", "libcuda1", "libnvidia-ml1", "nvidia-persistenced")
OPEN, PROPRIETARY = "nvidia-kernel-open-dkms", "nvidia-kernel-dkms"
KEY = "/etc/apt/keyrings/by-hand.asc"
SOURCES = "/etc/apt/sources.list.d/by-hand"

INSTALL = """\
set -e
echo 'deb [signed-by={key}] {url}/{distribution}/x86_64/ /' >{sources}.list
# the distribution's contrib beside its main, and its own dkms before NVIDIA's
for file in /etc/apt/sources.list.d/0*; do
  sed 's/^Components: .*/Components: contrib/; s/ main\\b.*/ contrib/' "$file" \\
    >"{sources}-$(basename "$file")"
done
printf 'Package: *\\nPin: release o=NVIDIA\\nPin-Priority: 100\\n' >/etc/apt/preferences.d/by-hand
apt-get -q update
DEBIAN_FRONTEND=noninteractive apt-get -qy --allow-downgrades install --no-install-recommends \\
  linux-headers-$(uname -r) nvidia-modprobe={version} {packages}
rm {sources}* /etc/apt/preferences.d/by-hand {key}
apt-get -q update
"""
SETTLE = """\
set -e
printf 'blacklist nouveau\\noptions nouveau modeset=0\\n' >/etc/modprobe.d/blacklist-nouveau.conf
echo nvidia-uvm >/etc/modules-load.d/nvidia-uvm.conf
update-initramfs -u
systemctl enable nvidia-persistenced
"""


def install_driver(box: Box, hub: str, version: str = DRIVER, module: str = OPEN) -> None:
    """Install a driver's packages; what is loaded stays as it is. Raises RehearsalError."""
    repositories = nvidia_repository.served(files_folder())
    distribution = {"bookworm": "debian12", "trixie": "debian13"}[box.entry.suite]
    key = (repositories.flat(distribution) / nvidia_repository.KEY_FILE).read_text()
    box.run(f"install -d /etc/apt/keyrings && cat >{KEY}", text=key)
    names = [f"{name}={version}-1" for name in (*USERLAND, module)]
    box.run(
        INSTALL.format(
            key=KEY,
            url=repositories.url(hub),
            distribution=distribution,
            sources=SOURCES,
            version=f"{version}-1",
            packages=" ".join(names),
        )
    )


def set_up_driver(box: Box, hub: str) -> None:
    """Install the open driver, forbid nouveau, have UVM loaded at boot, and reboot."""
    install_driver(box, hub)
    box.run(SETTLE)
    box.reboot()
    box.run("nvidia-smi -L && test -e /dev/nvidia-uvm")
