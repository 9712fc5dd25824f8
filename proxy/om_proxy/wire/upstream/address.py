"""Join the address of a model server with a client's path."""

from __future__ import annotations

from functools import lru_cache
from urllib.parse import quote_from_bytes, urlsplit

QUERY_SAFE_BYTES = bytes(range(0x21, 0x7F))  # printable ASCII, which needs no quoting


def join_url(base_url: str, path: str, query: bytes) -> str:
    """Return the upstream address of a client's path. One leading `/v1` of the path is dropped,
    because the base has its own (`/v1`, `/v1beta/openai`, …).

    A query in the base, such as Azure's `?api-version=…`, comes before the client's query.
    """
    origin, base_query = _split_base_url(base_url)
    path_in_api = path[3:] if path == "/v1" or path.startswith("/v1/") else path
    if not query and not base_query:
        return origin + path_in_api
    client_query = quote_from_bytes(query, safe=QUERY_SAFE_BYTES)
    joined_query = "&".join(filter(None, (base_query, client_query)))
    return f"{origin}{path_in_api}?{joined_query}" if joined_query else f"{origin}{path_in_api}"


@lru_cache(maxsize=64)
def _split_base_url(base_url: str) -> tuple[str, str]:
    parts = urlsplit(base_url)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}", parts.query
