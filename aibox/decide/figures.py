"""How figures are shown: decimal GB as on the label of a disk or a card, MiB as NVML prints it."""

GB = 10**9
MIB = 2**20
GIB = 2**30


def gigabytes(size: int) -> str:
    """Bytes as decimal gigabytes, one digit: 102641958912 -> "102.6 GB"."""
    return f"{size / GB:.1f} GB"


def gigabytes_and_mebibytes(size: int) -> str:
    """Bytes both ways: 102641958912 -> "102.6 GB (97887 MiB)"."""
    return f"{gigabytes(size)} ({size // MIB} MiB)"


def gibibytes(size: int) -> str:
    """Bytes as vLLM and torch print them, two digits: 102641958912 -> "95.59 GiB"."""
    return f"{size / GIB:.2f} GiB"


def size(number: float) -> str:
    """Bytes in decimal units, as disks and cards are sold."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if number >= factor:
            return f"{number / factor:.1f} {unit}"
    return f"{number:.0f} B"


def counted(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
