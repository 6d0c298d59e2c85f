"""Clients that ask a gateway without a pause, and what failed of it."""

from __future__ import annotations

import json
import threading
import time
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from aibox.decide.doors import MASTER_KEY
from tests.rehearsal.box import Box

LONGEST_S = 1800  # that a load goes on, whatever becomes of its test


@dataclass(frozen=True)
class Gateway:
    """Where completions are asked for, and with which key."""

    url: str
    key: str

    @classmethod
    def on(cls, box: Box) -> Self:
        key = box.run(["cat", MASTER_KEY]).stdout.strip()
        return cls(f"http://{box.address}:4001/v1/chat/completions", key)


class Load:
    """Asks as long as it is held; every second client wants a stream.

    streams, wholes: answers that came whole. failed: of the others, what was met, in words.
    """

    def __init__(
        self, gateways: Sequence[Gateway], model: str, *, clients: int = 4, tokens: int = 40
    ) -> None:
        self.gateways, self.tokens = gateways, tokens
        self.body = {
            "model": model,
            "max_tokens": tokens,
            "messages": [{"role": "user", "content": "Hello"}],
        }
        self.streams, self.wholes, self.failed = 0, 0, list[str]()
        self._ending = threading.Event()
        self._counting = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(at,), daemon=True) for at in range(clients)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join(120)

    @property
    def answered(self) -> int:
        return self.streams + self.wholes

    def _ask(self, at: int) -> None:
        end = time.monotonic() + LONGEST_S
        gateway, stream = self.gateways[at // 2 % len(self.gateways)], at % 2 == 0
        while not self._ending.is_set() and time.monotonic() < end:
            began = time.monotonic()
            try:
                fault = self._faulty(gateway, stream=stream)
            except (OSError, ValueError, LookupError) as error:
                fault = f"{type(error).__name__}: {error}"
            with self._counting:
                if fault is not None:
                    kind = "stream" if stream else "whole"
                    self.failed.append(f"{kind}, {time.monotonic() - began:.1f} s: {fault}")
                elif stream:
                    self.streams += 1
                else:
                    self.wholes += 1

    def _faulty(self, gateway: Gateway, *, stream: bool) -> str | None:
        """One request; what is missing of its answer. Raises OSError, ValueError, LookupError."""
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {gateway.key}",
        }
        body = {**self.body, "stream": stream}
        body |= {"stream_options": {"include_usage": True}} if stream else {}
        asked = urllib.request.Request(gateway.url, json.dumps(body).encode(), headers)
        with urllib.request.urlopen(asked, timeout=120) as answer:
            text = answer.read().decode()
        if not stream:
            whole = json.loads(text)
            return self._short(whole["choices"], whole["usage"])
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if events[-1] != "[DONE]":
            return f"the stream ends with {events[-1][:200]}"
        parts = [json.loads(event) for event in events[:-1]]
        return self._short([one for part in parts for one in part["choices"]], parts[-1]["usage"])

    def _short(self, choices: Sequence[dict[str, Any]], usage: dict[str, int]) -> str | None:
        """An answer is whole at its last token, or where the model itself ended it before."""
        tokens = usage["completion_tokens"]
        ended = any(choice.get("finish_reason") == "stop" for choice in choices)
        return None if ended or tokens == self.tokens else f"{tokens} of {self.tokens} tokens"
