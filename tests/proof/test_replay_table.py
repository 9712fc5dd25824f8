"""The table of a replay is honest and short, and holds no text of a conversation but its title."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from om_proxy.proof.billing import BilledTokens
from om_proxy.proof.conversation import UNREADABLE_LINES
from om_proxy.proof.replay import Bill, Result, examine
from om_proxy.proof.replay_table import describe_result, render_results
from tests.proof.test_playing import converse

NAMES = {"c": "Docks", "d": "Vans"}


def bill(dollars: float | None) -> Bill:
    return Bill(BilledTokens(fresh=1000), dollars)


def result(
    name: str = "c", measured: float | None = 5.0, base: float | None = 10.0, **changes: int
) -> Result:
    conversation = replace(converse(2), id=name, notices=changes, lines=10)
    subject = examine(conversation)
    assert subject is not None
    if base is None:
        subject = replace(subject, price=None)
    bills = {
        "measured": bill(measured),
        "low": bill(measured and measured * 1.5),
        "high": bill(measured and measured * 0.8),
    }
    memory = {"auto": bills, "inherit": bills}
    return Result(subject, None, bill(base), None, memory, 0)


def test_one_conversation_is_one_table() -> None:
    lines = list(render_results([result()], NAMES))
    assert lines[0] == "Docks · 2 calls · gpt-4o · perfect cache"
    assert lines[2].split() == ["never", "compacted", "10.00"]
    assert lines[3].split() == (
        ["memory,", "auto", "(gpt-5-mini)", "5.00", "(4.00–7.50)", ".500", "(.400–.750)"]
    )
    assert any("counted as o200k" in line for line in lines)
    assert max(map(len, lines)) <= 100


def test_several_have_a_line_each_and_one_sum() -> None:
    lines = list(render_results([result("d", 12.0), result("c", 5.0)], NAMES))
    assert "Vans · 2 calls · gpt-4o · DEARER with memory" in lines[1]
    assert "DEARER" not in lines[2]
    assert lines[4].startswith("2 conversations · 4 calls")
    assert lines[6].split()[-1] == "20.00"
    assert lines[7].split()[-4:] == ["17.00", "(13.60–25.50)", ".850", "(.680–1.275)"]


def test_a_partial_conversation_stands_apart() -> None:
    partial = result("d", 5.0, **{UNREADABLE_LINES: 5})
    lines = list(render_results([partial, result("c", 5.0)], NAMES))
    assert lines[1].endswith(" · partial")
    assert lines[4].startswith("Docks · 2 calls")
    alone = list(render_results([partial], NAMES))
    assert alone == ["Too many lines of these files are unreadable: no sum is shown."]


def test_without_a_price_there_are_tokens_alone() -> None:
    lines = list(render_results([result(measured=None, base=None)], NAMES))
    assert "prompt tokens" in lines[1]
    assert lines[2].split()[-1] == "1,000"
    assert any("--price in=,out=" in line for line in lines)


def test_what_the_client_compacted_is_compared() -> None:
    compacted = replace(result(), never_compacted=bill(40.0))
    lines = list(render_results([compacted], NAMES))
    assert lines[2].split()[-1] == "10.00"
    assert lines[3].split()[-2:] == ["40.00", "4.000"]


def test_json_holds_every_figure_and_no_message() -> None:
    answer = describe_result(replace(result(), recorded=bill(9.0)), has_titles=False)
    found = msgspec.to_builtins(answer)
    assert found["recorded_dollars"] == 9.0
    assert found["memory"][0] == {
        "memory_model": "gpt-5-mini",
        "dollars": {"measured": 5.0, "low": 4.0, "high": 7.5},
        "ratio": {"measured": 0.5, "low": 0.4, "high": 0.75},
    }
    assert found["title"] is None
    assert "Dock" not in str(found)
