"""`aibox`: the provisioner's own command on the box. Called by the deploy and by the server's unit.

Exit codes: 0 done, 1 failed or refused; 2 only from compare: the two boxes differ.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeAlias

from aibox.box import (
    apt,
    bench,
    clients,
    doctor,
    door,
    door_venv,
    facts,
    fetch,
    job,
    judge,
    kernels,
    lent,
    modules,
    prove,
    ready,
    release,
    remove,
    rotation,
    status,
    switch,
    teardown,
    toolkit,
)
from aibox.decide.rotation import BY_HAND, BY_ROLL
from aibox.parser import Parser

VERBS = {
    "packages": apt.packages,
    "modules": modules.build,
    "toolkit_proof": toolkit.prove,
    "release": release.build,
    "kernels": kernels.build,
    "remove_releases": remove.releases,
    "weights": fetch.fetch,
    "check": fetch.check,
    "judge": judge.judge,
    "switch": switch.switch,
    "back": switch.back,
    "teardown": teardown.teardown,
    "door_venv": door_venv.build,
    "door": door.switch,
    "bench": bench.bench,
}
# What is done when a job of this name has ended, in whatever way.
ENDS = {lent.JOB: lent.returned}


def main(words: list[str] | None = None) -> int:
    asked = parser().parse_args(words)
    try:
        return answered(asked)
    except KeyboardInterrupt:
        return 1
    except BrokenPipeError:  # whoever read has gone; so must what is still to be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


Verbs: TypeAlias = "argparse._SubParsersAction[Parser]"


def parser() -> Parser:
    parser = Parser(prog="aibox", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    jobs = verbs.add_parser("job", help="long work: start it, look at it, do it, end it")
    jobs.add_argument("act", choices=("start", "look", "work", "ended"))
    jobs.add_argument("name")
    verbs.add_parser("vram", help="the cards as NVML names them and what cuInit answers, as JSON")
    verbs.add_parser("prove", help="a real completion; the task comes on standard input")
    verbs.add_parser("judge", help="whether a candidate may be tried; it comes on standard input")
    add_waiting(verbs)
    standing = verbs.add_parser("status", help="what serves here; 1 when nothing does")
    standing.add_argument("--manifest", action="store_true", help="what this box is made of, JSON")
    standing.add_argument("--history", action="store_true", help="what has passed its gate here")
    standing.add_argument("--json", action="store_true", help="the same for a program")
    standing.add_argument("--full", action="store_true", help="read the weights anew for it")
    configuring = verbs.add_parser("clients", help="ready configuration for OpenCode and others")
    configuring.add_argument("--address", help="how clients reach this box; else its own name")
    add_rotation(verbs)
    examining = verbs.add_parser("doctor", help="why the server does not serve, and its memory")
    examining.add_argument("--report", action="store_true", help="a redacted bundle to give away")
    verbs.add_parser("facts", help="what this box is made of, for the node exporter")
    comparing = verbs.add_parser("compare", help="two manifests: 0 the same, 2 different")
    comparing.add_argument("first", type=Path, metavar="A.json")
    comparing.add_argument("second", type=Path, metavar="B.json")
    return parser


def add_waiting(verbs: Verbs) -> None:
    """What a unit waits for before and after its server's start."""
    waiting = verbs.add_parser("ready", help="wait until a server's own process answers /health")
    # systemd leaves it empty where the server has ended already
    waiting.add_argument("--pid", type=lambda text: int(text or 0), required=True)
    waiting.add_argument("--port", type=int, required=True)
    waiting.add_argument("--url", help="what is asked; /health on this box where it is not said")
    waiting.add_argument("--seconds", type=float, required=True)
    card = verbs.add_parser("gpu", help="wait until a server can have its share of the card")
    card.add_argument(
        "--uuid", help="the card, or several with commas between; without it, the first"
    )
    card.add_argument("--utilization", type=float, required=True, help="the share, 0 to 1")
    card.add_argument("--seconds", type=float, required=True)


