"""The prompt for a memory model, its answer, and the ways to reach a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from om_proxy.common.apis import ApiName
from om_proxy.memory.notes.cut_off import Finish
from om_proxy.memory.token_prices import Usage

Via = Literal["direct", "litellm"]
NO_USAGE = Usage()


@dataclass(frozen=True, slots=True)
class Image:
    """A picture shown to the model: a `data:` or https URL. Its repr shows none of it."""

    url: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Prompt:
    """A system message, then one user message of texts and images in order."""

    system: str = field(repr=False)
    user: tuple[str | Image, ...] = field(repr=False)
    temperature: float | None = None  # None: the model's own
    max_output_tokens: int | None = None  # None: the model's own
    reasoning_effort: str | None = None  # None: the model's own
    # the operator's members of the request
    extra_body: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """A model's answer. All figures of `usage` are 0 if the server reports none. `finish`: how the
    model ended the answer, as far as the server says."""

    text: str = field(repr=False)
    model: str
    usage: Usage = NO_USAGE
    finish: Finish = "unknown"


@dataclass(frozen=True, slots=True)
class Target:
    """A model and the way to it. The credential (`headers`, `api_key`) is kept in memory only, and
    shown in no repr."""

    model: str  # as the server knows it (direct), or a litellm name
    via: Via = "direct"
    # with its version, as in OpenAI's SDKs; None: the provider's own
    base_url: str | None = None
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    api_key: str | None = field(default=None, repr=False)
    # of the request whose model is inherited: the query of its address, and members of its body,
    # each with its JSON, that say where its words may go
    query: bytes = field(default=b"", repr=False)
    members: tuple[tuple[str, bytes], ...] = field(default=(), repr=False)
    max_retries: int = 2  # while the model is busy; retries.py limits the tries of a whole list
    # whether the server may not know the model: it was chosen by a list of names
    is_guess: bool = False
    api: ApiName = "chat"  # that the server is asked by


class LLM(Protocol):
    """A way to ask a model once: `ModelCaller` retries."""

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        """Return the model's answer. Raises ModelBusy (worth another try), PromptTooLong or
        ModelError. Their texts never quote prompt or answer."""


class Routed:
    """The way that asks each target by the target's own way."""

    def __init__(self, direct: LLM, litellm: LLM) -> None:
        self._ways: dict[Via, LLM] = {"direct": direct, "litellm": litellm}

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        return await self._ways[target.via].complete(target, prompt)


class Abilities(Protocol):
    """A model's limits and abilities (agents/models/price_list.py). None: not known."""

    @property
    def max_output(self) -> int | None: ...
    @property
    def takes_images(self) -> bool | None: ...
    @property
    def takes_temperature(self) -> bool | None: ...
    @property
    def thinks(self) -> bool | None: ...


class ModelSettings(Protocol):
    """`observation.model_settings` and `reflection.model_settings`."""

    @property
    def temperature(self) -> float | None: ...
    @property
    def max_output_tokens(self) -> int | None: ...
    @property
    def reasoning_effort(self) -> str | None: ...
    @property
    def extra_body(self) -> Mapping[str, Any]: ...
