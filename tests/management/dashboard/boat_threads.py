"""Conversations about boats, which the dashboard shows.

Without a key they are threads of a loopback's caller, whom the dashboard asks for nothing.
"""

from __future__ import annotations

from om_proxy.settings.identity.naming import encode_name
from tests.e2e.running import Chat, Running

ADMIN_TOKEN = "a-long-admin-token"
ADMIN_TOKEN_SETTINGS = f"server: {{admin_token: {ADMIN_TOKEN}}}"
# notes that no test condenses
LONG_LOG_MEMORY = (
    "observation: {message_tokens: 1200, buffer_tokens: 300, block_timeout: 300ms}, "
    "reflection: {observation_tokens: 9000}"
)
BOAT_THREAD_PLACE = "#/thread/local/boat/boat"


async def talk_of_piers(
    run: Running,
    turns: int,
    thread: str = "boat",
    resource: str = "",
    model: str = "scripted-actor",
) -> Chat:
    chat = run.chat(encode_name(thread))
    chat.model = model
    del chat.headers["authorization"]
    if resource:
        chat.headers["x-om-resource"] = encode_name(resource)
    await go_on(chat, turns)
    return chat


async def go_on(chat: Chat, turns: int = 1) -> None:
    """Send more messages, each after the work that the one before made due."""
    run = chat.running
    for _ in range(turns):
        number = len(chat.history) // 2 + 1
        await chat.say(f"Boat {number} lies at pier {number + 100}. {'And so on it goes. ' * 12}")
        await run.app.background.wait_idle()
        run.clock.now += 60
