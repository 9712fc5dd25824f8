"""Going back behind reflections whose past was not kept (`retention.generations`)."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.running import run_with_scripted_models
from tests.e2e.test_branches import REFLECTING, canary, converse, cut_back, words


async def test_taken_back_behind_what_was_kept(tmp_path: Path) -> None:
    """The log stays, gains one dated entry, and the prompt stays small; what was taken back is raw
    nowhere."""
    async with run_with_scripted_models(
        tmp_path, REFLECTING, more="retention: {generations: 1}"
    ) as run:
        chat = run.chat()
        await converse(run, chat, 0, 45, stream=False)
        before = await run.memory()
        assert before.log.generation >= 3
        assert len(await run.app.store.generations(before.key, before.log.generation)) <= 1
        assert before.log.entries[0].kind == "reflection"
        cut_back(chat, 3)
        _, receipt = await chat.say(words(50))
        after = await run.memory()
        assert [o.kind for o in after.log.entries][-1] == "note"
        assert after.coverage == after.log.entries[-1].last > 0
        assert receipt["status"] == "applied"
        assert int(receipt["tokens-sent"]) < int(receipt["observation-tokens"]) + 1_500
        sent = run.models.requests_to("scripted-actor")[-1]
        assert b"was taken back to an earlier point" in sent.body
        tail = sent.body[sent.body.index(b"Note from the system") :]
        assert not [n for n in range(3, 45) if canary(n).encode() in tail]
        await converse(run, chat, 51, 60, stream=False)  # and life goes on
        assert (await run.memory()).coverage > after.coverage
