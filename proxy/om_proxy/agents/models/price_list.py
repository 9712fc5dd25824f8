"""Look up prices and abilities of models in the table that litellm ships. litellm is not imported
for that, which would cost seconds and 200 MB."""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

PRICE_TABLE_FILE = "model_prices_and_context_window_backup.json"
PROVIDERS_FILE = "provider_endpoints_support_backup.json"
# some entries hold numbers as text, and one holds an explanation
_Number = int | float | str | None
# OpenAI's reasoning models, which accept no temperature but their own; their chat variants do
_FIXED_TEMPERATURE = re.compile(r"^(?:o\d(?:-|$)|gpt-5(?!.*chat))")
# The table lists some providers' models with a prefix alone. It is tried first for their hosts.
PRICE_PREFIXES_BY_HOST = {
    "api.mistral.ai": "mistral",
    "api.moonshot.ai": "moonshot",
    "api.moonshot.cn": "moonshot",
    "api.z.ai": "zai",
    "open.bigmodel.cn": "zai",
    "dashscope.aliyuncs.com": "dashscope",
    "dashscope-intl.aliyuncs.com": "dashscope",
    "api.x.ai": "xai",
    "api.minimax.io": "minimax",
    "generativelanguage.googleapis.com": "gemini",
    "api.deepseek.com": "deepseek",
    "api.groq.com": "groq",
    "api.cerebras.ai": "cerebras",
    "api.together.xyz": "together_ai",
    "api.fireworks.ai": "fireworks_ai",
    "api.deepinfra.com": "deepinfra",
}
# A name that is not listed itself is its maker's, whatever server has it. Claude 3 is listed by
# other sellers alone, at its maker's price.
PRICE_PREFIXES_OF_MAKERS = (
    "mistral",
    "moonshot",
    "zai",
    "dashscope",
    "xai",
    "minimax",
    "vertex_ai",
    "vercel_ai_gateway/anthropic",
)
# what follows a model's name in the name of a snapshot; Bedrock's have a version too
_SNAPSHOT_SUFFIX_PATTERN = re.compile(r"[-@](?:\d{8}|\d{4}-\d\d-\d\d)(?:-v\d+:\d+)?")


@cache
def find_litellm_file(name: str) -> Path | None:
    """Return the path of one of litellm's files; None if litellm or the file is not installed."""
    spec = find_spec("litellm")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder, name)
        if path.exists():
            return path
    return None


@dataclass(frozen=True, slots=True)
class Price:
    """The price of one token, in dollars. `cached_input` equals `input` if the provider gives no
    discount."""

    input: float
    output: float
    cached_input: float
    cache_write: float


@dataclass(frozen=True, slots=True)
class Abilities:
    """A model's limits and abilities. None means not known."""

    max_input: int | None = None
    max_output: int | None = None
    takes_images: bool | None = None
    takes_temperature: bool | None = None
    calls_tools: bool | None = None
    thinks: bool | None = None  # unasked, as much as `reasoning_effort` says


class _ProviderList(msgspec.Struct, frozen=True):
    providers: dict[str, msgspec.Raw] = {}


class _Rates(msgspec.Struct, frozen=True, gc=False):
    """The dollars of one token of each kind."""

    input_cost_per_token: _Number = None
    output_cost_per_token: _Number = None
    cache_read_input_token_cost: _Number = None
    cache_creation_input_token_cost: _Number = None


class _Entry(_Rates, frozen=True, gc=False):  # thousands of them, of plain values
    """The fields that are read of a model's entry in litellm's table."""

    max_input_tokens: _Number = None
    max_output_tokens: _Number = None
    max_tokens: _Number = None
    # by the length of the prompt, the shortest first; such an entry has no other price
    tiered_pricing: tuple[_Rates, ...] = ()
    supports_vision: bool | None = None
    supports_function_calling: bool | None = None
    supports_sampling_params: bool | None = None
    supports_reasoning: bool | None = None
    deprecation_date: str | None = None


def find_price(model: str, base_url: str | None = None) -> Price | None:
    """Return a model's list price by the name that litellm or the provider gives the model; None if
    it is not known. `base_url`: of the server that has the model."""
    host = urlsplit(base_url or "").hostname or ""
    table = _read_table()
    prices = (_read_price(table[name]) for name in _list_price_names(model, host) if name in table)
    return next(filter(None, prices), None)


@cache
def list_providers() -> frozenset[str]:
    """Return the names of providers that litellm knows; none if its list is not installed."""
    path = find_litellm_file(PROVIDERS_FILE)
    if path is None:
        return frozenset()
    listed = msgspec.json.decode(path.read_bytes(), type=_ProviderList).providers
    return frozenset(listed) | {name.partition("/")[0] for name in _read_table() if "/" in name}


def find_similar_name(model: str) -> str | None:
    """Return the listed model that a name with a typo may mean; None for a model that is listed, or
    is of another version: its digits differ."""
    provider, _, name = model.rpartition("/")
    if find_listed_name(model) is not None:
        return None
    import difflib  # noqa: PLC0415 - 6 ms, needed for an unknown name only

    names = [other.removeprefix(f"{provider}/") for other in _read_table()]
    same_digits = [other for other in names if _list_digits(other) == _list_digits(name)]
    return next(iter(difflib.get_close_matches(name, same_digits, n=1, cutoff=0.85)), None)


def _list_digits(name: str) -> list[str]:
    return re.findall(r"\d+", name)


def find_listed_name(model: str) -> str | None:
    """Return the name by which the table lists a model; None if it does not."""
    table = _read_table()
    return next((name for name in _list_names(model) if name in table), None)


