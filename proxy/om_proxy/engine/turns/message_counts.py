"""Count messages for a turn. A count that fails gives way to an estimate: it stops no turn."""

from __future__ import annotations

from collections.abc import Mapping

from om_proxy.agents.models import TokenCounter
from om_proxy.memory.model import Key
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.observability.facts import Facts


async def count_messages(
    token_counter: TokenCounter, facts: Facts, key: Key, raws: Mapping[int, bytes], model: str
) -> tuple[Mapping[int, int], str]:
    """Return the payload tokens of each message by its key in `raws`, and the name of the encoding.
    Without a message, or of estimates, it is empty: these are counted again after the reply."""
    if not raws:
        return {}, ""

    async def count() -> tuple[Mapping[int, int], str]:
        return await token_counter.count(raws, model), token_counter.encoding(model)

    counted = await facts.await_extra("tokens", key, None, count)
    if counted is not None:
        return counted
    return {n: estimate_tokens(raw.decode("utf-8", "replace")) for n, raw in raws.items()}, ""