def add_rotation(verbs: Verbs) -> None:
    turning = verbs.add_parser("rotation", help="the boxes that this gateway asks, and changes")
    turning.add_argument("--json", action="store_true", help="the same for a program")
    acts = turning.add_subparsers(dest="act")
    for act, told in (("out", "ask a box no more"), ("back", "ask a box again")):
        words = acts.add_parser(act, help=told)
        words.add_argument("box", help="its name in the inventory")
        words.add_argument("--json", action="store_true", default=argparse.SUPPRESS)
        if act == "out":
            words.add_argument("--why", required=True, help="for whoever wonders later")
        whose = "who does it: a rolling update puts back those of its own alone"
        words.add_argument("--by", choices=(BY_HAND, BY_ROLL), default=BY_HAND, help=whose)


def answered(asked: argparse.Namespace) -> int:
    if asked.verb in ("ready", "gpu"):
        return waited(asked)
    if asked.verb == "job" and asked.act == "work":
        return job.work(asked.name, VERBS)
    if asked.verb == "job" and asked.act == "ended":
        ENDS.get(asked.name, nothing)()
        return 0
    if asked.verb in ("status", "clients", "doctor", "facts", "rotation"):
        return shown(asked)
    if asked.verb == "compare":
        return status.compare(asked.first, asked.second)
    answers = {"job": answer_job, "vram": answer_vram, "prove": answer_prove, "judge": answer_judge}
    print(json.dumps(answers[asked.verb](asked)))
    return 0


def nothing() -> None:
    """What most jobs need at their end."""


def shown(asked: argparse.Namespace) -> int:
    """What a person reads, and a monitor."""
    if asked.verb == "facts":
        return facts.facts()
    if asked.verb == "clients":
        return clients.clients(asked.address)
    if asked.verb == "rotation":
        box, why = getattr(asked, "box", None), getattr(asked, "why", "")
        by = getattr(asked, "by", BY_HAND)
        return rotation.rotation(asked.act, box, why, by, as_json=asked.json)
    if asked.verb == "doctor":
        return doctor.doctor(report=asked.report)
    return status.status(
        as_manifest=asked.manifest, full=asked.full, history=asked.history, as_json=asked.json
    )


def waited(asked: argparse.Namespace) -> int:
    if asked.verb == "ready":
        return ready.wait(asked.pid, asked.port, asked.seconds, url=asked.url)
    from aibox.box import gpu_wait  # noqa: PLC0415  pynvml, which only this verb needs

    uuids = asked.uuid.split(",") if asked.uuid else ()
    return gpu_wait.wait(uuids, asked.utilization, asked.seconds)


def answer_job(asked: argparse.Namespace) -> dict[str, Any]:
    if asked.act == "look":
        return job.look(asked.name)
    spec = json.load(sys.stdin)
    try:
        return {"ok": True, "how": job.start(asked.name, spec.pop("verb"), spec)}
    except job.FAILURES as error:
        return {"ok": False, "refusal": asdict(job.refusal_of(error))}


def answer_prove(_asked: argparse.Namespace) -> dict[str, Any]:
    try:
        return {"ok": True, **prove.prove(json.load(sys.stdin))}
    except job.FAILURES as error:
        return {"ok": False, "refusal": asdict(job.refusal_of(error))}


def answer_judge(_asked: argparse.Namespace) -> dict[str, Any]:
    try:
        return {"ok": True, **judge.looked(json.load(sys.stdin))}
    except job.FAILURES as error:
        return {"ok": False, "refusal": asdict(job.refusal_of(error))}


def answer_vram(_asked: argparse.Namespace) -> dict[str, Any]:
    """{"error": text or null, "cards": […], "cuda": what cuInit answers, null without libcuda}.

    An NVML that does not answer is a finding.
    """
    import pynvml  # noqa: PLC0415  only this verb needs it

    from aibox.box import vram  # noqa: PLC0415

    cuda = vram.cuda()
    answer: dict[str, Any] = {"error": None, "cards": [], "cuda": cuda and asdict(cuda)}
    try:
        return {**answer, "cards": [asdict(card) for card in vram.cards()]}
    except pynvml.NVMLError as error:
        return {**answer, "error": str(error)}


if __name__ == "__main__":
    sys.exit(main())
