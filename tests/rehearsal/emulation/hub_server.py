"""The hub's protocol, as huggingface_hub 2.4.0 speaks it, over folders on disk, with faults.

    /api/models/<repo>[/revision/<rev>][/tree/<rev>]   what a repository holds
    /<repo>/resolve/<rev>/<path>                       a file; LFS files redirect to /cdn/…
    /files/<path>                                      any file (wheels, the extra file)
    /ctl, /ctl/log                                     faults and the log of requests

Nothing is read into memory whole: a file goes out in pieces, so that it can be of any size.
"""

from __future__ import annotations

import asyncio
import fnmatch
import html
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from aiohttp import web

from tests.rehearsal.emulation import repository
from tests.rehearsal.emulation.repository import Entry, Repository

PIECE = 64 * 1024
LOG_LENGTH = 100_000

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Faults:
    """What is wrong with the hub at the moment. The defaults are a healthy one.

    `only` limits truncate_after, silent_after, corrupt and slow to the paths that match it
    (fnmatch).
    """

    only: str = "*"
    truncate_after: int | None = None  # bytes of a body after which the connection is cut
    truncate_times: int | None = None  # how many answers are cut; None: all of them
    silent_after: int | None = None  # bytes of a body after which nothing comes as long as this is
    corrupt: bool = False  # one byte in the middle is wrong, the size right
    slow: int | None = None  # bytes a second, for each connection
    token: str | None = None  # gated: 401 without a token, 403 with another one
    revision_missing: bool = False  # every revision answers 404
    unavailable: int = 0  # how many requests answer 503

    def change(self, wanted: dict[str, Any]) -> None:
        """Set fields by name; raises ValueError for a name or a kind of value that is none."""
        for name, value in wanted.items():
            allowed = {f.name: str(f.type) for f in fields(self)}
            if name not in allowed:
                raise ValueError(f"no fault is called {name}; there are {', '.join(allowed)}")
            if type(value).__name__.replace("NoneType", "None") not in allowed[name].split(" | "):
                raise ValueError(f"{name} is {allowed[name]}, not {value!r}")
            setattr(self, name, value)


@dataclass
class Served:
    """One line of the log; `bytes` is what was sent of the body."""

    method: str
    path: str
    range: str | None
    status: int = 0
    bytes: int = 0
    authorized: bool = False
    agent: str = ""
    at: float = field(default_factory=time.time)


