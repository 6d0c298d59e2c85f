"""`aibox`: the provisioner's own command on the box. Called by the deploy and by the server's unit.

Exit codes: 0 done, 1 failed or refused.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from aibox.box import fetch, job, prove, ready, release, switch

VERBS = {"release": release.build, "weights": fetch.fetch, "switch": switch.switch}


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="aibox", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    jobs = verbs.add_parser("job", help="long work: start it, look at it, do it")
    jobs.add_argument("act", choices=("start", "look", "work"))
    jobs.add_argument("name")
    verbs.add_parser("vram", help="the cards as NVML names them, as JSON")
    verbs.add_parser("prove", help="a real completion; the task comes on standard input")
    waiting = verbs.add_parser("ready", help="wait until a server's own process answers /health")
    waiting.add_argument("--pid", type=int, required=True)
    waiting.add_argument("--port", type=int, required=True)
    waiting.add_argument("--seconds", type=float, required=True)
    asked = parser.parse_args(words)
    if asked.verb == "ready":
        return ready.wait(asked.pid, asked.port, asked.seconds)
    if asked.verb == "job" and asked.act == "work":
        return job.work(asked.name, VERBS)
    answer = {"job": answer_job, "vram": answer_vram, "prove": answer_prove}[asked.verb](asked)
    print(json.dumps(answer))
    return 0


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


def answer_vram(_asked: argparse.Namespace) -> dict[str, Any]:
    """{"error": text or null, "cards": […]}; an NVML that does not answer is a finding."""
    import pynvml  # noqa: PLC0415  only this verb needs it

    from aibox.box import vram  # noqa: PLC0415

    try:
        return {"error": None, "cards": [asdict(card) for card in vram.cards()]}
    except pynvml.NVMLError as error:
        return {"error": str(error), "cards": []}


if __name__ == "__main__":
    sys.exit(main())
