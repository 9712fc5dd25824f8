"""The prompt around the tail, rendered once per state of the log."""

from __future__ import annotations

import re

import orjson
import pytest
from msgspec.structs import replace

from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.block_renderer import (
    MAX_RENDERED_BLOCKS,
    BlockRenderer,
    create_rendered_blocks,
)
from om_proxy.memory.lifecycle import edits, pins
from om_proxy.memory.model import Key, Memory, replace_log
from om_proxy.memory.prompt.context import ContextOptions, Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.settings.config import parse as settings_of
from om_proxy.wire.apis.registry import CHAT
from tests.memory.building import chat as transcript
from tests.memory.building import memory, with_log

NOON = 1_700_000_000.0  # 14 Nov 2023, 22:13 UTC
REQUEST = CHAT.parse_request(
    b'{"model":"m","messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"?"}]}'
)


def rendered(prompts: BlockRenderer) -> list[str]:
    """The threads whose blocks are kept, the one used least lately first."""
    keys = [key[0] for key in prompts._rendered]
    return [key.thread for key in keys if isinstance(key, Key)]


def of_thread(memory: Memory, number: int) -> Memory:
    return replace(memory, key=memory.key._replace(thread=str(number)))


def call(
    timezone: str = "UTC", layout: Layout = "blocks", options: ContextOptions = ContextOptions()
) -> MemoryContext:
    effective = settings_of(f"memory: {{timezone: {timezone}}}").effective("m", None)
    return MemoryContext(effective, layout=layout, context_options=options)


def noted(*entries: int) -> Memory:
    return replace(with_log(memory(transcript(1, 50)), *entries), render_date=NOON)


def pieces(of: Memory) -> list[Piece]:
    return [Piece(m.item.raw, m.item.role, (), None, m.tokens, m.seq, index=0) for m in of.tail]


def assembled(prompts: BlockRenderer, of: Memory, how: MemoryContext | None = None) -> bytes:
    how = how or call()
    texts = prompts.render(of, how)
    return CHAT.rewrite_body(REQUEST, texts.block, texts.hint, pieces(of), how.layout)


def contents(body: bytes) -> list[str]:
    return [message["content"] for message in orjson.loads(body)["messages"]]


def test_order() -> None:
    """Instructions, notes, hint, tail."""
    first, notes, hint, *tail = contents(assembled(BlockRenderer(), noted(10, 10)))
    assert first == "Be brief."
    assert "entry 1" in notes
    assert "entry 2" in notes
    assert "Tuesday, Nov" in hint
    assert tail == ["user 1", "assistant 2"]


def test_without_a_log_nothing_is_added() -> None:
    """A tail alone needs neither notes nor a hint, and costs nothing of ours."""
    bare = replace(memory(transcript(1, 50)), render_date=NOON)
    assert contents(assembled(BlockRenderer(), bare)) == ["Be brief.", "user 1", "assistant 2"]
    assert BlockRenderer().render(bare, call()) == ("", "", 0)


def test_rendered_once_per_state() -> None:
    """Nothing is rendered between two activations, whatever the tail."""
    prompts, of = BlockRenderer(), noted(10)
    first = assembled(prompts, of)
    ((_, block),) = prompts._rendered.items()
    longer = assembled(prompts, replace(of, tail=transcript(3, 50)))
    assert [one.text is block.text for _, one in prompts._rendered.items()] == [True]
    assert longer.startswith(first.removesuffix(b"]}"))


@pytest.mark.parametrize(
    ("after", "how"),
    [
        (replace(noted(10), render_date=NOON + 86_400), call()),
        (replace(noted(10), key=noted(10).key._replace(thread="other")), call()),
        (noted(10), call(options=ContextOptions(relative_time=False))),
        (noted(10), call(timezone="Asia/Tokyo")),
        (noted(10), call(timezone="Atlantic/Azores")),
    ],
    ids=[
        *(
            "another date",
            "another thread",
            "other options",
            "another day elsewhere",
        ),
        "another hour of the same day",
    ],
)
def test_rendered_anew(after: Memory, how: MemoryContext) -> None:
    """A change of what the block depends on makes another block."""
    prompts = BlockRenderer()
    assembled(prompts, noted(10))
    assembled(prompts, after, how)
    assert len(rendered(prompts)) == 2


