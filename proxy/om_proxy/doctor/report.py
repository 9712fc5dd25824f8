"""The report of `om-proxy doctor`: what needs attention first, then what works."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from om_proxy.agents.credentials import list_models
from om_proxy.app import open_store
from om_proxy.doctor.call import try_observer
from om_proxy.doctor.models import missing_credentials
from om_proxy.doctor.threads import find_troubled
from om_proxy.doctor.upstreams import Finding, examine_upstreams
from om_proxy.errors import ConfigError
from om_proxy.settings import Effective, Settings, render_value


async def examine(
    settings: Settings, *, model: str | None, call: bool, revive: bool, environ: Mapping[str, str]
) -> list[Finding]:
    """Look at everything. Works beside a running server: it sees what is changed."""
    effective = settings.effective(model)
    return [
        *await examine_upstreams(settings),
        *examine_credentials(settings, effective, environ),
        *(await try_observer(settings, effective, model, environ) if call else ()),
        *await examine_threads(settings, revive=revive),
    ]


def examine_credentials(
    settings: Settings, effective: Effective, environ: Mapping[str, str]
) -> list[Finding]:
    """Whether each memory model finds its credential."""
    if not effective.memory.enabled:
        return [Finding(True, "memory is off: no memory model is asked")]
    if missing := missing_credentials(settings, effective, environ):
        return [Finding(False, text) for text in missing]
    choices = (effective.observer_model, effective.reflector_model)
    names = dict.fromkeys(model.name for choice in choices for model in list_models(choice))
    if list(names) == ["inherit"]:
        return [Finding(True, "memory model: each request's own, with the request's credential")]
    return [
        Finding(
            True,
            f"memory model {render_value(('model',), ', '.join(names))}: no credential is missing",
        )
    ]


async def examine_threads(settings: Settings, *, revive: bool) -> list[Finding]:
    """The threads whose memory work fails; one that was revived needs no attention any more."""
    try:
        database(settings)
    except ConfigError as exc:  # no server has run yet, perhaps: the rest is looked at all the same
        return [Finding(False, str(exc))]
    store = await open_store(settings.storage.url)
    try:
        troubled = await find_troubled(store, revive=revive)
    finally:
        await store.close()
    findings = [Finding(one.is_revived, one.line) for one in troubled]
    if parked := sum(one.info.parked and not one.is_revived for one in troubled):
        findings.append(
            Finding(False, f"{parked} parked: mend the cause, then om-proxy doctor --revive")
        )
    return findings or [Finding(True, "no thread is in trouble")]


def render(findings: Iterable[Finding]) -> list[str]:
    """What does not work first."""
    broken = [finding.text for finding in findings if not finding.works]
    working = [finding.text for finding in findings if finding.works]
    lines = (
        ["", "needs attention:", *map(_item, broken)] if broken else ["", "nothing needs attention"]
    )
    return [*lines, "", "works:", *map(_item, working)] if working else lines


def _item(text: str) -> str:
    return "  - " + text.replace("\n", "\n      ")


def database(settings: Settings) -> Path:
    """The file that storage.url names. Raises ConfigError where there is none: opening would make
    one, in which all is well."""
    if settings.storage.file is None:
        raise ConfigError(
            "storage.url names no file, but a store in the server's own memory: there is nothing to look at"
        )
    file = Path(settings.storage.file).resolve()
    if not file.is_file():
        where = settings.origin(("storage", "url")) or "the default"
        raise ConfigError(
            f"{file}: there is no such file, and storage.url ({where}) names it: either no server has run yet, or this is not its folder "
            "and configuration"
        )
    return file
