"""A fresh build against its critical path: the longest chain of stages that wait for each other.

    python -m tests.benchmarks.fresh_build [--standin] [--cold]

One deploy to a rehearsal box that has its driver and nothing else, with the production release (or
the stand-in). When each job began and ended is read from the times of its files on the box. uv's
downloads come from the machine's cache, unless --cold.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import layer_of
from tests.rehearsal.emulation.hub import Hub, usual_port
from tests.rehearsal.provision import deploy, download_caches, files_folder, production, standin
from tests.rehearsal.registry import network_held

# What each stage must wait for; those before and after the jobs are the deploy's own.
NEEDS: dict[str, tuple[str, ...]] = {
    "before": (),
    "weights": ("before",),
    "cuda": ("before",),
    "compiler": ("cuda",),
    "release": ("before",),
    "kernels": ("release", "compiler"),
    "switch": ("weights", "release", "kernels", "compiler"),
    "after": ("switch",),
}
TIMES = """\
import json, os, pathlib
jobs = pathlib.Path("/run/aibox/jobs")
print(json.dumps({
    job.name: [os.path.getmtime(job / "spec.json"), os.path.getmtime(job / "result.json")]
    for job in jobs.iterdir() if (job / "result.json").exists()
}))
"""


@dataclass(frozen=True)
class Span:
    """When a stage began and ended, in seconds since the deploy began."""

    began: float
    ended: float

    @property
    def seconds(self) -> float:
        return self.ended - self.began


def spans(jobs: Mapping[str, tuple[float, float]], began: float, ended: float) -> dict[str, Span]:
    """{stage: span} of one deploy. jobs: {name: (began, ended)}; all in seconds since the epoch."""
    found = {
        name: Span(first - began, last - began)
        for name, (first, last) in jobs.items()
        if name in NEEDS and first >= began
    }
    first = min((span.began for span in found.values()), default=ended - began)
    last = max((span.ended for span in found.values()), default=first)
    return {"before": Span(0, first), **found, "after": Span(last, ended - began)}


def critical_path(seconds: Mapping[str, float]) -> tuple[float, list[str]]:
    """The longest chain of NEEDS, in seconds, and its stages. One that did not run takes none."""
    chains: dict[str, tuple[float, list[str]]] = {}
    for stage, needs in NEEDS.items():  # in an order in which what is needed comes first
        longest = max((chains[need] for need in needs), default=(0.0, []))
        own = [stage] if stage in seconds else []
        chains[stage] = (longest[0] + seconds.get(stage, 0), [*longest[1], *own])
    return chains["after"]


def report(found: Mapping[str, Span]) -> str:
    rows = [f"{'':<10}{'began':>9}{'took':>9}"]
    for name, span in sorted(found.items(), key=lambda item: item[1].began):
        rows.append(f"{name:<10}{span.began:>7.1f} s{span.seconds:>7.1f} s")
    wall = found["after"].ended
    seconds, chain = critical_path({name: span.seconds for name, span in found.items()})
    rows.append(f"wall {wall:.1f} s; critical path {seconds:.1f} s ({' → '.join(chain)})")
    rows.append(f"the wall is {wall / seconds:.2f} times the critical path")
    return "\n".join(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description="A fresh build against its critical path.")
    parser.add_argument("--standin", action="store_true", help="the stand-in release")
    parser.add_argument("--cold", action="store_true", help="without uv's cache of this machine")
    chosen = parser.parse_args()
    with (
        network_held() as address,
        Hub(files=files_folder(), address=address, port=usual_port(address, "tests")) as hub,
    ):
        data = (standin if chosen.standin else production)(hub.url)
        binds = {} if chosen.cold else download_caches()
        with Box.up("fresh-build", layer=layer_of("driven", hub), binds=binds, owned=True) as box:
            began = time.time()
            ended = deploy({box: data}, "-y", timeout_s=3600)
            over = time.time()
            if ended.code:
                raise SystemExit(ended.said)
            jobs = json.loads(box.run(["python3", "-c", TIMES]).stdout)
            print(report(spans(jobs, began, over)), flush=True)


if __name__ == "__main__":
    main()
