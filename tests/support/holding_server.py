"""A scripted model server that holds its responses: a request may name one that it follows, or items
of it. What it does not hold it refuses."""

from __future__ import annotations

from typing import Any

from om_proxy.testing import responses_form
from om_proxy.testing.chat_form import Form, Message, Stream, Turn
from om_proxy.testing.loopback import Receive, Scope, Send
from om_proxy.testing.scripted import ScriptedServer

Json = dict[str, Any]


class HoldingForm:
    """The Responses API of a server that keeps what was said."""

    REQUEST_NAME = responses_form.REQUEST_NAME
    build_error = staticmethod(responses_form.build_error)

    def __init__(self, *, reasons: bool) -> None:
        self.past: dict[str, list[Json]] = {}  # of each response, with itself
        self.items: dict[str, Json] = {}
        self._reasons = reasons

    def read_messages(self, request: Message) -> list[Message]:
        whole = {**request, "input": self.expand(request)}
        shown = [item for item in whole["input"] if item.get("type") != "reasoning"]
        return responses_form.read_messages({**whole, "input": shown})

    def expand(self, request: Message) -> list[Json]:
        """Return all that the request stands for. Raise KeyError for what is not held."""
        sent = request["input"]
        listed = [{"role": "user", "content": sent}] if isinstance(sent, str) else sent
        previous = request.get("previous_response_id")
        past = self.past[previous] if previous else []
        refers = ("item_reference", None)
        return [
            *past,
            *(
                self.items[item["id"]]
                if item.get("type") in refers and "role" not in item
                else item
                for item in listed
            ),
        ]

    def build_reply(self, turn: Turn) -> Json:
        return self._hold(turn, responses_form.build_reply(turn))

    def build_stream(self, turn: Turn) -> Stream:
        self._hold(turn, responses_form.build_reply(turn))
        return responses_form.build_stream(turn)

    def _hold(self, turn: Turn, reply: Json) -> Json:
        if self._reasons:
            thought = {"id": f"rs_{turn.number}", "type": "reasoning", "summary": []}
            reply["output"].insert(0, thought)
        self.items |= {item["id"]: item for item in reply["output"]}
        self.past[reply["id"]] = [*self.expand(turn.request), *reply["output"]]
        return reply


class HoldingServer(ScriptedServer):
    """The server. `reasons`: each of its replies in one piece begins with a thought that only the
    server can read."""

    def __init__(self, script: Any = None, *, reasons: bool = False, **more: Any) -> None:
        super().__init__(script, **more)
        self.held = HoldingForm(reasons=reasons)

    async def _answer(self, scope: Scope, receive: Receive, send: Send, form: Form) -> None:
        own: Form = self.held if form is responses_form else form
        await super()._answer(scope, receive, send, own)
