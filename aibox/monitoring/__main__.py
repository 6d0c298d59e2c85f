"""Write the files that are made of the panels and alerts: `python -m aibox.monitoring`."""

from __future__ import annotations

from pathlib import Path

import yaml

from aibox.monitoring import dashboard
from aibox.monitoring.alerts import rules

FOLDER = Path(__file__).resolve().parents[2] / "templates" / "monitoring"


def files() -> dict[str, str]:
    """{name: content}"""
    written = yaml.safe_dump(rules(), sort_keys=False, allow_unicode=True, width=100)
    return {"dashboard.json": dashboard.text(), "rules.yml": written}


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        FOLDER.joinpath(name).write_text(text)
        print(f"templates/monitoring/{name}")
