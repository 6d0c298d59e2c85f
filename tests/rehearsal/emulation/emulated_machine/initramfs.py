"""update-initramfs and lsinitramfs over the emulated initramfs."""

from __future__ import annotations

from pathlib import Path

from .commands import CommandError
from .kernel import initrd, initrd_files, installed_kernels, write_initrd


def update_initramfs(words: list[str]) -> int:
    """`-u` makes the newest kernel's anew, `-k K` another's, `-k all` all; `-c` and `-d` as well.

    Each is written aside and moved into place, as the real one does.
    """
    modes = [word for word in words if word in ("-u", "-c", "-d")]
    if len(modes) != 1:
        raise CommandError("You must specify at least one of -c, -u, or -d.")
    for release in chosen(words):
        if modes == ["-d"]:
            print(f"update-initramfs: Deleting {initrd(release)}")
            initrd(release).unlink(missing_ok=True)
            continue
        if not Path("/lib/modules", release).is_dir():
            print(f"W: missing /lib/modules/{release}")
        print(f"update-initramfs: Generating {initrd(release)}", flush=True)
        write_initrd(release)
    return 0


def chosen(words: list[str]) -> list[str]:
    kernel = words[words.index("-k") + 1] if "-k" in words[:-1] else None
    if kernel == "all":
        return installed_kernels()
    return [kernel] if kernel else installed_kernels()[-1:]


def lsinitramfs(words: list[str]) -> int:
    """The paths in each initramfs."""
    images = [word for word in words if not word.startswith("-")]
    if not images:
        raise CommandError("Usage: lsinitramfs [-l] <initramfs-image>")
    for image in images:
        try:
            files = initrd_files(Path(image))
        except FileNotFoundError:
            raise CommandError(f"lsinitramfs: {image}: No such file or directory") from None
        except ValueError:
            raise CommandError(f"cpio: {image}: premature end of archive", 2) from None
        print("\n".join(sorted({".", "etc", "etc/modprobe.d", *files})))
    return 0
