"""Small memories for tests of the pure rules: each message is one word of its role and a size in
tokens."""

import hashlib
from collections.abc import Sequence

from msgspec.structs import replace

from om_proxy.memory.lifecycle.transitions import add_chunk
from om_proxy.memory.model import (
    EMPTY_CHAIN,
    MESSAGE_FRAMING_TOKENS,
    Item,
    Key,
    Memory,
    Message,
    Observation,
    Reflection,
    extend_chain,
    replace_log,
)

KEY = Key("tenant", "resource", "thread")


def item(role: str, text: str, calls: Sequence[str] = (), answers: str | None = None) -> Item:
    fp = hashlib.blake2b(f"{role}{text}{calls}{answers}".encode(), digest_size=16).digest()
    return Item(f'{{"role":"{role}","content":"{text}"}}'.encode(), role, fp, tuple(calls), answers)


def message(
    seq: int,
    chain: bytes,
    role: str,
    size: int,
    calls: Sequence[str] = (),
    answers: str | None = None,
) -> Message:
    """A message of `size` tokens in a prompt, framing included."""
    one = item(role, f"{role} {seq}", calls, answers)
    return Message(
        seq, one, extend_chain(chain, one.fp), size - MESSAGE_FRAMING_TOKENS, 1_000.0 + seq
    )


def transcript(
    *parts: tuple[str, int] | tuple[str, int, Sequence[str], str | None],
) -> tuple[Message, ...]:
    """Messages from (role, size) or (role, size, calls, answers), numbered from 1."""
    made: list[Message] = []
    for seq, part in enumerate(parts, 1):
        role, size, calls, answers = (*part, (), None)[:4] if len(part) == 2 else part
        made.append(
            message(seq, made[-1].chain if made else EMPTY_CHAIN, role, size, calls, answers)
        )
    return tuple(made)


def chat(turns: int, size: int) -> tuple[Message, ...]:
    """User and assistant in turn, `turns` of each, every message of `size` tokens."""
    return transcript(*[(role, size) for _ in range(turns) for role in ("user", "assistant")])


def memory(tail: Sequence[Message]) -> Memory:
    return Memory(key=KEY, tail=tuple(tail), next_seq=tail[-1].seq + 1 if tail else 1)


def chunk(
    of: Memory, last: int, tokens: int = 100, text: str = "* 🔴 (10:00) noted"
) -> Observation:
    """An observation that continues the memory's newest chunk through `last`."""
    messages = [m for m in of.tail if of.chunked_to < m.seq <= last]
    return Observation(
        id=0,
        after=of.chunked_to,
        last=last,
        chain=messages[-1].chain,
        text=text,
        tokens=tokens,
        source_tokens=sum(m.framed_tokens for m in messages),
        at=2_000.0,
    )


def with_log(of: Memory, *sizes: int) -> Memory:
    """The memory with a log of entries of these sizes before its tail, as if they covered earlier
    messages."""
    log = tuple(
        Observation(
            id=i,
            after=0,
            last=0,
            chain=EMPTY_CHAIN,
            text=f"entry {i}",
            tokens=n,
            source_tokens=4 * n,
            at=1.0,
        )
        for i, n in enumerate(sizes, 1)
    )
    return replace(replace_log(of, entries=log), next_id=len(sizes) + 1)


def chunked(tail_turns: int, size: int, *lasts: int) -> Memory:
    made = memory(chat(tail_turns, size))
    for last in lasts:
        made = add_chunk(made, chunk(made, last))
    return made


def reflection(of: Memory, tokens: int, entries: int | None = None) -> Reflection:
    return Reflection(
        generation=of.log.generation,
        sources=tuple(o.id for o in of.log.entries[:entries]),
        text="* 🔴 all",
        tokens=tokens,
        source_tokens=1,
        at=3.0,
    )
