"""Chat as an ordinary client: it keeps the conversation, sends all of it every time, and does not
know that there is a memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import msgspec

from om_proxy.cli.demo.figures import ACTOR_NAME
from om_proxy.cli.demo.story import INSTRUCTIONS, Turn
from om_proxy.common.errors import OmError
from om_proxy.wire.apis.registry import CHAT

# one request in so many is streamed
STREAMED_EVERY = 2

Message = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ReplyWithReceipt:
    """A reply, and the receipt that came with it: the `x-om-*` headers, without their prefix."""

    message: Message
    receipt: Mapping[str, str]


class Client:
    """A chat client. With memory and without, it differs only in its `headers`."""

    def __init__(
        self, http: httpx.AsyncClient, tools: Sequence[Message], headers: Mapping[str, str]
    ) -> None:
        self.history: list[Message] = [{"role": "system", "content": INSTRUCTIONS}]
        self._http = http
        self._tools = tools
        self._headers = headers
        self._request_count = 0

    async def say(self, turn: Turn) -> list[ReplyWithReceipt]:
        """Send the user's text, and the results of tools as long as the model calls them. Return
        every reply."""
        results = {m["tool_call_id"]: m for m in turn.follows if m["role"] == "tool"}
        self.history.append({"role": "user", "content": turn.said})
        replies = []
        while True:
            reply = await self.complete(self.history)
            replies.append(reply)
            self.history.append(reply.message)
            calls = reply.message.get("tool_calls") or ()
            if not calls:
                return replies
            self.history.extend(results[call["id"]] for call in calls)

    async def complete(self, messages: Sequence[Message]) -> ReplyWithReceipt:
        """Send one request and return the reply. Raises OmError unless the answer is a 200 with a
        complete message."""
        self._request_count += 1
        stream = self._request_count % STREAMED_EVERY == 0
        body = {
            "model": ACTOR_NAME,
            "messages": list(messages),
            "tools": self._tools,
            "stream": stream,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        reader = CHAT.create_reply_reader(stream)
        async with self._http.stream(
            "POST", "/chat/completions", json=body, headers=dict(self._headers)
        ) as response:
            async for part in response.aiter_bytes():
                reader.feed(part)
        reply = reader.finish()
        if response.status_code != httpx.codes.OK or reply.message is None:
            raise OmError(
                f"the demo's request was answered {response.status_code}; run it again with a log to see why"
            )
        receipt = {
            name.removeprefix("x-om-"): value
            for name, value in response.headers.items()
            if name.startswith("x-om-")
        }
        return ReplyWithReceipt(msgspec.json.decode(reply.message), receipt)
