"""Warn about upstreams that get no credential or no request."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator, Sequence

from om_proxy.settings.config.sections.service import UpstreamSettings
from om_proxy.settings.config.snapshot import Settings
from om_proxy.settings.config.validation_messages import redact_credentials


def list_upstream_warnings(settings: Settings) -> Iterator[str]:
    """List a warning for each upstream without `api_key` while `auth.keys` is set, and for each
    upstream that no request can reach."""
    for index, upstream in enumerate(settings.upstream):
        name = redact_credentials(upstream.name)
        if settings.auth.keys and upstream.api_key is None:
            yield (
                f"upstream {name} has no api_key, and auth.keys is set: its requests are sent without "
                "a credential, unless the client sends the provider's key in Authorization beside "
                "X-OM-Authorization"
            )
        if is_unreachable(upstream, settings.upstream[:index]):
            yield (
                f"upstream {name} never gets a request: earlier upstreams match every model that it "
                "matches; move it before them, or remove it"
            )


def is_unreachable(upstream: UpstreamSettings, earlier: Sequence[UpstreamSettings]) -> bool:
    """Return whether earlier upstreams match every model that this one matches. If in doubt, return
    False."""
    earlier_globs = [glob for other in earlier for glob in other.match]
    return all(
        any(_covers(earlier_glob, glob) for earlier_glob in earlier_globs)
        for glob in upstream.match
    )


def _covers(wide_glob: str, glob: str) -> bool:
    """Return whether `wide_glob` matches every name that `glob` matches. If in doubt, return False.

    If `*` is the only wildcard in `wide_glob`, the answer is whether `wide_glob` matches the text
    of `glob` itself, because its stars can match the wildcards in that text. That proves nothing
    for a class in brackets, which matches one character of a name but has more characters itself.
    """
    if wide_glob in {glob, "*"}:
        return True
    has_only_stars = not set("?[]") & set(wide_glob)
    return has_only_stars and "[" not in glob and fnmatch.fnmatchcase(glob, wide_glob)
