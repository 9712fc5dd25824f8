"""What is allowed under `upstream` and will disappoint: servers that get no credential, or no
request."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from om_proxy.settings.service import UpstreamSettings
from om_proxy.settings.snapshot import Settings
from om_proxy.settings.validation_messages import redact_credentials


def list_upstream_warnings(settings: Settings) -> Iterator[str]:
    """One for each upstream without a credential of its own where callers bring ours, and for each
    that nothing can reach."""
    for index, upstream in enumerate(settings.upstream):
        name = redact_credentials(upstream.name)
        if settings.auth.keys and upstream.api_key is None:
            yield (
                f"upstream {name} has no api_key, and auth.keys is set: its requests are sent without a credential, unless the "
                "client sends the provider's key in Authorization beside X-OM-Authorization"
            )
        if is_unreachable(upstream, settings.upstream[:index]):
            yield (
                f"upstream {name} never gets a request: earlier upstreams match every model that it matches; "
                "move it before them, or remove it"
            )


def is_unreachable(upstream: UpstreamSettings, earlier: Sequence[UpstreamSettings]) -> bool:
    """Whether those before it take every model that its patterns fit. Where that is not certain,
    no."""
    taken = [glob for other in earlier for glob in other.match]
    return all(any(_covers(wide, glob) for wide in taken) for glob in upstream.match)


def _covers(wide: str, glob: str) -> bool:
    """Whether `wide` fits whatever `glob` fits.

    With no wildcard but `*` it does where it fits the other pattern itself, read as a name: its
    stars then stand for the other's wildcards. A class in brackets has a letter for each of what it
    may be, which proves nothing."""
    return wide in {glob, "*"} or (
        not set("?[]") & set(wide) and "[" not in glob and fnmatch.fnmatchcase(glob, wide)
    )
