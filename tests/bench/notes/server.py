"""The memory model's server for the proxy: hands each prompt to whoever answers, and remembers the
calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import httpx
import orjson

from om_proxy.testing import loopback
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.testing.scripted import message_text
from tests.bench.notes.calls import MemoryCall, Text, kind_of

KEEP_ALIVE_EVERY_S = 20.0

Ask = Callable[[str, Sequence[Text]], Awaitable[str]]  # kind and prompt → answer


class NotesServer:
    """An OpenAI-compatible server. `failure` holds what kept a call from an answer: the run cannot
    go on then."""

    def __init__(self, ask: Ask, *, count: Callable[[str], int]) -> None:
        self.calls: list[MemoryCall] = []
        self.failure: Exception | None = None
        self._ask = ask
        self._count = count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = orjson.loads(await loopback.read_body(receive))
        prompt = tuple(
            (str(message["role"]), message_text(message)) for message in request["messages"]
        )
        kind = kind_of(prompt)
        await loopback.start_response(send, 200, b"application/json")
        asking = asyncio.ensure_future(self._ask(kind, prompt))
        try:
            await _keep_alive(asking, send)
            answer = asking.result()
        except Exception as exc:  # whatever it is, it ends the run: see `failure`
            self.failure = exc
            # no refusal: a call without some parts would get no other answer
            error = {"message": str(exc), "code": 401}
            await loopback.end_response(send, orjson.dumps({"error": error}))
            return
        finally:
            asking.cancel()  # the proxy gave up
        self.calls.append(MemoryCall(kind, prompt, answer))
        await loopback.end_response(
            send, orjson.dumps(self._completion(request["model"], prompt, answer))
        )

    def _completion(self, model: str, prompt: Sequence[Text], answer: str) -> dict[str, Any]:
        read, written = sum(self._count(text) for _, text in prompt), self._count(answer)
        choice = {
            "index": 0,
            "message": {"role": "assistant", "content": answer},
            "finish_reason": "stop",
        }
        usage = {
            "prompt_tokens": read,
            "completion_tokens": written,
            "total_tokens": read + written,
        }
        return {
            "id": "n",
            "object": "chat.completion",
            "created": 1,
            "model": model,
            "choices": [choice],
            "usage": usage,
        }


async def _keep_alive(asking: asyncio.Future[str], send: Send) -> None:
    """Send a blank from time to time, which JSON allows: an answer may take longer than a silent
    connection lives."""
    while not asking.done():
        await asyncio.wait({asking}, timeout=KEEP_ALIVE_EVERY_S)
        if not asking.done():
            await send({"type": "http.response.body", "body": b" ", "more_body": True})


class Address:
    """A model behind any OpenAI-compatible address."""

    def __init__(self, base_url: str, model: str, api_key: str | None, *, timeout_s: float) -> None:
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._model = model
        self._headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout_s = timeout_s

    async def answer(self, prompt: Sequence[Text]) -> str:
        """In the model's own settings. Raises ValueError for an answer that is cut off or none, and
        httpx's errors."""
        body = {
            "model": self._model,
            "messages": [{"role": role, "content": text} for role, text in prompt],
        }
        async with httpx.AsyncClient(timeout=self._timeout_s) as client:
            response = await client.post(self._url, json=body, headers=self._headers)
        if response.is_error:
            raise ValueError(f"{self._url} answered {response.status_code}: {response.text[:300]}")
        choice = response.json()["choices"][0]
        if choice.get("finish_reason") not in (None, "stop"):
            raise ValueError(
                f"{self._model} ended with {choice['finish_reason']!r}: the answer is not whole"
            )
        if not isinstance(content := choice["message"].get("content"), str):
            raise ValueError(f"{self._model} answered without a text")
        return content


__all__ = ["Address", "Ask", "NotesServer"]
