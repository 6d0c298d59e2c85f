"""A box that no deploy has seen: what is on it, on one page, before anything is judged."""

from __future__ import annotations

import json

from pyinfra import host, logger

from aibox.decide import discovery_page, known_issues, manifest
from aibox.decide.discovery import Discovered, Kept, Ours
from aibox.decide.driver_evidence import Evidence
from aibox.decide.preflight import BoxReport
from aibox.decide.server import environment
from aibox.decide.toolkit import cuda_home
from aibox.decide.unit import flag_lines
from aibox.settings import ReleaseLock, Settings, driver_wanted_from
from tasks import cards, page
from tasks.box import AIBOX
from tasks.facts import AiboxAnswer, Discovery, LaidFile

# With a timeout a fact is asked plainly: no later run is to expect this one.
TIMEOUT_S = 90


def discovered(
    settings: Settings, report: BoxReport, evidence: Evidence, lock: ReleaseLock | None
) -> Discovered | None:
    """Show the page to a person who looks at a plan, and answer with what is there; nothing on a
    box with a record of a deploy, unless the person's own unit stands there again."""
    if not page.is_read():
        return None
    is_new = host.get_fact(LaidFile, path=manifest.DEPLOYED) is None
    if not is_new and report.foreign_unit is None:
        return None
    wanted = driver_wanted_from(settings, lock, report.os_id, report.os_version)
    there, before = found(settings), None if is_new else kept()
    rows = discovery_page.page(report, evidence, wanted, there, ours(settings, lock), before)
    title = "no deploy has been here yet" if is_new else "a unit of your own stands here again"
    page.show(f"{title}; this is what is there:", rows)
    return there


def kept() -> Kept | None:
    """How a deploy kept the person's unit last; None where it kept none."""
    told = host.get_fact(AiboxAnswer, program=AIBOX, words="status --history --json")
    if not told or told["found"] is None:
        return None
    last = told["found"]
    return Kept(last["when"], changed=last["sha256"] != told["installed"])


def found(settings: Settings) -> Discovered | None:
    """What runs and lies there; None where the box can't tell."""
    card = settings.card
    asked = {
        "repository": card.repository,
        "unit": f"{settings.server_unit}.service",
        "port": settings.server_port,
        "head": card.head.model_dump() if card.head else None,
    }
    answer = host.get_fact(Discovery, "discovery", json.dumps(asked), _timeout=TIMEOUT_S)
    try:
        return Discovered.parse(json.dumps(answer)) if answer is not None else None
    except ValueError as error:
        host.log(f"what the box told of its servers can't be read: {error}", logger.warning)
        return None


def ours(settings: Settings, lock: ReleaseLock | None) -> Ours:
    """What a deploy would serve there."""
    names = settings.flags.get("served-model-name", settings.model)
    several = names if isinstance(names, list | tuple) else [names]
    cuda = cuda_home(lock.cuda) if lock and lock.cuda else None
    release = f"{settings.releases_folder}/{lock.release_id}" if lock else ""
    return Ours(
        unit=f"{settings.server_unit}.service",
        user=settings.server_user,
        port=settings.server_port,
        flags=tuple(word for words in flag_lines(settings.flags) for word in words),
        names=tuple(str(name) for name in several),
        environment=environment(
            settings.server_unit,
            release,
            cards.pinned(settings.cards_wanted),
            settings.server_environment,
            cuda,
        ),
        repository=settings.card.repository,
        commit=settings.weights.commit if settings.is_pinned else None,
        weights_bytes=settings.weights.total_bytes if settings.is_pinned else None,
        context=settings.card.context,
        card_file=settings.card_file,
        start_timeout=settings.start_timeout_s,
        serve=settings.serve,
        variables=settings.server_environment,
        limits=settings.card.limits,
        issues=issues(settings),
    )


def issues(settings: Settings) -> dict[str, str]:
    """The known issues that come with what a person's server may have, and ours has not."""
    name, version = "enable-prefix-caching", settings.vllm_version
    coming = known_issues.coming_with(name, True, version, settings.flags, settings.card)
    return {name: coming[0].warning} if coming else {}


def commit_there(settings: Settings) -> str | None:
    """The commit of this model that the box holds whole, with its head; None: none."""
    there = found(settings)
    head = "carried" if settings.card.head else None
    fitting = [
        one.commit
        for one in (there.weights if there else ())
        if one.repository == settings.card.repository
        and not one.missing
        and head in (None, one.head)
    ]
    return next(filter(None, fitting), None)
