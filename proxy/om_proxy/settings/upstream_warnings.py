"""Warn of upstreams that get no credential, or no request."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from om_proxy.settings.service import UpstreamSettings
from om_proxy.settings.snapshot import Settings
from om_proxy.settings.validation_messages import redact_credentials


def list_upstream_warnings(settings: Settings) -> Iterator[str]:
    """List a warning for each upstream without `api_key` while `auth.keys` is set, and for each
    upstream that no request can reach."""
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
    """Return whether earlier upstreams match every model that this one matches. False if in
    doubt."""
    earlier_globs = [glob for other in earlier for glob in other.match]
    return all(any(_covers(wide, glob) for wide in earlier_globs) for glob in upstream.match)


def _covers(wide: str, glob: str) -> bool:
    """Return whether `wide` matches every name that `glob` matches. False if in doubt.

    If `*` is the only wildcard in `wide`, it does so when it matches the text of `glob` itself: its
    stars stand for the wildcards there. For a class in brackets that proves nothing, because the
    class is one character of a name, and more of the text.
    """
    return wide in {glob, "*"} or (
        not set("?[]") & set(wide) and "[" not in glob and fnmatch.fnmatchcase(glob, wide)
    )