class Server:
    """The state behind the handlers: folders, faults and the log."""

    def __init__(self, models: Path, files: Path | None) -> None:
        self.models = models
        self.files = files
        self.faults = Faults()
        self.log: deque[Served] = deque(maxlen=LOG_LENGTH)

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._record], client_max_size=1 << 20)
        model = "/api/models/{org}/{name}"
        app.router.add_post("/ctl", self.change)
        app.router.add_get("/ctl/log", self.show_log)
        app.router.add_get("/api/whoami-v2", self.who)
        app.router.add_get(model, self.info)
        app.router.add_get(model + "/revision/{revision}", self.info)
        app.router.add_get(model + "/tree/{revision}", self.tree)
        app.router.add_get(model + "/tree/{revision}/{path:.*}", self.tree)
        app.router.add_get("/{org}/{name}/resolve/{revision}/{path:.+}", self.resolve)
        app.router.add_get("/cdn/{org}/{name}/{sha256}", self.cdn)
        app.router.add_get("/files/{path:.*}", self.file)
        return app

    # -- what stands around every request ---------------------------------------------------

    @web.middleware
    async def _record(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path.startswith("/ctl"):
            return await handler(request)
        line = Served(
            request.method,
            request.path_qs,
            request.headers.get("Range"),
            authorized="Authorization" in request.headers,
            agent=request.headers.get("User-Agent", "")[:60],
        )
        request["line"] = line
        self.log.append(line)
        try:
            response = self._refusal(request) or await handler(request)
        except web.HTTPException as error:
            line.status = error.status
            raise
        line.status = response.status
        if isinstance(response, web.Response) and request.method != "HEAD":
            line.bytes = len(response.body) if isinstance(response.body, bytes) else 0
        return response

    def _refusal(self, request: web.Request) -> web.Response | None:
        if self.faults.unavailable > 0:
            self.faults.unavailable -= 1
            return web.Response(status=503, text="Service Unavailable")
        if self.faults.token is None or request.path.startswith(("/cdn/", "/files/")):
            return None
        given = request.headers.get("Authorization")
        repo = f"{request.match_info.get('org')}/{request.match_info.get('name')}"
        start = f"Access to model {repo} is restricted"
        if given is None:
            text = f"{start}. You must have access to it and be authenticated to access it."
            return _error(401, "GatedRepo", text + " Please log in.")
        if given != f"Bearer {self.faults.token}":
            return _error(403, "GatedRepo", f"{start} and you are not in the authorized list.")
        return None

    # -- control ------------------------------------------------------------------------------

    async def change(self, request: web.Request) -> web.Response:
        wanted = await request.json()
        if wanted.pop("reset", False):
            self.faults = Faults()
        if wanted.pop("clear_log", False):
            self.log.clear()
        try:
            self.faults.change(wanted)
        except ValueError as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.json_response(asdict(self.faults))

    async def show_log(self, _request: web.Request) -> web.Response:
        return web.json_response([asdict(line) for line in self.log])

    async def who(self, request: web.Request) -> web.Response:
        if "Authorization" not in request.headers:
            return _error(401, "", "Invalid username or password.")
        return web.json_response({"name": "rehearsal", "type": "user", "orgs": []})

    # -- the hub ------------------------------------------------------------------------------

    async def info(self, request: web.Request) -> web.Response:
        repo = await self._repository(request)
        detailed = request.query.get("blobs", "").lower() in ("true", "1")
        siblings = [_sibling(entry, detailed) for entry in repo.entries.values()]
        head = {"_id": repo.commit[:24], "id": repo.name, "modelId": repo.name, "sha": repo.commit}
        rest = {"private": False, "gated": False, "disabled": False, "tags": []}
        counts = {"downloads": 0, "likes": 0}
        return web.json_response(head | rest | counts | {"siblings": siblings})

    async def tree(self, request: web.Request) -> web.Response:
        repo = await self._repository(request)
        under = request.match_info.get("path", "").strip("/")
        recursive = request.query.get("recursive", "").lower() in ("true", "1")
        rows: dict[str, dict[str, Any]] = {}
        for path, entry in repo.entries.items():
            if under and not path.startswith(under + "/"):
                continue
            parts = path[len(under) + 1 if under else 0 :].split("/")
            for depth in range(1, len(parts) if recursive else min(2, len(parts))):
                folder = "/".join(([under] if under else []) + parts[:depth])
                rows[folder] = {"type": "directory", "path": folder, "size": 0, "oid": repo.commit}
            if recursive or len(parts) == 1:
                rows[path] = _tree_row(entry)
        if under and not rows:
            return _error(404, "EntryNotFound", f"{under} does not exist on {repo.commit}")
        return web.json_response(list(rows.values()))

    async def resolve(self, request: web.Request) -> web.StreamResponse:
        repo = await self._repository(request)
        entry = repo.entries.get(request.match_info["path"])
        known = {"X-Repo-Commit": repo.commit}
        if entry is None:
            return _error(404, "EntryNotFound", "Entry not found", known)
        known |= {"ETag": f'"{entry.etag}"', "Accept-Ranges": "bytes"}
        if not entry.lfs:
            return await self._send(request, entry.file, known)
        location = request.url.with_path(f"/cdn/{repo.name}/{entry.sha256}")
        location = location.with_query({"response-content-disposition": Path(entry.path).name})
        headers = known | _linked(entry) | {"Location": str(location)}
        return web.Response(status=302, headers=headers)

    async def cdn(self, request: web.Request) -> web.StreamResponse:
        """The file store. The hub's is another host and sends no headers of the hub's; to a store
        on its own host the client follows at once, even by HEAD, and wants them here."""
        repo = await self._repository(request)
        entry = repo.with_sha256(request.match_info["sha256"])
        if entry is None:
            return web.Response(status=404)
        request["name"] = entry.path
        known = {"X-Repo-Commit": repo.commit, "ETag": f'"{entry.sha256}"'}
        return await self._send(request, entry.file, known | _linked(entry))

    async def file(self, request: web.Request) -> web.StreamResponse:
        if self.files is None:
            return web.Response(status=404, text="this hub serves no files")
        root = self.files.resolve()
        file = (root / request.match_info["path"]).resolve()
        if not file.is_relative_to(root) or not file.exists():
            return web.Response(status=404, text="Not Found")
        if file.is_dir():
            return _folder(file)
        stat = file.stat()
        return await self._send(request, file, {"ETag": f'"{stat.st_mtime_ns:x}-{stat.st_size:x}"'})

    async def _repository(self, request: web.Request) -> Repository:
        name = f"{request.match_info['org']}/{request.match_info['name']}"
        repo = await asyncio.to_thread(repository.load, self.models, name)
        if repo is None:
            # Without a token the hub does not tell "none" from "not yours".
            status = 404 if "Authorization" in request.headers else 401
            raise _raised(_error(status, "RepoNotFound", "Repository not found"))
        revision = request.match_info.get("revision", "main")
        if self.faults.revision_missing or revision not in ("main", repo.commit):
            raise _raised(_error(404, "RevisionNotFound", f"Invalid rev id: {revision}"))
        return repo

    # -- bodies -------------------------------------------------------------------------------

    async def _send(
        self, request: web.Request, file: Path, headers: dict[str, str]
    ) -> web.StreamResponse:
        size = file.stat().st_size
        headers = {"Content-Type": "application/octet-stream", "Accept-Ranges": "bytes"} | headers
        wanted = request.headers.get("Range")
        if request.headers.get("If-Range", headers["ETag"]) != headers["ETag"]:
            wanted = None
        try:
            span = parse_range(wanted, size)
        except ValueError:
            return web.Response(status=416, headers={"Content-Range": f"bytes */{size}"})
        start, end = span or (0, size)
        headers["Content-Length"] = str(end - start)
        if span:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        response = web.StreamResponse(status=206 if span else 200, headers=headers)
        request["line"].status = response.status
        await response.prepare(request)
        if request.method != "HEAD":
            await self._write(request, response, file, start, end)
        return response

    async def _write(
        self, request: web.Request, response: web.StreamResponse, file: Path, start: int, end: int
    ) -> None:
        """Send the bytes start…end of a file, with what is wrong at the moment."""
        name = request.get("name", request.match_info.get("path", ""))
        faults = self._faults_for(name)
        cut = self._cut(faults)
        wrong = file.stat().st_size // 2 if faults.corrupt else -1
        piece = min(PIECE, max(1, faults.slow // 10)) if faults.slow else PIECE
        line: Served = request["line"]
        with file.open("rb") as stream:
            stream.seek(start)
            while line.bytes < end - start:
                while self._is_silent(name, line.bytes):
                    await asyncio.sleep(0.05)
                room = min(piece, end - start - line.bytes)
                if cut is not None:
                    room = min(room, cut - line.bytes)
                    if room <= 0:
                        return _hang_up(request)
                data = bytearray(stream.read(room))
                at = wrong - start - line.bytes
                if 0 <= at < len(data):
                    data[at] ^= 0xFF
                await response.write(bytes(data))
                line.bytes += len(data)
                if slow := self._faults_for(name).slow:  # a test may let it go on at full speed
                    await asyncio.sleep(len(data) / slow)
        return None

    def _faults_for(self, name: str) -> Faults:
        return self.faults if fnmatch.fnmatch(name, self.faults.only) else Faults()

    def _is_silent(self, name: str, sent: int) -> bool:
        most = self._faults_for(name).silent_after
        return most is not None and sent >= most

    def _cut(self, faults: Faults) -> int | None:
        if faults.truncate_after is None or faults.truncate_times == 0:
            return None
        if faults.truncate_times is not None:
            faults.truncate_times -= 1
        return faults.truncate_after


def parse_range(text: str | None, size: int) -> tuple[int, int] | None:
    """A single range as (start, end), end exclusive; None for no range or several.

    Raises ValueError for a range that lies outside the file.
    """
    found = re.fullmatch(r"bytes=(\d*)-(\d*)", (text or "").strip())
    if not found or found.groups() == ("", ""):
        return None
    first, last = found.groups()
    if first == "":
        if int(last) == 0 or size == 0:
            raise ValueError(text)
        return max(0, size - int(last)), size
    start, end = int(first), min(size, int(last) + 1) if last else size
    if last and int(last) < start:
        return None
    if start >= size:
        raise ValueError(text)
    return start, end


def _hang_up(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def _error(
    status: int, code: str, text: str, headers: dict[str, str] | None = None
) -> web.Response:
    named = {"X-Error-Code": code, "X-Error-Message": text} | (headers or {})
    return web.json_response({"error": text}, status=status, headers=named)


def _raised(response: web.Response) -> web.HTTPException:
    """The answer as what aiohttp lets a helper raise."""
    kind = web.HTTPUnauthorized if response.status == 401 else web.HTTPNotFound
    named = {key: value for key, value in response.headers.items() if key.startswith("X-")}
    return kind(headers=named, text=response.text, content_type="application/json")


def _linked(entry: Entry) -> dict[str, str]:
    return {"X-Linked-Size": str(entry.size), "X-Linked-Etag": f'"{entry.sha256}"'}


def _sibling(entry: Entry, detailed: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"rfilename": entry.path}
    if detailed:
        row |= {"size": entry.size, "blobId": entry.git_blob}
        if entry.lfs:
            row["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": 134}
    return row


def _tree_row(entry: Entry) -> dict[str, Any]:
    row = {"type": "file", "path": entry.path, "size": entry.size, "oid": entry.git_blob}
    if entry.lfs:
        row["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": 134}
    return row


def _folder(folder: Path) -> web.Response:
    """A plain list of links: what `uv --find-links URL` reads."""
    names = sorted(f"{f.name}/" if f.is_dir() else f.name for f in folder.iterdir())
    links = "".join(f'<a href="{quote(name)}">{html.escape(name)}</a><br>\n' for name in names)
    page = f"<!DOCTYPE html>\n<html><body>\n{links}</body></html>\n"
    return web.Response(text=page, content_type="text/html")


def serve(server: Server, sock: Any) -> None:
    """Serve on a bound socket until SIGTERM or SIGINT."""
    web.run_app(server.application(), sock=sock, print=None, access_log=None, shutdown_timeout=1)
