"""A preview equals what goes upstream, byte for byte, in every case of
docs/contributing/reconcile.md, in both layouts and both scopes, and it changes nothing in the
store."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import pytest
import pytest_asyncio

from om_proxy.memory.model import Key
from tests.e2e.playing import (
    ACTOR,
    Model,
    Play,
    TurnEvents,
    collect_turn_events,
    split_steps,
    write_body,
)
from tests.e2e.previewing import (
    SELDOM_LOOKING,
    dump,
    list_announced_tool,
    list_message_bytes,
    list_tool_bytes,
    preview,
    settle,
)
from tests.e2e.running import Running, run_with_scripted_models
from tests.e2e.test_cases import CASES, HINTED, LONG, REMEMBERED, SEVEN
from tests.memory.clients import chat

numbers = count(1)
RECONCILE = Path(__file__).parents[2] / "docs" / "contributing" / "reconcile.md"
SMALL = "observation: {message_tokens: 60, buffer_tokens: 20}"  # a handful of words


class CaseRow(NamedTuple):
    """A request, what was said before it, and the case that it is."""

    before: str
    sent: str
    case: str
    headers: dict[str, str] = {}  # noqa: RUF012 # of a NamedTuple, a default is one value


ROWS = {
    "first": CaseRow("", "u1", "first"),
    "none": CaseRow(LONG, "", "none"),
    "retried by the SDK": CaseRow(
        "u1 > a1; u2 > a2; uok > a3", "uok", "retry", {"x-stainless-retry-count": "1"}
    ),
    **{name: CaseRow(before, sent, case) for name, before, sent, case, *_ in CASES},
    **{
        f"{name}, where a part is remembered": CaseRow(SEVEN, sent, case)
        for name, sent, case, *_ in REMEMBERED
    },
    **{
        name: CaseRow(before, sent, case, {"x-om-history": history})
        for name, before, history, sent, case, *_ in HINTED
    },
}


def list_documented_cases() -> set[str]:
    """Return the words of the table of cases."""
    table = RECONCILE.read_text(encoding="utf-8").partition("## Cases")[2].partition("\n\nMore")[0]
    return set(re.findall(r"^\|[^|]+\| `(\w+)` \|", table, flags=re.M))


def test_every_case_is_previewed() -> None:
    """A case that the contract lists, and that no row here causes, fails."""
    assert len(list_documented_cases()) > 20
    # a preview is of a chat request, which names no reply
    assert {row.case for row in ROWS.values()} == list_documented_cases() - {"answering"}


@dataclass
class SharedPlay(Play):
    """A thread of a resource, whose log it may share."""

    resource: str = ""

    @property
    def key(self) -> Key:
        return super().key._replace(resource=self.resource)


@pytest.fixture(scope="module")
def turn_events() -> Iterator[TurnEvents]:
    with collect_turn_events() as found:
        yield found


@pytest_asyncio.fixture(
    scope="module",
    loop_scope="module",
    params=[
        pytest.param((layout, scope, retrieval), id=f"{layout}-{scope}{'-recall' * retrieval}")
        for layout in ("blocks", "merged")
        for scope, retrieval in (("thread", False), ("resource", False), ("resource", True))
    ],
)
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Running, Path]]:
    layout, scope, retrieval = request.param
    folder = tmp_path_factory.mktemp("previews")
    memory = f"scope: {scope}, retrieval: {str(retrieval).lower()}, {SMALL}"
    more = f"context: {{layout: {layout}}}\n            {SELDOM_LOOKING}"
    async with run_with_scripted_models(folder, memory, more=more, models=Model()) as run:
        yield run, folder


@pytest.mark.sample(65)  # each row in one of the servings at least
@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS.keys())
async def test_a_preview_is_what_goes_upstream(
    served: tuple[Running, Path], turn_events: TurnEvents, row: CaseRow
) -> None:
    """The announced case, status and tokens are those of the real request. The preview itself asks
    no model and leaves every row of the store as it was."""
    run, folder = served
    number = next(numbers)
    play = SharedPlay(run, turn_events, f"case-{number}", resource=f"resource-{number}")
    named = {"x-om-resource": play.resource}
    for sent, reply in split_steps(row.before):
        await play.turn(sent, reply, **named)
        await run.app.background.wait_idle()
    stored = await settle(run, folder)
    asked = len(run.models.requests)
    body = write_body(chat(row.sent), stream=False)
    query = f"?resource={play.resource}"
    announced = await preview(run, play.thread, body, query, authorization="", **row.headers)
    assert dump(folder) == stored
    assert len(run.models.requests) == asked
    turn = await play.turn(row.sent, **named, **row.headers)
    upstream = run.models.requests_to(ACTOR)[-1].body
    assert list_message_bytes(announced["bytes"]) == list_message_bytes(upstream)
    assert list_announced_tool(announced["bytes"]) == list_tool_bytes(upstream)
    assert announced["recall"] == turn.receipt.get("recall")
    assert (announced["case"] or "none") == (turn.case or "none") == row.case
    assert announced["status"] == turn.receipt["status"]
    assert announced["reason"] == turn.receipt.get("reason")
    if row.case != "none":
        assert str(announced["tokens_sent"]) == turn.receipt["tokens-sent"]
        assert str(announced["tokens_received"]) == turn.receipt["tokens-received"]
