"""What holds of a prompt of any API, whichever API each stored message came by, wherever the notes end
and whatever of the conversation the client sends."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any, NamedTuple

import orjson
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.memory.prompt.context import Layout
from om_proxy.memory.prompt.tail import Piece
from om_proxy.wire.apis.registry import get_api, rewrite_body
from tests.support.published_apis import find_disorder
from tests.support.three_apis import APIS, Api, Json, read_prompt, write_body

KEY = b"k" * 32
TOOL = {"function": {"name": "n", "parameters": {"type": "object"}}}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
LONG_ID = "call:" + "x" * 70  # no id for two of the three


class Talk(NamedTuple):
    messages: list[Json]  # each one unit, whatever the API
    starts: list[int]  # of turns: a tail or a request may begin there


@st.composite
def talks(draw: st.DrawFn) -> Talk:
    messages: list[Json] = []
    starts: list[int] = []
    has_long_ids = draw(st.booleans())
    for turn in range(draw(st.integers(1, 4))):
        starts.append(len(messages))
        text = f"<question {turn}>"
        shown = draw(st.booleans())
        content: Any = [{"type": "text", "text": text}, PNG] if shown else text
        messages.append({"role": "user", "content": content})
        for step in range(draw(st.integers(0, 2))):
            count = draw(st.integers(1, 3))
            ids = [f"{LONG_ID if has_long_ids else 'c'}{turn}_{step}_{n}" for n in range(count)]
            calls = [
                {
                    "id": i,
                    "type": "function",
                    "function": {"name": "n", "arguments": f'{{"i":"{i}"}}'},
                }
                for i in ids
            ]
            said = f"<look {turn} {step}>" if draw(st.booleans()) else None
            messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            messages += [{"role": "tool", "tool_call_id": i, "content": f"<of {i}>"} for i in ids]
        messages.append({"role": "assistant", "content": f"<answer {turn}>"})
    starts.append(len(messages))
    messages.append({"role": "user", "content": "<what is asked>"})
    return Talk(messages, starts)


class Case(NamedTuple):
    api: Api  # of the request
    cut: int  # the first unit that the notes do not cover
    first_sent: int
    stored_by: list[Api]  # of each unit
    layout: Layout
    is_marked: bool  # by cache marks on the newest messages that the client sends


@st.composite
def cases(draw: st.DrawFn, talk: Talk) -> Case:
    cut, first_sent = draw(st.sampled_from(talk.starts)), draw(st.sampled_from([0, *talk.starts]))
    stored_by: list[Api] = [draw(st.sampled_from(APIS)) for _ in talk.messages]
    layout = draw(st.sampled_from(("blocks", "merged")))
    api, is_marked = draw(st.sampled_from(APIS)), draw(st.booleans())
    return Case(api, cut, first_sent, stored_by, layout, is_marked)


def encode(api: Api, messages: list[Json], *, is_marked: bool = False) -> bytes:
    system = {"role": "system", "content": "be kind"}
    body = write_body(api, [system, *messages], model="m", tools=[TOOL])
    if api == "responses":
        body["input"] = list(add_reasoning(body["input"]))
    if api == "messages":
        add_thinking(body["messages"])
        listed = [m["content"][-1] for m in body["messages"] if isinstance(m["content"], list)]
        for block in listed[-3:] if is_marked else ():
            block["cache_control"] = {"type": "ephemeral"}
    return orjson.dumps(body)


def add_reasoning(items: list[Json]) -> Iterator[Json]:
    """Yield the items, and before each step that calls tools what the model thought."""
    for is_step, group in groupby(items, is_of_model):
        step = list(group)
        calls = [item["call_id"] for item in step if "call_id" in item]
        if is_step and calls:
            name = f"rs_{calls[0]}"
            yield {"type": "reasoning", "id": name, "summary": [], "encrypted_content": name}
        yield from step


def is_of_model(item: Json) -> bool:
    return item.get("role") == "assistant" or item.get("type") in ("reasoning", "function_call")


def add_thinking(messages: list[Json]) -> None:
    """Put what the model thought before the blocks of each message that calls tools."""
    for blocks in list_steps(messages):
        name = next(block["id"] for block in blocks if block["type"] == "tool_use")
        blocks.insert(0, {"type": "thinking", "thinking": "hm", "signature": f"S{name}"})


def list_steps(messages: list[Json]) -> list[list[Json]]:
    """List the blocks of the messages that call tools."""
    said = [m["content"] for m in messages if isinstance(m["content"], list)]
    return [blocks for blocks in said if any(block["type"] == "tool_use" for block in blocks)]


def list_thoughtful_steps(api: Api, body: Json) -> list[Any]:
    """List the steps that begin with a thought, each with all that it holds."""
    if api == "responses":
        groups = [list(step) for is_step, step in groupby(body["input"], is_of_model) if is_step]
        return [step for step in groups if any(item.get("type") == "reasoning" for item in step)]
    said = [m["content"] for m in body["messages"] if isinstance(m["content"], list)]
    return [step for step in said if any(block["type"] == "thinking" for block in step)]


def write_prompt(talk: Talk, case: Case) -> bytes:
    """Write the prompt of a client that sends what is from `first_sent` on; the rest of the tail is
    stored."""
    whole = {api: get_api(api).parse_request(encode(api, talk.messages)) for api in APIS}
    assert {len(request.messages) for request in whole.values()} == {len(talk.messages)}
    request = get_api(case.api).parse_request(
        encode(case.api, talk.messages[case.first_sent :], is_marked=case.is_marked)
    )
    pieces = []
    for unit in range(case.cut, len(talk.messages)):
        is_sent = unit >= case.first_sent
        api = case.api if is_sent else case.stored_by[unit]
        item = get_api(api).read_item(whole[api].messages[unit], KEY)
        index = unit - case.first_sent if is_sent else -1
        calls, answers = item.calls, item.answers
        pieces.append(Piece(item.raw, item.role, calls, answers, 1, unit + 1, index, api=api))
    return rewrite_body(request, "<block>", "<hint>", pieces, case.layout)


def summarize(messages: list[Json]) -> list[tuple[str, str, int]]:
    """Say of each message its role, its texts and how many calls it makes."""
    said = []
    for message in messages:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"text": content or ""}]
        shown = [part for part in parts if part.get("type") != "thinking"]
        texts = "".join(part.get("text", "[picture]") for part in shown)
        said.append((message["role"], texts, len(message.get("tool_calls") or ())))
    return said


def list_conversation(api: Api, body: bytes) -> list[tuple[str, str, int]]:
    """List what a prompt says beside instructions and memory's texts."""
    prompt = summarize(read_prompt(api, body))
    return [
        (role, text.removeprefix("<block>\n\n<hint>"), calls)
        for role, text, calls in prompt
        if role not in ("system", "developer") and text not in ("<hint>", "<block>")
    ]


