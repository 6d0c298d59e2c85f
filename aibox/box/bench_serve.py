"""`vllm bench serve` of the release that serves: one call, and what came of each of its requests.

It runs as the server's own user. The data set `custom_image` is the one of 0.31.0 that sends texts
as they are, of any length, and needs no pandas, which no lock of a release holds.
"""

from __future__ import annotations

import json
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aibox.box.job import JobError, Progress, Spec

LONGEST_S = 4 * 3600
SAID = 500  # characters of what it said that a refusal shows at most
CACHES = (
    *("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "VLLM_CACHE_ROOT"),
    *("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "FLASHINFER_WORKSPACE_BASE"),
)


def measured(
    good: Spec,
    texts: Sequence[str],
    *,
    concurrency: int,
    tokens: int,
    thinking: bool,
    progress: Progress,
) -> dict[str, Any]:
    """Send each text once, so many at a time, and have exactly `tokens` tokens of each answer.

    good: the spec of the unit that serves. Answers {"seconds", "failed", "requests": [{"prompt",
    "tokens", "ttft", "seconds"}], "speculative": its own figures or null}. Raises JobError.
    """
    with folder_of(good["user"]) as folder:
        (folder / "prompts.jsonl").write_text("".join(map(line, texts)))
        words = command(good, folder, len(texts), concurrency, tokens, thinking)
        said = run(words, good, folder, progress)
        try:
            found = json.loads((folder / "result.json").read_text())
        except (OSError, ValueError):
            raise failed(said, "no result") from None
    return summary(found, said)


def line(text: str) -> str:
    return json.dumps({"content": [{"type": "text", "text": text}]}) + "\n"


@contextmanager
def folder_of(user: str) -> Iterator[Path]:
    """A folder that only this user, and root, can look into."""
    entry = pwd.getpwnam(user)
    with tempfile.TemporaryDirectory(prefix="aibox-bench-", dir="/run") as name:
        os.chown(name, entry.pw_uid, entry.pw_gid)
        yield Path(name)


def command(
    good: Spec, folder: Path, count: int, concurrency: int, tokens: int, thinking: bool
) -> list[str]:
    body = {"temperature": 0, "chat_template_kwargs": {"enable_thinking": thinking}}
    return [
        *(f"{good['release']}/bin/vllm", "bench", "serve"),
        *("--backend", "openai-chat", "--endpoint", "/v1/chat/completions"),
        *("--base-url", f"http://127.0.0.1:{good['port']}"),
        *("--model", good["weights"], "--served-model-name", good["model"]),
        *("--skip-tokenizer-init", "--ignore-eos", "--output-len", str(tokens)),
        *("--dataset-name", "custom_image", "--dataset-path", str(folder / "prompts.jsonl")),
        *("--disable-shuffle", "--no-oversample", "--num-prompts", str(count)),
        *("--max-concurrency", str(concurrency), "--extra-body", json.dumps(body)),
        *("--disable-tqdm", "--save-result", "--save-detailed"),
        *("--result-dir", str(folder), "--result-filename", "result.json"),
    ]


def environment(good: Spec, folder: Path) -> dict[str, str]:
    """The server's own, with every cache in the folder, and no proxy between the two."""
    own: Mapping[str, str] = good["environment"]
    quiet = {"PYTHONDONTWRITEBYTECODE": "1", "NO_PROXY": "*", "VLLM_LOGGING_LEVEL": "WARNING"}
    return {**own, **dict.fromkeys(CACHES, str(folder)), **quiet}


def run(words: list[str], good: Spec, folder: Path, progress: Progress) -> str:
    """Run it to its end, with a sign of life each second; what it said. Raises JobError."""
    entry = pwd.getpwnam(good["user"])
    with (folder.parent / f"{folder.name}.log").open("w+") as log:
        Path(log.name).unlink()
        with subprocess.Popen(
            words,
            cwd=folder,
            env=environment(good, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            user=entry.pw_uid,
            group=entry.pw_gid,
            extra_groups=(),
        ) as child:
            code = ended(child, progress)
        log.seek(0)
        said = log.read()
    if code != 0:
        raise failed(said, f"exit code {code}")
    return said


def ended(child: subprocess.Popen[bytes], progress: Progress) -> int:
    end = time.monotonic() + LONGEST_S
    while True:
        try:
            return child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            if time.monotonic() > end:
                child.kill()
            progress.rename(progress.step_name)


def failed(said: str, how: str) -> JobError:
    """All that it said goes into the journal; its last line, of a traceback too, says the cause."""
    print(said)
    return JobError(
        f"`vllm bench serve` ended with {how}: {last_line(said)[:SAID]}",
        "a measurement",
        "look at `journalctl -u aibox-bench` on the box, and whether the server answers",
    )


def last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


def summary(found: Mapping[str, Any], said: str) -> dict[str, Any]:
    """What is kept of its result. Raises JobError where no request went well."""
    if not found.get("completed"):
        errors = dict.fromkeys(map(last_line, found.get("errors", [])))
        raise failed("; ".join(errors)[:SAID] or said, "no answer")
    columns = (found[name] for name in ("input_lens", "output_lens", "ttfts", "latencies"))
    names = ("prompt", "tokens", "ttft", "seconds")
    rows = [dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True)]
    speculative = {
        name.removeprefix("spec_decode_"): value
        for name, value in found.items()
        if name.startswith("spec_decode_")
    }
    return {
        "seconds": found["duration"],
        "failed": found["failed"],
        "requests": [row for row in rows if row["tokens"]],
        "speculative": speculative or None,
    }
