"""What answers at a URL."""


def health(port: int) -> int | None:
    """The HTTP status of the server's own /health, or None when nothing answers."""
    return status_of(f"http://127.0.0.1:{port}/health")


def status_of(url: str) -> int | None:
    """The HTTP status that a URL answers with, or None when nothing answers; past any proxy."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415  slow to import
    from urllib.parse import urlsplit  # noqa: PLC0415

    where = urlsplit(url)
    asking = HTTPConnection(where.hostname or "", where.port, timeout=3)
    try:
        asking.request("GET", where.path or "/")
        return asking.getresponse().status
    except (OSError, ValueError, HTTPException):
        return None
    finally:
        asking.close()


def fetched(url: str) -> tuple[str | None, str | None]:
    """(text, None), or (None, why it could not be fetched)."""
    from urllib.error import HTTPError  # noqa: PLC0415  slow to import
    from urllib.request import urlopen  # noqa: PLC0415

    try:
        with urlopen(url, timeout=20) as reply:
            return reply.read(1 << 20).decode(errors="replace"), None
    except HTTPError as error:
        return None, f"{url}: HTTP {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return None, f"{url}: {getattr(error, 'reason', error)}"
