"""One box as this run wants it: its settings, and every path and name that follows from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from aibox.decide import doors, kernels, manifest, monitoring
from aibox.decide.driver import DriverWanted
from aibox.decide.fleet import Fleet
from aibox.decide.server import Serving, environment
from aibox.decide.toolkit import cuda_home
from aibox.decide.unit import server_command
from aibox.decide.wheels import locked_versions
from aibox.settings import ReleaseLock, Settings

PROJECT = Path(__file__).resolve().parent.parent
STATE_FOLDER = manifest.STATE_FOLDER
AIBOX_FOLDER, AIBOX = manifest.AIBOX_FOLDER, manifest.AIBOX
START_MARGIN_S = 180  # the unit's own limits end first: its wait for the card, then its start


@dataclass(frozen=True)
class Places:
    """Where release and weights go, which the preflight asks about before it knows the box."""

    settings: Settings
    release: ReleaseLock

    @property
    def release_folder(self) -> str:
        return f"{self.settings.releases_folder}/{self.release.release_id}"

    @property
    def weights_folder(self) -> str:
        return self.settings.weights_folder

    @property
    def partial_weights_folder(self) -> str:
        """Where a download stands until it is whole."""
        commit = self.settings.weights.commit
        return f"{self.settings.models_folder}/{self.settings.model}/.partial-{commit}"


def no_cards_known() -> tuple[str, ...]:
    """Of a box that is not asked."""
    return ()


@dataclass(frozen=True)
class Box(Places):
    """Settings, release and driver of one box that was judged, and what they make of it.

    nvidia_key: the armored signing key of NVIDIA's repository, its fingerprint checked. fleet: what
    its gateway asks, where that is more than the box itself.
    cards_there: asks the box which cards a server over several takes, for a box without a driver
    tells them only in the run itself.
    """

    driver: DriverWanted
    nvidia_key: str
    doors: doors.Standing = doors.NONE
    watched: monitoring.Standing = monitoring.OFF
    cards_there: Callable[[], tuple[str, ...]] = no_cards_known
    fleet: Fleet | None = None

    @property
    def gpu_uuids(self) -> tuple[str, ...]:
        """The cards that the unit is pinned to: those that are named, else those that a server
        over several takes. None for the only card of a box."""
        wanted = self.settings.cards_wanted
        if wanted.uuids or wanted.count == 1:
            return wanted.uuids
        return self.cards_there()

    @property
    def unit(self) -> str:
        return f"{self.settings.server_unit}.service"

    @property
    def unit_file(self) -> str:
        return f"/etc/systemd/system/{self.unit}"

    @property
    def proof_record(self) -> str:
        return f"{STATE_FOLDER}/proof.json"

    @property
    def served_model(self) -> str:
        """The name clients ask for: the first of served-model-name, or the weights' folder."""
        return self.served_models[0]

    @property
    def served_models(self) -> list[str]:
        """All names that clients may ask for."""
        return list(self.settings.served_models)

    @property
    def metrics_from(self) -> tuple[str, ...]:
        """Who may read metrics, beside the box itself."""
        return self.watched.readers if self.watched.on else self.settings.metrics_from

    @property
    def speculative(self) -> bool:
        return "speculative-config" in self.settings.flags

    @property
    def serving(self) -> Serving:
        settings = self.settings
        return Serving(
            unit=settings.server_unit,
            user=settings.server_user,
            port=settings.server_port,
            start_timeout=settings.start_timeout_s,
            release=self.release_folder,
            weights=self.weights_folder,
            lines=server_command(
                self.release_folder, self.weights_folder, settings.server_port, settings.flags
            ),
            environment=environment(
                settings.server_unit,
                self.release_folder,
                self.gpu_uuids,
                settings.server_environment,
                cuda_home(self.driver.cuda) if self.driver.cuda else None,
            ),
        )

    @property
    def release_spec(self) -> dict[str, Any]:
        """The task of the release job."""
        return {
            "folder": self.release_folder,
            "version": self.settings.vllm_version,
            "lock": self.release.text,
            "lock_sha256": self.release.sha256,
            "cuda": self.driver.cuda,
            "patches": [
                {
                    "file": patch.file,
                    "sha256": patch.sha256,
                    "upstream": patch.upstream,
                    "text": self.settings.patch_text(patch),
                }
                for patch in self.settings.patches
            ],
            "find_links": self.settings.release_find_links,
            "extra_files": [file.model_dump() for file in self.settings.release_extra_files],
            "environment": self.settings.server_environment,
            "cache": self.settings.cache_folder,
        }

    @cached_property
    def kernels(self) -> list[kernels.Kernel]:
        """FlashInfer's kernels that the release is to hold before the server starts."""
        if not self.settings.flashinfer_prebuild or self.driver.cuda is None:
            return []
        card, flags = self.settings.card, self.settings.flags
        attention = card.attention.model_dump() if card.attention else None
        locked = locked_versions(self.release.text)
        return kernels.wanted(locked, flags, attention, self.settings.drafts)

    @property
    def kernels_spec(self) -> dict[str, Any]:
        """The task of the job that compiles them."""
        assert self.driver.cuda is not None
        return {
            "release": self.release_folder,
            "kernels": self.kernels,
            "cuda_home": cuda_home(self.driver.cuda),
            "environment": {},
        }

    @property
    def weights_spec(self) -> dict[str, Any]:
        """The task of the weights job."""
        lock, card = self.settings.weights, self.settings.card
        limit = self.settings.download_limit_mbps
        return {
            "folder": self.weights_folder,
            "hub": self.settings.hub,
            "repository": lock.repository,
            "commit": lock.commit,
            "files": {
                path: {"size": file.size, "sha256": file.sha256}
                for path, file in lock.files.items()
            },
            "dtype": card.dtype,
            "head": card.head.model_dump() if card.head else None,
            "take_over": [self.settings.weights_from] if self.settings.weights_from else None,
            "limit": None if limit is None else limit * 1e6 / 8,
            "full": self.settings.verify_weights == "full",
        }

    @property
    def proof_spec(self) -> dict[str, Any]:
        """The task of the proof: the card's probe, put to the server."""
        return {
            "port": self.settings.server_port,
            "unit": self.unit,
            "model": self.served_model,
            "probe": self.settings.card.probe.model_dump(),
            "speculative": self.speculative,
            "identity": self.serving.identity,
            "release_id": self.release.release_id,
            "record": self.proof_record,
        }

    @property
    def candidate_spec(self) -> dict[str, Any]:
        """The task of judge, switch and gate; tasks/server.py adds the unit's "text" to it."""
        settings, serving = self.settings, self.serving
        return {
            **self.proof_spec,
            "user": settings.server_user,
            "command": serving.command,
            "environment": serving.environment,
            "release": self.release_folder,
            "version": settings.vllm_version,
            "weights": self.weights_folder,
            "commit": settings.weights.commit,
            "head": settings.card.head.model_dump() if settings.card.head else None,
            "context": settings.card.context,
            "flags": dict(settings.flags),
            "sources": {flag: settings.flag_source(flag) for flag in settings.flags},
            "card_file": settings.card_file,
            "gpu_uuid": list(self.gpu_uuids) or None,
            "timeout": settings.start_timeout_s + START_MARGIN_S,
            "retry": settings.retry_failed,
        }