def test_an_edited_entry_is_rendered_anew() -> None:
    """The text counts, not the number of entries."""
    prompts, of = BlockRenderer(), noted(10)
    assembled(prompts, of)
    edited = replace_log(of, entries=(replace(of.log.entries[0], text="corrected"),))
    assert "corrected" in contents(assembled(prompts, edited))[1]
    assert "entry 2" in contents(assembled(prompts, noted(10, 10)))[1]
    assert len(rendered(prompts)) == 1  # the older ones of a log are not kept


def test_what_is_kept_is_bounded() -> None:
    """The block used least lately goes first."""
    prompts, of = BlockRenderer(), noted(10)
    for number in range(MAX_RENDERED_BLOCKS):
        assembled(prompts, of_thread(of, number))
    assembled(prompts, of_thread(of, 0))  # now the newest
    assembled(prompts, of_thread(of, MAX_RENDERED_BLOCKS))
    kept = [*range(2, MAX_RENDERED_BLOCKS), 0, MAX_RENDERED_BLOCKS]
    assert rendered(prompts) == [str(number) for number in kept]


def test_their_bytes_are_bounded() -> None:
    """Few of the largest are kept, and always the newest."""
    max_bytes, repeated = 2**20, 5_000
    prompts, of = BlockRenderer(create_rendered_blocks(max_bytes)), noted(10)
    long = replace_log(
        of,
        entries=tuple(
            replace(o, text="* 🔴 (10:00) a long note " * repeated) for o in of.log.entries
        ),
    )
    for number in range(6):
        assembled(prompts, of_thread(long, number))
    kept = rendered(prompts)
    assert 1 <= len(kept) <= max_bytes // (4 * repeated * len("* 🔴 (10:00) a long note "))
    assert kept[-1] == "5"


@pytest.mark.parametrize(
    ("zone", "day"), [("UTC", "Tuesday, Nov"), ("Asia/Tokyo", "Wednesday, Nov")]
)
def test_the_date_is_the_user_s(zone: str, day: str) -> None:
    """Dates are told in the configured time zone."""
    hint = contents(assembled(BlockRenderer(), noted(10), call(timezone=zone)))[2]
    assert day.split(",", maxsplit=1)[0] in hint


def test_merged() -> None:
    """Notes and hint stand at the end of the client's own system message, for strict templates."""
    first, *tail = contents(assembled(BlockRenderer(), noted(10), call(layout="merged")))
    assert first.startswith("Be brief.")
    assert "entry 1" in first
    assert tail == ["user 1", "assistant 2"]


def test_the_hints_of_the_newest_entry_count() -> None:
    """Current task and suggested response stand after the observations; an entry that names no task
    keeps the older one."""
    prompts, of = BlockRenderer(), noted(10, 10)
    first, second = of.log.entries
    told = replace(
        replace_log(
            of, entries=(replace(first, task="plan the vans"), replace(second, suggestion="ask"))
        ),
        tail=of.tail[1:],
    )
    notes = contents(assembled(prompts, told))[1]
    assert (
        notes.index("</observations>")
        < notes.index("plan the vans")
        < notes.index("<suggested-response>\nask")
    )
    spoken = contents(assembled(prompts, replace(told, tail=of.tail)))[1]
    assert "plan the vans" in spoken
    assert "suggested-response" not in spoken  # the user has spoken since


def test_tokens_of_ours() -> None:
    """The log's own count, and a fair guess for the words around it."""
    block, hint, tokens = BlockRenderer().render(noted(1_000), call())
    around = len(block) + len(hint) - len("entry 1")
    assert tokens == 1_000 + around // 4


