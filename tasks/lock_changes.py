"""What `make lock` changed: `python -m tasks.lock_changes FOLDER`, against what git has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from aibox.decide.locks import report


def main(words: list[str]) -> int:
    """0 also when nothing changed; 1 with a word where the folder can't be compared."""
    if len(words) != 1 or not Path(words[0]).is_dir():
        print("usage: python -m tasks.lock_changes FOLDER", file=sys.stderr)
        return 1
    folder = Path(words[0])
    new = {path.name: path.read_text() for path in folder.glob("*.txt")}
    try:
        old = committed(folder)
    except (OSError, subprocess.CalledProcessError) as error:
        said = getattr(error, "stderr", None) or str(error)
        print(f"git does not say what the locks were: {said.strip()}", file=sys.stderr)
        return 1
    print("\n".join(report(old, new)))
    return 0


def committed(folder: Path) -> dict[str, str]:
    """The locks of the last commit: {file name: text}."""
    names = git(folder, "ls-tree", "--name-only", "HEAD", "./").split()
    return {name: git(folder, "show", f"HEAD:./{name}") for name in names if name.endswith(".txt")}


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
