"""Which requests are offered the tool, byte for byte at the model server
(docs/contributing/recall.md#offered). `offer: always` changes no message, so all else must be the
client's bytes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from itertools import count, pairwise
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from om_proxy.wire.apis.chat.look_ups.recall_tool import write_tool
from tests.e2e.previewing import list_message_bytes
from tests.e2e.raw_upstream import ProxyUnderTest, run_with_raw_upstream
from tests.support.raw_client import RawResponse
from tests.support.upstream_server import Call, Script, script_answer
from tests.wire.apis.chat.look_ups import test_whole_splice as whole

pytestmark = pytest.mark.asyncio(loop_scope="module")  # one proxy, each test with its own thread

RETRIEVAL = ", retrieval: {enabled: true, offer: always, scope: resource, max_steps: 2}"
ASKED = b'"messages" : [ {"role":"user","content":"f\\u00fcnf"}]'
F = b'{"type":"function","function":{"name":"f", "strict":true}}'
RECALL_TOOL = write_tool("recall", has_threads=True)
JSON = b"Content-Type: application/json"
numbers = count(1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def site(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[ProxyUnderTest]:
    """With another conversation of the resource, so that there is something to look up."""
    async with run_with_raw_upstream(tmp_path_factory.mktemp("offered"), memory=RETRIEVAL) as site:
        await ask(site, b"{%s}" % ASKED)
        yield site


async def ask(
    site: ProxyUnderTest, body: bytes, *headers: bytes, script: Script | None = None
) -> RawResponse:
    """Send a request of a new thread."""
    thread = b"X-OM-Thread: t%d" % next(numbers)
    return await site.ask(
        body, b"Authorization: Bearer k", b"X-OM-Resource: r", thread, *headers, script=script
    )


@pytest.mark.parametrize(
    "members",
    [
        b"",
        b'"tool_choice":"none",',
        b'"tool_choice": "required" ,',
        b'"tool_choice":{"type":"function","function":{"name":"f"}},',
        b'"tool_choice":{"type":"allowed_tools","allowed_tools":{"mode":"auto","tools":[{"type":"function"'
        b',"function":{"name":"f"}}]}},',
        b'"parallel_tool_calls":false,',
        b'"response_format":{"type":"json_schema","json_schema":{"name":"x","schema":{"a":1.0}}},',
        b'"n":1,"temperature":1e0,"unknown":"\\ud800",',
    ],
)
@pytest.mark.parametrize("tools", [None, F, F + b" , " + F.replace(b'"f"', b'"g"')])
async def test_it_is_offered(site: ProxyUnderTest, members: bytes, tools: bytes | None) -> None:
    """It is the last tool, and the only change: else the provider's cache would break."""
    if tools is None:
        body = b"{%s%s}" % (members, ASKED)
        offering = b'{%s%s,"tools":[%s]}' % (members, ASKED, RECALL_TOOL)
    else:
        body = b'{%s"tools": [ %s],%s }' % (members, tools, ASKED)
        offering = b'{%s"tools": [ %s,%s],%s }' % (members, tools, RECALL_TOOL, ASKED)
    got = await ask(site, body)
    assert got.header(b"x-om-recall") == [b"offered"]
    assert site.seen.body == offering


BOTH_NAMES = b",".join(F.replace(b'"f"', b'"%s"' % name) for name in (b"recall", b"om_recall"))


@pytest.mark.parametrize(
    ("members", "headers", "word"),
    [
        (b'"n":2', (), [b"n"]),
        (b'"functions":[{"name":"f"}]', (), [b"functions"]),
        (b'"function_call":"auto"', (), [b"functions"]),
        (b'"tools":[%s]' % BOTH_NAMES, (), [b"name"]),
        (b'"a":1', (b"X-OM-Mode: write",), []),
        (b'"a":1', (b"X-OM-Mode: off",), []),
        (b'"a":1', (b"X-OM-Task: title",), []),
    ],
)
@pytest.mark.parametrize("stream", [b"true", b"false"])
async def test_it_is_not_offered(
    site: ProxyUnderTest,
    members: bytes,
    headers: tuple[bytes, ...],
    word: list[bytes],
    stream: bytes,
) -> None:
    body = b'{%s,"stream":%s,%s}' % (members, stream, ASKED)
    got = await ask(site, body, *headers)
    assert got.header(b"x-om-recall") == word
    assert site.seen.body == body