def test_a_withdrawn_note_leaves_no_trace() -> None:
    """Neither an empty heading nor a tag of its own, and the other notes stay as they were."""
    whole = noted(10, 10, 10)
    gone = edits.withdraw_entry(whole, 2, NOON)
    assert gone is not None
    gone = replace(gone, render_date=NOON)
    prompts = BlockRenderer()
    before, after = (contents(assembled(prompts, of))[1] for of in (whole, gone))
    assert after == before.replace("entry 2\n\n", "")
    assert after != before


def test_without_any_note_left_there_is_no_block() -> None:
    """The messages that the withdrawn notes covered do not come back: the actor is told that they
    are missing."""
    gone = replace(noted(10), coverage=1)
    changed = edits.withdraw_entry(gone, 1, NOON)
    assert changed is not None
    _, hint, *tail = contents(assembled(BlockRenderer(), replace(changed, render_date=NOON)))
    assert "not shown" in hint
    assert "<observations>" not in hint
    assert len(tail) == len(gone.tail)


def pinned(of: Memory, *texts: str) -> Memory:
    for text in texts:
        of = pins.add_pin(of, text, 5, NOON, "own")
    return of


def test_pinned_notes_come_first() -> None:
    """Under a heading of their own, before the log; everything behind them stays as it was."""
    prompts = BlockRenderer()
    plain = contents(assembled(prompts, noted(10)))
    with_pins = contents(assembled(prompts, pinned(noted(10), "Likes tea.", "Lives in Kraków.")))
    assert with_pins[0] == plain[0]
    assert with_pins[2:] == plain[2:]
    heading = "<pinned-notes>\nLikes tea.\n\nLives in Kraków.\n</pinned-notes>\n\n"
    about, _, log = with_pins[1].partition(heading)
    assert "`pinned-notes` were written by hand" in about
    assert plain[1].endswith(log)
    assert log.startswith("<observations>")


def test_pinned_notes_need_no_others() -> None:
    """The actor is shown the whole conversation and is not told that it is longer."""
    _, block, hint, *tail = contents(assembled(BlockRenderer(), pinned(noted(), "Likes tea.")))
    assert "<observations>" not in block
    assert "Likes tea." in block
    assert "no longer shown" not in block
    assert "longer" not in hint
    assert len(tail) == 2


def test_a_pinned_note_cannot_end_its_heading() -> None:
    """Tags of ours and of chat templates are escaped, however they are joined."""
    odd = pinned(noted(10), "a <", "/pinned-notes> <observations> <|im_end|>")
    block = contents(assembled(BlockRenderer(), odd))[1]
    assert block.count("</pinned-notes>") == block.count("<observations>") == 1
    assert "<|im_end|>" not in block


def test_another_pin_is_another_block() -> None:
    """Also if only its text differs."""
    prompts = BlockRenderer()
    one, other = (
        contents(assembled(prompts, replace(pinned(noted(10), text), render_date=NOON)))[1]
        for text in ("Likes tea.", "Likes mint.")
    )
    assert one.replace("Likes tea", "Likes mint") == other


def test_ranges_are_shown_where_the_tool_is_offered() -> None:
    """Each entry names its messages, and the tokens of the lines count. Switching changes the
    prompt once; another tool's name is another block."""
    prompts, of = BlockRenderer(), noted(10, 10)
    first, second = of.log.entries
    of = replace_log(of, entries=(replace(first, last=9), replace(second, after=9, last=12)))
    off = prompts.render(of, call())
    shown = prompts.render(of, call(), recall_tool="recall")
    assert re.findall(r"(?m)^\[m\d+-m\d+\]$", shown.block) == ["[m1-m9]", "[m10-m12]"]
    assert shown.tokens - off.tokens == pytest.approx(
        len(shown.block) / 4 - len(off.block) / 4, abs=1
    )
    assert "call om_recall." in prompts.render(of, call(), recall_tool="om_recall").block
    assert prompts.render(of, call()) == off
