"""Real turns by each API: what `scripts/bench apis` plays, and its table."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from tests.bench.three_apis import list_bodies, write_table
from tests.support.published_apis import find_refusal
from tests.support.three_apis import APIS, Api


@pytest.mark.parametrize("api", APIS)
def test_a_thread_grows_in_the_words_of_its_api(api: Api) -> None:
    first, *_, last = map(orjson.loads, list_bodies(api, 1))
    name = "input" if api == "responses" else "messages"
    assert len(last[name]) - len(first[name]) == 2 * 19
    assert find_refusal(api, last) is None


def test_ratios_are_taken_round_by_round() -> None:
    """A round that was slow for all says nothing about an API."""
    rows: dict[Api, list[dict[str, Any]]] = {
        "chat": [{"rps": 1_000, "cpu_us": cpu} for cpu in (100, 400, 110)],
        "responses": [{"rps": 900, "cpu_us": cpu} for cpu in (120, 480, 132)],
    }
    *_, chat, responses = write_table(rows)
    assert chat == "| `chat` | 1,000 | 110 | 1.00 |"
    assert responses == "| `responses` | 900 | 132 | 1.20 |"
