"""Whether the client's own request may go out in place of memory's prompt."""

from __future__ import annotations

import pytest

from om_proxy.memory.prompt.tail import holds_conversation
from tests.memory.clients import Thread, build_thread, chat

LONG = "u1 a1 u2 cx rx a2"


@pytest.mark.parametrize(
    ("stored", "sent", "holds"),
    [
        pytest.param("", "u1", True, id="the first request"),
        pytest.param("u1", "u1", True, id="the first request again"),
        pytest.param(LONG, LONG + " u3", True, id="the whole history"),
        pytest.param(LONG, "u1 u2 u3", True, id="the user's messages only"),
        pytest.param(LONG, "u1 a1 u4", True, id="an edit"),
        pytest.param(LONG, "a2 u3", True, id="a window"),
        pytest.param(LONG, "u8 a8 u9", True, id="another history"),
        pytest.param(LONG, "u3", False, id="the newest message"),
        pytest.param(LONG + " u3", "u3", False, id="the newest message again"),
        pytest.param(LONG, "u3 u4", False, id="the newest two"),
        pytest.param("u1 a1 u2 cx", "rx", False, id="the newest results"),
        pytest.param("u1 a1 u2 cx", "cx rx", False, id="the newest results with their call"),
    ],
)
def test_the_request_holds_the_conversation(stored: str, sent: str, holds: bool) -> None:
    """It does if it shows anything before what it asks, or nothing came before."""
    thread = build_thread(stored) if stored else Thread()
    verdict, history, _ = thread.ask(chat(sent))
    assert holds_conversation(thread.projected(verdict, history), history) is holds
