"""The paths of the OpenAI-compatible server over plain HTTP, a thread for each connection."""

from __future__ import annotations

import json
import select
import socket
import time
import uuid
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from . import __version__, answers, journal, script
from .answers import Step
from .service import HungUpError, Service

GUARDED = ("/v1", "/v2", "/inference", "/cohere")  # what --api-key guards, and nothing else


class Server(ThreadingHTTPServer):
    """Serves on a socket that was bound long before."""

    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, listener: socket.socket, service: Service) -> None:
        super().__init__(listener.getsockname()[:2], Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listener
        self.service = service
        self.server_activate()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class BadRequestError(Exception):
    """What the request asks for can't be; the text goes to the client."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    @property
    def service(self) -> Service:
        return self.server.service

    # -- plain answers ------------------------------------------------------------------------

    def do_GET(self) -> None:
        path = self.path.split("?")[0]
        match path:
            case "/health" | "/ping":
                self._empty(200 if self.service.healthy() else 503)
            case "/metrics":
                self._text(200, self.service.metrics.text(), "text/plain; version=0.0.4")
            case "/version":
                self._json(200, {"version": __version__})
            case "/load":
                self._json(200, {"server_load": 0})
            case "/v1/models" if self._allowed(path):
                self._json(200, {"object": "list", "data": self._models()})
            case "/v1/models":
                self._json(401, {"error": "Unauthorized"})
            case _:
                self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        path = self.path.split("?")[0]
        data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self._allowed(path):
            self._json(401, {"error": "Unauthorized"})
        elif path == "/ping":
            self._empty(200 if self.service.healthy() else 503)
        elif path not in ("/v1/chat/completions", "/v1/completions"):
            self._json(404, {"detail": "Not Found"})
        else:
            self._complete(data)

    def _allowed(self, path: str) -> bool:
        keys = self.service.options.api_keys
        if not keys or not path.startswith(GUARDED):
            return True
        return self.headers.get("Authorization", "").removeprefix("Bearer ") in keys

    def _models(self) -> list[dict[str, Any]]:
        options = self.service.options
        return [
            {
                "id": name,
                "object": "model",
                "created": self.service.started,
                "owned_by": "vllm",
                "root": options.model,
                "parent": None,
                "max_model_len": self.service.context,
                "permission": [],
            }
            for name in options.names
        ]

    # -- completions --------------------------------------------------------------------------

    def _complete(self, data: bytes) -> None:
        if (code := script.read().fail_requests) or self.service.dead.is_set():
            code = code or 500
            self._error(code, "EngineCore encountered an issue.", "InternalServerError")
            return
        try:
            body, wanted = self._understood(data)
        except BadRequestError as error:
            self._error(400, str(error), "BadRequestError")
            return
        name = body.get("model") or self.service.options.names[0]
        if name not in self.service.options.names:
            self._error(404, f"The model `{name}` does not exist.", "NotFoundError", "model")
            return
        answer = _Answer(self.service, body, name, wanted)
        try:
            if body.get("stream"):
                self._stream(answer)
            else:
                self._whole(answer)
        except (HungUpError, ConnectionError):
            self.close_connection = True

    def _understood(self, data: bytes) -> tuple[dict[str, Any], int]:
        """The request and how many tokens it wants."""
        chat = self.path.startswith("/v1/chat")
        try:
            body = json.loads(data)
        except ValueError:
            raise BadRequestError("There was an error parsing the body") from None
        if not isinstance(body, dict) or (chat and not isinstance(body.get("messages"), list)):
            raise BadRequestError("Field required: messages")
        wanted = body.get("max_completion_tokens") or body.get("max_tokens")
        wanted = wanted or answers.DEFAULT_TOKENS
        if not isinstance(wanted, int) or wanted < 1:
            raise BadRequestError(f"max_tokens must be at least 1, got {wanted}.")
        context, prompt = self.service.context, answers.count_prompt(body)
        if prompt + wanted > context:
            raise BadRequestError(
                f"This model's maximum context length is {context} tokens. However, you requested "
                f"{wanted} output tokens and your prompt contains {prompt} input tokens."
            )
        return body, wanted

    def _whole(self, answer: _Answer) -> None:
        for step in self.service.generate(answer.body, answer.wanted, self._hung_up):
            answer.take(step)
        self._json(200, answer.whole())

    def _stream(self, answer: _Answer) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        if answer.chat:
            self._event(answer.chunk({"role": "assistant", "content": ""}))
        for step in self.service.generate(answer.body, answer.wanted, self._hung_up):
            for delta in answer.take(step):
                self._event(answer.chunk(delta))
        self._event(answer.chunk({} if answer.chat else {"text": ""}, answer.reason))
        if (answer.body.get("stream_options") or {}).get("include_usage"):
            self._event(answer.head() | {"choices": [], "usage": answer.usage()})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value: dict[str, Any]) -> None:
        text = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        self._chunk(f"data: {text}\n\n".encode())

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def _hung_up(self) -> bool:
        readable, _, _ = select.select([self.connection], [], [], 0)
        return bool(readable) and self.connection.recv(1, socket.MSG_PEEK) == b""

    # -- bodies -------------------------------------------------------------------------------

    def _error(self, code: int, text: str, kind: str, param: str | None = None) -> None:
        error = {"message": text, "type": kind, "param": param, "code": code}
        self._json(code, {"error": error})

    def _json(self, code: int, value: object) -> None:
        self._text(code, json.dumps(value, separators=(",", ":")), "application/json")

    def _empty(self, code: int) -> None:
        self._text(code, "", "")

    def _text(self, code: int, text: str, kind: str) -> None:
        data = text.encode()
        self.send_response(code)
        if kind:
            self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def version_string(self) -> str:
        return "uvicorn"

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:  # noqa: ARG002
        if self.service.options.access_log:
            host, port = self.client_address[:2]
            status = HTTPStatus(int(code))
            journal.raw(
                f'INFO:     {host}:{port} - "{self.requestline}" {status.value} {status.phrase}'
            )

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing else is logged."""


class _Answer:
    """One completion as it grows, and its shapes for the wire."""

    def __init__(self, service: Service, body: dict[str, Any], name: str, wanted: int) -> None:
        self.body = body
        self.wanted = wanted
        self.chat = "messages" in body
        self.reason = "length"
        self._name = name
        self._created = int(time.time())
        self._id = f"{'chatcmpl' if self.chat else 'cmpl'}-{uuid.uuid4().hex}"
        options = service.options
        thinks = answers.thinks(body, options.reasoning_parser, options.template_defaults)
        # Half of an answer that thinks is reasoning.
        self._reasoning_left = (wanted + 1) // 2 if thinks else 0
        self._reasoning: list[str] = []
        self._content: list[str] = []
        if not (body.get("max_tokens") or body.get("max_completion_tokens")) or script.read().empty:
            self.reason = "stop"

    def take(self, step: Step) -> list[dict[str, Any]]:
        """Add a step; the deltas that a stream sends for it."""
        cut = min(self._reasoning_left, len(step.tokens))
        self._reasoning_left -= cut
        reasoning, content = step.tokens[:cut], step.tokens[cut:]
        self._reasoning += reasoning
        self._content += content
        if not self.chat:
            return [{"text": "".join(content)}]
        deltas = [{"reasoning": "".join(reasoning)}] if reasoning else []
        return deltas + ([{"content": "".join(content)}] if content else [])

    def head(self) -> dict[str, Any]:
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._name,
        }

    def chunk(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": reason}
        choice |= {"delta": delta} if self.chat else delta
        return self.head() | {"choices": [choice]}

    def whole(self) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "logprobs": None, "finish_reason": self.reason}
        text = "".join(self._content)
        if self.chat:
            reasoning = "".join(self._reasoning) or None
            content = text if self._content else None
            choice["message"] = {
                "role": "assistant",
                "content": content,
                "reasoning": reasoning,
                "tool_calls": [],
            }
        else:
            choice["text"] = text
        head = self.head() | ({"object": "chat.completion"} if self.chat else {})
        return head | {"choices": [choice], "usage": self.usage()}

    def usage(self) -> dict[str, Any]:
        prompt = answers.count_prompt(self.body)
        generated = len(self._reasoning) + len(self._content)
        return {
            "prompt_tokens": prompt,
            "total_tokens": prompt + generated,
            "completion_tokens": generated,
            "prompt_tokens_details": None,
        }
