"""Download files of one commit over several connections; a kill costs the pieces in flight.

Beside a file that is not whole stands `<name>.pieces`: a piece is written down there when it is on
the disk itself, so that the journal is right after a power cut too. Plain urllib: the token must
not follow a redirect to another host, and what the hub says of a refusal stands in its headers.
"""

from __future__ import annotations

import http.client
import os
import re
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

from aibox.box.job import JobError, Progress
from aibox.decide import hub, pieces
from aibox.decide.hub import Asked
from aibox.decide.refusal import Refusal

CONNECTIONS = 8
BUFFER = 256 << 10  # bytes read at once
TIMEOUT_S = 60.0
# Tries without a byte in between: few for a hub that never answered, four minutes for one that did.
TRIES_AT_FIRST = 4
TRIES = 10
LONGEST_WAIT_S = 60.0

PLAIN = "application/octet-stream"


def journal_of(file: Path) -> Path:
    """Where it stands which pieces of a file are on the disk; there until the file is whole."""
    return file.with_name(f"{file.name}.pieces")


class Part:
    """One file in the making; several connections write to it."""

    def __init__(self, file: Path, size: int, sha256: str) -> None:
        self.file, self.size, self.sha256 = file, size, sha256
        self.lock = threading.Lock()
        known = self.known()
        self.have = known or set()
        file.parent.mkdir(parents=True, exist_ok=True)
        if known is None:  # nothing to go on from; a shared file must not be written to
            file.unlink(missing_ok=True)
            journal_of(file).unlink(missing_ok=True)
        self.data = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_DSYNC | os.O_CLOEXEC
        self.journal = os.open(journal_of(file), flags, 0o644)
        if not self.have:
            os.ftruncate(self.journal, 0)
            os.write(self.journal, pieces.head(size, sha256).encode())
        self.is_open = True

    def known(self) -> set[int] | None:
        """The pieces that an earlier run left on the disk."""
        try:
            text = journal_of(self.file).read_text(encoding="ascii", errors="replace")
        except OSError:
            return None
        found = pieces.landed(text, self.size, self.sha256)
        if found and not (self.file.is_file() and self.file.stat().st_nlink == 1):
            return None
        return found

    def write(self, content: memoryview, at: int) -> None:
        while content:
            written = os.pwrite(self.data, content, at)
            content, at = content[written:], at + written

    def landed(self, number: int) -> None:
        os.fdatasync(self.data)
        os.write(self.journal, f"{number}\n".encode())
        with self.lock:
            self.have.add(number)
            if self.is_whole:
                self.close()

    @property
    def is_whole(self) -> bool:
        return len(self.have) == pieces.count(self.size)

    def close(self) -> None:
        """Put the file down; without its journal when it is whole. More than once does no harm."""
        if self.is_open:
            self.is_open = False
            os.close(self.data)
            os.close(self.journal)
            if self.is_whole:
                journal_of(self.file).unlink()


@dataclass
class Span:
    """A part of a file that one connection fetches; `at` is the next byte."""

    part: Part
    path: str
    at: int
    end: int


class NetworkError(Exception):
    """The network, not the box: worth another try. wait: seconds that the hub asked for."""

    def __init__(self, words: str, wait: float | None = None) -> None:
        super().__init__(words)
        self.wait = wait