async def test_a_client_with_a_tool_of_its_name(site: ProxyUnderTest) -> None:
    """The tool has its other name, in every request of that client."""
    theirs = F.replace(b'"f"', b'"recall"')
    for _ in range(2):
        await ask(site, b'{"tools":[%s],%s}' % (theirs, ASKED))
        other = write_tool("om_recall", has_threads=True)
        assert site.seen.body == b'{"tools":[%s,%s],%s}' % (theirs, other, ASKED)


async def test_a_caller_that_only_reads_may_look_up(site: ProxyUnderTest) -> None:
    got = await ask(site, b"{%s}" % ASKED, b"X-OM-Mode: read")
    assert got.header(b"x-om-recall") == [b"offered"]
    assert RECALL_TOOL in site.seen.body


async def test_shadow(tmp_path: Path) -> None:
    """A prompt that is not sent needs no tool."""
    async with run_with_raw_upstream(tmp_path, memory=RETRIEVAL + ", mode: shadow") as site:
        for _ in range(2):
            got = await ask(site, b"{%s}" % ASKED)
            assert got.header(b"x-om-recall") == []
            assert site.seen.body == b"{%s}" % ASKED


@pytest.mark.parametrize(
    ("members", "choices"),
    [
        (b'"tools":[%s],"tool_choice":"required"' % F, ["required"] * 3),
        (b'"tools":[%s]' % F, [None] * 3),
        (b'"a":1', [None, None, "none"]),
    ],
)
async def test_each_round_goes_on_from_the_one_before(
    site: ProxyUnderTest, members: bytes, choices: list[str | None]
) -> None:
    """Two messages more, and no other byte; only the last round's choice may differ, for a client
    without tools."""
    steps = iter([whole.reply(n, None, whole.call(f"own-{n}")) for n in range(2)])

    async def script(call: Call) -> None:
        await script_answer(next(steps, whole.reply(9, "Blue.")), JSON)(call)

    got = await ask(site, b"{%s,%s}" % (members, ASKED), script=script)
    assert orjson.loads(got.body)["choices"][0]["message"]["content"] == "Blue."
    bodies = [seen.body for seen in site.server.seen]
    assert [orjson.loads(body).get("tool_choice") for body in bodies] == choices
    prompts = [list_message_bytes(body) for body in bodies]
    assert [len(prompt) for prompt in prompts] == [1, 3, 5]
    for before, after in pairwise(prompts):
        assert after[: len(before)] == before
    others = {
        body.replace(b",".join(prompt), b"").replace(b',"tool_choice":"none"', b"")
        for body, prompt in zip(bodies, prompts, strict=True)
    }
    assert len(others) == 1


@pytest.mark.parametrize(
    "status",
    [b"400 Bad Request", b"404 Not Found", b"422 Unprocessable", b"500 Internal Server Error"],
)
async def test_a_server_that_refuses_tools(site: ProxyUnderTest, status: bytes) -> None:
    """The client gets its answer all the same; from the second request on without the detour."""
    body = b'{"model":"refuses-%s",%s}' % (status[:3], ASKED)

    async def script(call: Call) -> None:
        refused = script_answer(b'{"error":{"message":"no tools"}}', JSON, status=status)
        answered = script_answer(whole.reply(1, "Blue."), JSON)
        await (refused if b'"tools"' in call.seen.body else answered)(call)

    asked = []
    for _ in range(3):
        got = await ask(site, body, script=script)
        assert (got.status, got.body) == (200, whole.reply(1, "Blue."))
        assert got.header(b"x-om-recall") == [b"refused"]
        asked.append([seen.body == body for seen in site.server.seen])
    assert asked == [[False, True], [True], [True]]


async def test_a_prompt_that_is_too_long_with_the_tool(site: ProxyUnderTest) -> None:
    """It fits without the tool. That says nothing of the tool, so it is offered again."""
    body = b'{"model":"small",%s}' % ASKED
    error = b'{"error":{"message":"Too long.","code":"context_length_exceeded"}}'

    async def script(call: Call) -> None:
        refused = script_answer(error, JSON, status=b"400 Bad Request")
        answered = script_answer(whole.reply(1, "Blue."), JSON)
        await (refused if b'"tools"' in call.seen.body else answered)(call)

    for _ in range(4):
        got = await ask(site, body, script=script)
        assert (got.status, got.body) == (200, whole.reply(1, "Blue."))
        assert [b'"tools"' in seen.body for seen in site.server.seen] == [True, False]