@given(talks(), st.data())
def test_a_prompt_says_the_tail_in_the_order_of_its_api(talk: Talk, data: st.DataObject) -> None:
    """Nothing is lost, nothing stands twice, and each result is with its call."""
    case = data.draw(cases(talk))
    body = write_prompt(talk, case)
    said = list_conversation(case.api, body)
    wanted = summarize(talk.messages[case.cut :])
    if case.api != "chat":
        assert find_disorder(case.api, orjson.loads(body)) is None
    assert [text for _, text, _ in said] == [text for _, text, _ in wanted]
    assert [role for role, _, _ in said] == [role for role, _, _ in wanted]
    assert [calls for _, _, calls in said] == [calls for _, _, calls in wanted]


@given(talks(), st.data())
def test_thoughts_are_whole_or_absent(talk: Talk, data: st.DataObject) -> None:
    """Each stands with all of its step, if that came by this API; no other has one."""
    case = data.draw(cases(talk).filter(lambda case: case.api != "chat"))
    came_by = case.stored_by[: case.first_sent] + [case.api] * len(talk.messages)
    own = [
        message
        for unit, message in enumerate(talk.messages)
        if unit >= case.cut and came_by[unit] == case.api and "tool_calls" in message
    ]
    written = orjson.loads(write_prompt(talk, case._replace(is_marked=False)))
    expected = [
        step
        for message in own
        for step in list_thoughtful_steps(case.api, orjson.loads(encode(case.api, [message])))
    ]
    assert list_thoughtful_steps(case.api, written) == expected


@given(talks(), st.data())
def test_what_is_asked_is_last_and_all_other_members_stay(talk: Talk, data: st.DataObject) -> None:
    case = data.draw(cases(talk))
    asked = talk.messages[case.first_sent :]
    sent = orjson.loads(encode(case.api, asked, is_marked=case.is_marked))
    written = orjson.loads(write_prompt(talk, case))
    member = "input" if case.api == "responses" else "messages"
    assert written[member][-1] == sent[member][-1]
    changed = {name for name in written.keys() | sent.keys() if written.get(name) != sent.get(name)}
    assert changed <= {member, *(() if case.api == "chat" else ("system", "instructions"))}


@given(talks(), st.data())
def test_the_beginning_stays_between_two_activations(talk: Talk, data: st.DataObject) -> None:
    """Of a client that sends its newest message: what stands before it in one prompt begins the next
    one, whichever API the messages came by."""
    # the client's own marks move from one message to the next
    case = data.draw(cases(talk))._replace(is_marked=False)
    later, earlier = len(talk.messages) - 1, talk.starts[-2]
    cut = data.draw(st.sampled_from(talk.starts[:-1]))
    member = "input" if case.api == "responses" else "messages"
    now, then = (
        orjson.loads(
            write_prompt(
                Talk(talk.messages[: first + 1], []), case._replace(cut=cut, first_sent=first)
            )
        )
        for first in (earlier, later)
    )
    before = now[member][:-1]
    assert then[member][: len(before)] == before
    assert {**then, member: 0} == {**now, member: 0}