class SameHost(urllib.request.HTTPRedirectHandler):
    """Redirects, with the token only as long as the host stays the same."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str,
        headers: http.client.HTTPMessage, newurl: str,
    ) -> urllib.request.Request | None:  # fmt: skip
        new = super().redirect_request(req, fp, code, msg, headers, newurl)
        secret = req.unredirected_hdrs.get("Authorization")
        if new is not None and secret and origin(newurl) == origin(req.full_url):
            new.add_unredirected_header("Authorization", secret)
        return new


def origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


class Pace:
    """Holds all connections together to a rate in bytes a second; None: no limit."""

    def __init__(self, rate: float | None) -> None:
        self.rate, self.due, self.lock = rate, 0.0, threading.Lock()

    def wait(self, count: int) -> None:
        if self.rate is None:
            return
        with self.lock:
            self.due = max(self.due, time.monotonic() - 0.1) + count / self.rate
            seconds = self.due - time.monotonic()
        if seconds > 0:
            time.sleep(seconds)


class Download:
    """The download of files of one commit into a folder."""

    def __init__(self, work: Path, spec: Mapping[str, Any], paths: Iterable[str]) -> None:
        self.spec = spec
        self.token: str | None = spec.get("secret")
        limit = spec.get("limit")
        self.pace = Pace(limit)
        self.buffer = BUFFER if limit is None else max(4096, min(BUFFER, int(limit) // 20))
        self.opener = urllib.request.build_opener(SameHost)
        self.stopped = threading.Event()
        self.failures: list[Exception] = []
        self.arrived = 0  # bytes, of this run; several threads count, none has to be exact
        files = spec["files"]
        self.parts = {
            path: Part(work / path, files[path]["size"], files[path]["sha256"]) for path in paths
        }
        self.before = self.on_the_disk()
        self.todo = deque(
            Span(part, path, start, end)
            for path, part in self.parts.items()
            for start, end in pieces.spans(part.size, part.have)
        )

    def on_the_disk(self) -> int:
        return sum(pieces.length(part.size, part.have) for part in self.parts.values())

    def run(self, progress: Progress) -> None:
        """Fetch all of it. Raises JobError, and OSError of the box's own disk."""
        total = sum(part.size for part in self.parts.values())
        try:
            with ThreadPoolExecutor(CONNECTIONS) as pool:
                workers = [pool.submit(self.work) for _ in range(CONNECTIONS)]
                try:
                    while not all(worker.done() for worker in workers):
                        progress.say(min(self.before + self.arrived, total), total, "bytes")
                        time.sleep(0.2)
                finally:
                    self.stopped.set()
        finally:
            for part in self.parts.values():
                part.close()
        if self.failures:
            raise self.failures[0]

    def work(self) -> None:
        while not self.stopped.is_set():
            try:
                span = self.todo.popleft()
            except IndexError:
                return
            try:
                self.fetch(span)
            except (JobError, OSError) as error:
                self.failures.append(error)
                self.stopped.set()

    def fetch(self, span: Span) -> None:
        tries = 0
        while span.at < span.end and not self.stopped.is_set():
            began = span.at
            try:
                self.receive(span)
            except NetworkError as error:
                tries = 1 if span.at > began else tries + 1
                if tries >= (TRIES if self.arrived else TRIES_AT_FIRST):
                    raise job_error(hub.unreachable(str(error), self.asked(span))) from None
                wait = error.wait if error.wait is not None else 2.0 ** (tries - 1)
                self.stopped.wait(min(wait, LONGEST_WAIT_S))

    def asked(self, span: Span) -> Asked:
        spec = self.spec
        return Asked(
            spec["hub"], spec["repository"], spec["commit"], span.path, self.token is not None
        )

    def receive(self, span: Span) -> None:
        """One request, and all that comes of it. Raises NetworkError, JobError, OSError."""
        buffer = memoryview(bytearray(self.buffer))
        with self.answer(span) as answer:
            check(answer, span, self.asked(span))
            while span.at < span.end and not self.stopped.is_set():
                # A piece ends where a read ends: its number is written down before the next.
                border = min(span.end, (span.at // pieces.PIECE + 1) * pieces.PIECE)
                count = read(answer, buffer[: border - span.at])
                span.part.write(buffer[:count], span.at)
                span.at += count
                self.arrived += count
                if span.at == border:
                    span.part.landed((span.at - 1) // pieces.PIECE)
                self.pace.wait(count)

    def answer(self, span: Span) -> http.client.HTTPResponse:
        url = f"{self.asked(span).at}/{quote(span.path)}"
        headers = {"Accept": PLAIN, "Accept-Encoding": "identity", "User-Agent": "aibox"}
        headers["Range"] = f"bytes={span.at}-{span.end - 1}"
        request = urllib.request.Request(url, headers=headers)
        if self.token:
            request.add_unredirected_header("Authorization", f"Bearer {self.token}")
        try:
            found: http.client.HTTPResponse = self.opener.open(request, timeout=TIMEOUT_S)
        except urllib.error.HTTPError as error:
            error.close()
            raise self.refused(error, span) from None
        except (OSError, http.client.HTTPException) as error:
            raise NetworkError(words_of(error)) from None
        return found

    def refused(self, error: urllib.error.HTTPError, span: Span) -> Exception:
        if hub.passing(error.code):
            return NetworkError(f"it answered with {error.code}", waiting_time(error.headers))
        if error.code == 416:
            found = error.headers.get("Content-Range", "").rpartition("/")[2] or "fewer"
            return job_error(hub.another_size(found, span.part.size, self.asked(span)))
        code = error.headers.get("X-Error-Code", "")
        return job_error(hub.refusal_of(error.code, code, self.asked(span)))


def check(answer: http.client.HTTPResponse, span: Span, asked: Asked) -> None:
    """Whether what comes is what was asked for."""
    range_ = re.fullmatch(r"bytes (\d+)-\d+/(\d+|\*)", answer.headers.get("Content-Range", ""))
    total = range_[2] if range_ else answer.headers.get("Content-Length", "*")
    begins = int(range_[1]) if range_ else 0
    if (answer.status == 206) != bool(range_) or begins != span.at:
        raise job_error(hub.no_ranges(answer.status, asked))
    if total not in ("*", str(span.part.size)):
        raise job_error(hub.another_size(total, span.part.size, asked))


def read(answer: http.client.HTTPResponse, room: memoryview) -> int:
    try:
        count = answer.readinto(room)
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError(words_of(error)) from None
    if not count:
        raise NetworkError("the connection was cut")
    return count


def words_of(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    if isinstance(reason, Exception):
        error = reason
    return str(getattr(error, "strerror", None) or error or type(error).__name__)


def waiting_time(headers: Message) -> float | None:
    text = headers.get("Retry-After", "")
    return float(text) if text.isascii() and text.isdigit() else None


def job_error(refusal: Refusal) -> JobError:
    return JobError(refusal.found, refusal.expected, refusal.remedy)
