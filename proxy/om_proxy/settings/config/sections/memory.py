"""The settings of the memory itself: `memory` and `context`, which `models` and `resources` may
override."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self
from zoneinfo import ZoneInfo

from pydantic import Field, JsonValue, ValidationInfo, field_validator, model_validator

from om_proxy.memory.model import Scope
from om_proxy.settings.config.sections.model_choice import (
    AUTO_MODEL,
    REQUEST_MODELS,
    ModelChoice,
    ModelChoiceField,
    find_cross_provider_fault,
    list_model_conflicts,
)
from om_proxy.settings.config.sections.quantities import (
    SWITCH_WORDS,
    Duration,
    DurationOrAuto,
    MultipleOrTokens,
    OffOrAuto,
    ShareOrTokens,
    ShareRemovedOrTokensKept,
    TokensOrAll,
    convert_multiple,
    convert_share,
)
from om_proxy.settings.config.sections.section import (
    Count,
    Fault,
    HeaderKey,
    Layout,
    Section,
    Text,
    Tokens,
    Url,
    raise_faults,
)

# the name in a validation's context for the models of the level that sets the shared `api_key`
SHARED_KEY_MODELS = "shared_key_models"
# the members of a memory call that no setting replaces
MEMORY_CALL_MEMBERS = frozenset({"model", "messages", "stream", "n", "tools"})


def _find_block_after_faults(
    block_after: float, threshold_name: str, threshold: int
) -> list[Fault]:
    tokens = convert_multiple(block_after, threshold)
    if tokens >= threshold:
        return []
    rule = f"as {tokens} tokens, it must not be below {threshold_name} ({threshold})"
    return [("block_after", rule)]


class _ModelSettings(Section):
    """The settings that both memory models have."""

    max_output_tokens: Count | None = 100_000
    reasoning_effort: Text | None = "auto"
    extra_body: dict[str, JsonValue] = Field(default_factory=dict)

    @field_validator("extra_body")
    @classmethod
    def _check_extra_body(cls, value: dict[str, JsonValue]) -> dict[str, JsonValue]:
        if own := sorted(MEMORY_CALL_MEMBERS & value.keys()):
            raise ValueError(f"must not hold {', '.join(own)}: the proxy writes it itself")
        return value


class ObserverModelSettings(_ModelSettings):
    """The section `memory.observation.model_settings`."""

    temperature: float | None = Field(default=0.3, ge=0, le=2)


class ReflectorModelSettings(_ModelSettings):
    """The section `memory.reflection.model_settings`."""

    temperature: float | None = Field(default=0.0, ge=0, le=2)


class ObservationSettings(Section):
    """The section `memory.observation`: when and how messages are observed."""

    message_tokens: Tokens = 30_000
    buffer_tokens: ShareOrTokens = 0.2
    buffer_activation: ShareRemovedOrTokensKept = 0.8
    block_after: MultipleOrTokens = 1.2
    block_timeout: Duration = 20.0
    previous_observer_tokens: TokensOrAll = 2_000
    max_tokens_per_batch: Count = 10_000
    buffer_on_idle: bool | None = None  # None: where threads share a log
    instruction: str | None = None
    prompt: Text = "default"
    thread_title: bool = False
    redact: bool = True
    model: ModelChoiceField | None = None
    model_settings: ObserverModelSettings = ObserverModelSettings()

    @field_validator("prompt")
    @classmethod
    def _check_prompt(cls, value: str) -> str:
        try:
            is_usable = value in {"default", "condensed"} or Path(value).is_file()
        except (OSError, ValueError):  # such as a name that is too long, or has a NUL character
            is_usable = False
        if not is_usable:
            raise ValueError("must be default, condensed, or the path of a file with the prompt")
        return value

    @model_validator(mode="after")
    def _check_thresholds(self) -> Self:
        threshold = self.message_tokens
        rule = f"must be below message_tokens ({threshold})"
        faults = []
        if self.buffer_tokens is not False:
            tokens = convert_share(self.buffer_tokens, threshold)
            if tokens >= threshold:
                faults.append(("buffer_tokens", f"as {tokens} tokens, it {rule}"))
        if self.buffer_activation > 1 and self.buffer_activation >= threshold:
            faults.append(
                ("buffer_activation", f"as {self.buffer_activation:.0f} tokens to keep, it {rule}")
            )
        faults += _find_block_after_faults(self.block_after, "message_tokens", threshold)
        raise_faults(faults)
        return self


class ReflectionSettings(Section):
    """The section `memory.reflection`: when and how observations are reflected."""

    observation_tokens: Tokens = 40_000
    buffer_activation: float = Field(default=0.5, gt=0, le=1)
    block_after: MultipleOrTokens = 1.2
    instruction: str | None = None
    model: ModelChoiceField | None = None
    model_settings: ReflectorModelSettings = ReflectorModelSettings()

    @model_validator(mode="after")
    def _check_block_after(self) -> Self:
        raise_faults(
            _find_block_after_faults(
                self.block_after, "observation_tokens", self.observation_tokens
            )
        )
        return self


class RetrievalSettings(Section):
    """The section `memory.retrieval`: the tool with which a model looks up earlier messages."""

    # auto: for requests whose model is sure to call tools
    enabled: bool | Literal["auto"] = "auto"
    # None: as `memory.scope`; those in force (`settings.effective`) have one
    scope: Scope | None = None
    max_steps: int = Field(default=4, ge=1, le=16)
    tokens: int = Field(default=2_000, ge=500, le=8_000)
    timeout: Duration = 2.0
    offer: Literal["notes", "always"] = "notes"
    notes: bool = True
    usage: Literal["sum", "first"] = "sum"
    vector: bool = False
    embedding_model: Text | None = None

    @model_validator(mode="after")
    def _check_vector(self) -> Self:
        if self.vector and self.embedding_model is None:
            raise_faults([("vector", "needs retrieval.embedding_model")])
        return self


class MemorySettings(Section):
    """The section `memory`."""

    enabled: bool = True
    mode: Literal["live", "shadow"] = "live"
    scope: Scope = "thread"
    model: ModelChoiceField = AUTO_MODEL
    api_base: Url | None = None
    api_key: HeaderKey = None
    timezone: str = "UTC"
    share_token_budget: bool = False
    activate_after_idle: DurationOrAuto = None
    activate_on_provider_change: bool = False
    economy: OffOrAuto = "auto"
    observation: ObservationSettings = ObservationSettings()
    reflection: ReflectionSettings = ReflectionSettings()
    retrieval: RetrievalSettings = RetrievalSettings()

    @model_validator(mode="before")
    @classmethod
    def _expand_short_forms(cls, value: Any) -> Any:
        return expand_short_forms(value)

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (OSError, ValueError, KeyError) as exc:
            raise ValueError("must be an IANA time zone, as in Europe/Berlin") from exc
        return value

    @model_validator(mode="after")
    def _check_models(self, info: ValidationInfo) -> Self:
        level = self.model_dump(
            include={"model": True, "observation": {"model"}, "reflection": {"model"}}
        )
        shared_key_models = (info.context or {}).get(SHARED_KEY_MODELS, [])
        raise_faults(
            [*list_model_conflicts(level), *self._list_cross_provider_faults(shared_key_models)]
        )
        return self

    def _list_cross_provider_faults(self, shared_key_models: list[ModelChoice]) -> Iterator[Fault]:
        """List the models that cannot share one `api_key` or `api_base`."""
        find_fault = partial(
            find_cross_provider_fault, api_base=self.api_base, has_key=self.api_key is not None
        )
        choices = {
            "model": self.model,
            "observation.model": self.observation.model,
            "reflection.model": self.reflection.model,
        }
        for name, choice in choices.items():
            if rule := find_fault([choice, *shared_key_models]):
                yield name, rule
        if self.model not in REQUEST_MODELS:
            return
        # without a common model, the agents' own models share the key and the address; each of them
        # was already compared with `shared_key_models`
        if rule := find_fault([self.observation.model, self.reflection.model]):
            yield "reflection.model", f"with observation.model, {rule}"


class ContextSettings(Section):
    """The section `context`: how prompts are built."""

    layout: Layout = "auto"
    relative_time: bool = True
    priorities: tuple[Literal["red", "yellow", "green", "done"], ...] = ("red", "done")
    tail_limit: Count | None = None  # tokens

    @model_validator(mode="after")
    def _check_priorities(self) -> Self:
        if not {"red", "done"} <= set(self.priorities):
            rule = "must contain red and done: only the marks yellow and green can be left out"
            raise_faults([("priorities", rule)])
        return self


def expand_short_forms(level: Any) -> Any:
    """Return a level with its short forms `true`, `false`, their words `yes`, `on`, `no` and `off`,
    and `retrieval: auto` written out as mappings. A level is the value of `memory`, or one override
    in `models` or `resources`."""
    level = _read_switch(level)
    if isinstance(level, bool):
        return {"enabled": level}
    if isinstance(level, Mapping) and "retrieval" in level:
        retrieval = _read_switch(level["retrieval"])
        if isinstance(retrieval, bool) or retrieval == "auto":
            return {**level, "retrieval": {"enabled": retrieval}}
    return level


def _read_switch(value: Any) -> Any:
    return SWITCH_WORDS.get(value.lower(), value) if isinstance(value, str) else value
