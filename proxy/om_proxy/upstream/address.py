"""Where a client's path leads upstream."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote_from_bytes, urlsplit

ASCII = bytes(range(0x21, 0x7F))  # what may stand in a query as it is


def join(base_url: str, path: str, query: bytes) -> str:
    """Where a client's path leads: one leading `/v1` of it is dropped, for the base has its own (`/v1`, `/v1beta/openai`, …).

    A query in the base (Azure's `?api-version=…`) stays, before the client's own.
    """
    origin, fixed = _base(base_url)
    rest = path[3:] if path == "/v1" or path.startswith("/v1/") else path
    if not query and not fixed:
        return origin + rest
    both = "&".join(filter(None, (fixed, quote_from_bytes(query, safe=ASCII))))
    return f"{origin}{rest}?{both}" if both else f"{origin}{rest}"


@lru_cache(maxsize=64)
def _base(base_url: str) -> tuple[str, str]:
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", parts.query