def find_deprecation_date(model: str) -> date | None:
    """Return the day from which a model's provider may no longer serve it; None if none is known.

    The table lists a model under several names, and not each of them has the date: the earliest one
    counts. If none has one, the model ends with its last dated snapshot (`gpt-5-mini-2025-08-07`),
    where each of them ends. Another provider's own date for the model (`azure/…`) is not asked
    for."""
    table = _read_table()
    names = [*_list_names(model)]
    texts = [
        entry.deprecation_date
        for name in (*names, f"gemini/{names[-1]}")
        if (entry := table.get(name)) and entry.deprecation_date
    ]
    if ends := [*filter(None, map(_parse_date, texts))]:
        return min(ends)
    return next(filter(None, map(_find_snapshots_end, names)), None)


@lru_cache(maxsize=1024)
def _find_snapshots_end(model: str) -> date | None:
    """Return the day on which the last of the model's dated snapshots ends; None if one of them has
    no end, or there is none."""
    ends = [
        _parse_date(entry.deprecation_date or "")
        for name, entry in _read_table().items()
        if name.startswith(model) and _SNAPSHOT_SUFFIX_PATTERN.fullmatch(name, len(model))
    ]
    return max(filter(None, ends), default=None) if all(ends) else None


def find_abilities(model: str) -> Abilities:
    """Return what is known about a model's limits and abilities."""
    entry = _find_entry(model)
    name = model.rpartition("/")[2].lower()
    is_fixed_by_name = _FIXED_TEMPERATURE.match(name) is not None
    if entry is None:
        return Abilities(
            takes_temperature=False if is_fixed_by_name else None, thinks=is_fixed_by_name or None
        )
    is_temperature_fixed = is_fixed_by_name or entry.supports_sampling_params is False
    return Abilities(
        max_input=_parse_tokens(entry.max_input_tokens) or _parse_tokens(entry.max_tokens),
        max_output=_parse_tokens(entry.max_output_tokens),
        takes_images=bool(entry.supports_vision),
        takes_temperature=not is_temperature_fixed,
        # Claude thinks only where it is asked to: an effort would turn it on
        thinks=bool(entry.supports_reasoning) and "claude" not in name,
        calls_tools=bool(entry.supports_function_calling),
    )


@lru_cache(maxsize=1024)
def _find_entry(model: str) -> _Entry | None:
    table = _read_table()
    return next((table[name] for name in _list_names(model) if name in table), None)


def _list_names(model: str) -> Iterator[str]:
    """Yield the name, then the name without each leading provider: `openrouter/openai/gpt-4o`,
    `openai/gpt-4o`, `gpt-4o`."""
    yield model
    while "/" in model:
        model = model.partition("/")[2]
        yield model
    if model.startswith("claude-") and "." in model:  # routers write `claude-haiku-4.5`
        yield model.replace(".", "-")


def _list_price_names(model: str, host: str) -> Iterator[str]:
    if prefix := PRICE_PREFIXES_BY_HOST.get(host):
        yield f"{prefix}/{model}"
    yield from _list_names(model)
    plain = model.rpartition("/")[2]
    for name in dict.fromkeys((plain, _SNAPSHOT_SUFFIX_PATTERN.sub("", plain))):
        for prefix in PRICE_PREFIXES_OF_MAKERS:
            yield f"{prefix}/{name}"


def _read_price(entry: _Entry) -> Price | None:
    """Return the price of an entry; of one with tiers that of short prompts, as memory keeps them."""
    rates = entry.tiered_pricing[0] if entry.tiered_pricing else entry
    input_price = _parse_amount(rates.input_cost_per_token)
    if input_price is None:
        return None
    cache_read_price = _parse_amount(rates.cache_read_input_token_cost)
    cache_write_price = _parse_amount(rates.cache_creation_input_token_cost)
    return Price(
        input=input_price,
        output=_parse_amount(rates.output_cost_per_token) or 0.0,
        cached_input=input_price if cache_read_price is None else cache_read_price,
        # some entries have 0, which means no more than the price of the input
        cache_write=cache_write_price or input_price,
    )


@cache
def _read_table() -> dict[str, _Entry]:
    """Read the table once, when it is first needed: 3 MB of JSON in about 10 ms. Only a few fields
    of each entry are stored."""
    path = find_litellm_file(PRICE_TABLE_FILE)
    if path is None:
        return {}
    # mapped, because malloc may keep the 3 MB of a file that is read (see the Dockerfile)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
        return _parse_table(text)


def _parse_table(text: mmap.mmap) -> dict[str, _Entry]:
    texts_by_name = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
    # half of the entries equal another provider's, and are stored once
    distinct_entries: dict[_Entry, _Entry] = {}
    return {
        name: distinct_entries.setdefault(entry, entry)
        for name, entry_text in texts_by_name.items()
        if (entry := _parse_entry(entry_text)) is not None
    }


def _parse_entry(text: msgspec.Raw) -> _Entry | None:
    """Parse an entry. Return None for an entry of another shape, so that one odd entry does not
    cost the table."""
    try:
        return msgspec.json.decode(text, type=_Entry)
    except msgspec.ValidationError:
        return None


def _parse_amount(value: _Number) -> float | None:
    try:
        return None if value is None else float(value)
    except ValueError:
        return None


def _parse_date(text: str) -> date | None:
    try:
        return date.fromisoformat(text)
    except ValueError:
        return None


def _parse_tokens(value: _Number) -> int | None:
    amount = _parse_amount(value)
    return None if amount is None else int(amount)
