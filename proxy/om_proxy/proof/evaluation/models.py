"""Models of a run: behind an address, by litellm's name, or scripted ones that need neither key nor
network."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import httpx

from om_proxy.agents.model_access.litellm_adapter import import_litellm
from om_proxy.agents.model_access.targets import OPENAI_BASE_URL
from om_proxy.agents.models import Price, create_encoder, find_price
from om_proxy.common.errors import OmError, UsageError
from om_proxy.proof.scripted_notes import ScriptedNotes

KEY_VARIABLE = "OPENAI_API_KEY"
TIMEOUT_S = 600.0
REFUSED_STATUSES = frozenset((400, 401, 403, 404, 413, 422))
SCRIPTED_PREFIX = "script:"
WRONG_REPLY = "Quite certainly a purple giraffe."
UNSURE_REPLY = "I don't know."

Body = Mapping[str, Any]  # of a chat request
ScriptedAnswer = Callable[[Body, str], Awaitable[str]]  # from a request and the right answer


class ModelUnavailable(OmError):
    """A model cannot be asked now."""


class ModelRefused(OmError):
    """A model's server refused a call; to ask again would change nothing."""


class Model(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def price(self) -> Price | None: ...

    async def complete(self, body: Body, gold: str) -> dict[str, Any]:
        """Return a chat completion. `gold`: the right answer, which only scripted models read.

        Raises ModelUnavailable, ModelRefused, or httpx's errors of the transport, after which the
        call may be tried again."""


@dataclass(frozen=True, slots=True)
class AddressedModel:
    """A model behind an OpenAI-compatible address."""

    name: str
    base_url: str
    api_key: str | None
    price: Price | None

    async def complete(self, body: Body, _gold: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        async with httpx.AsyncClient(timeout=TIMEOUT_S) as client:
            response = await client.post(
                f"{self.base_url}/chat/completions",
                json={**body, "model": self.name},
                headers=headers,
            )
        if response.status_code in REFUSED_STATUSES:
            raise ModelRefused(
                f"{self.base_url} refused {self.name} with {response.status_code}: see that its"
                f" name is right and that {KEY_VARIABLE} is its key"
            )
        if response.is_error:
            raise ModelUnavailable(f"status {response.status_code}")
        answer: dict[str, Any] = response.json()
        return answer


@dataclass(frozen=True, slots=True)
class ScriptedModel:
    """A model that answers by a rule."""

    name: str
    answer: ScriptedAnswer
    price: Price | None = None

    async def complete(self, body: Body, gold: str) -> dict[str, Any]:
        text = await self.answer(body, gold)
        count = create_encoder("")
        read = sum(count(str(message["content"])) for message in body["messages"])
        written = count(text)
        return {
            "id": "scripted",
            "object": "chat.completion",
            "created": 0,
            "model": self.name,
            "choices": [
                {
                    "index": 0,
                    "message": {"role": "assistant", "content": text},
                    "finish_reason": "stop",
                }
            ],
            "usage": {
                "prompt_tokens": read,
                "completion_tokens": written,
                "total_tokens": read + written,
            },
        }


@dataclass(frozen=True, slots=True)
class LiteLLMModel:
    """A model by the name that litellm has for it."""

    name: str
    price: Price | None

    async def complete(self, body: Body, _gold: str) -> dict[str, Any]:
        litellm = await asyncio.to_thread(import_litellm)
        try:
            response = await litellm.acompletion(
                **{**body, "model": self.name, "timeout": TIMEOUT_S, "num_retries": 0}
            )
        except Exception as exc:  # each provider's client has exceptions of its own
            if getattr(exc, "status_code", 500) in REFUSED_STATUSES:
                raise ModelRefused(f"{self.name} refused a call ({type(exc).__name__})") from None
            raise ModelUnavailable(type(exc).__name__) from None
        answer: dict[str, Any] = response.model_dump()
        return answer


def parse_model(spec: str, price: Price | None = None) -> Model:
    """Read `NAME@URL`, `script:NAME`, a name of OpenAI, or litellm's `provider/NAME`. `price`: in
    place of the one in the price list."""
    if spec.startswith(SCRIPTED_PREFIX):
        answer = SCRIPTED_ANSWERS.get(spec.removeprefix(SCRIPTED_PREFIX))
        if answer is None:
            raise UsageError(f"{spec}: the scripted models are {', '.join(SCRIPTED_ANSWERS)}")
        return ScriptedModel(spec, answer, price)
    name, separator, url = spec.partition("@")
    if separator or "/" not in name:
        base_url = url.rstrip("/") or OPENAI_BASE_URL
        if not base_url.startswith(("http://", "https://")):
            raise UsageError(f"{spec}: write NAME@http://HOST:PORT/v1")
        key = os.environ.get(KEY_VARIABLE)
        return AddressedModel(name, base_url, key, price or find_price(name, base_url))
    return LiteLLMModel(name, price or find_price(name))


async def _answer_gold(_: Body, gold: str) -> str:
    return gold


async def _judge_by_words(body: Body, gold: str) -> str:
    """Say yes if the reply holds the right answer, word for word."""
    prompt = str(body["messages"][-1]["content"])
    reply = prompt.partition("Model Response: ")[2].rpartition("\n\n")[0]
    return "yes" if gold.lower() in reply.lower() else "no"


async def _answer_wrong(_: Body, _gold: str) -> str:
    return WRONG_REPLY


async def _write_notes(body: Body, _gold: str) -> str:
    """Keep every line, word for word."""
    answer = await ScriptedNotes(1.0, create_encoder(""))(body)
    return str(answer["content"])


SCRIPTED_ANSWERS: Mapping[str, ScriptedAnswer] = {
    "gold": _answer_gold,
    "wrong": _answer_wrong,
    "judge": _judge_by_words,
    "notes": _write_notes,
}
