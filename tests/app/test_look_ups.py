"""What looks up original messages asks the index, and reads what the index may not hold."""

from __future__ import annotations

import pytest

from om_proxy.agents.models import TokenCounter
from om_proxy.app.look_ups import create_look_up_performer
from om_proxy.memory.recall.arguments import LookUp
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.settings.config import parse
from tests.engine.recall.stored_conversations import CURRENT_KEY, open_conversations
from tests.support.policies import build_policies


@pytest.mark.parametrize(
    ("settings", "indexed"),
    [
        ("memory: {retrieval: true}", 2),
        ("", 2),
        ("memory: {retrieval: false}", 0),
        ("{storage: {search: true}, memory: {retrieval: false}}", 2),
        ("{storage: {search: false}, memory: {retrieval: true}}", 0),
    ],
)
async def test_a_search_right_after_an_import(settings: str, indexed: int) -> None:
    """It finds what the background has not indexed yet. It indexes what the settings say."""
    async with open_conversations() as conversations:
        await conversations.add(CURRENT_KEY, ["a violin", "a viola"])
        performer = create_look_up_performer(
            conversations.memories, build_policies(parse(settings)), TokenCounter()
        )
        found = await performer.find(
            [CURRENT_KEY],
            LookUp(mode="search", query="violin"),
            limit=5,
            passage_filter=PassageFilter(),
        )
        assert (found.total, found.share_read) == (2, 1.0)
        assert found.messages[0][1].seq == 1
        assert (await conversations.store.check_index()).passages == indexed
