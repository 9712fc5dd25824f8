"""`scripts/bench before`: what two checkouts' rows say, and in which order they are measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.bench import before, beside
from tests.bench.before import Change, compare_rounds, measure_rounds, render_changes
from tests.bench.figures import CPU, P50, RATE
from tests.bench.servers import BEFORE_PORT, OM_PORT, describe_target


def row(target: str, number: int, **fields: Any) -> dict[str, Any]:
    usual = {
        "n": 100,
        "errors": 0,
        "non200": 0,
        "rps": 1000.0,
        "p50": 1000,
        "ttfb50": 900,
        "cpu_us": 500.0,
    }
    return {
        "target": target,
        "cell": "grow:1",
        "round": number,
        "bytes": 0,
        "reads": 1,
        "idle_mb": 50.0,
        "first_200_s": 0.5,
        **usual,
        **fields,
    }


def change(*ratios: float) -> Change:
    return Change("om_raw", "grow:1", P50, 1.0, 1.0, ratios)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        ((1.0,), ""),
        ((0.5, 0.6), ""),
        ((1.02, 1.029, 1.5), ""),
        ((1.04, 1.05, 1.06), "WORSE"),
        ((0.99, 1.05, 1.06), "worse, but not in every round"),
    ],
)
def test_verdict(ratios: tuple[float, ...], verdict: str) -> None:
    """The median decides; a figure that was better in some round is told apart from one that never
    was."""
    assert change(*ratios).verdict == verdict


def test_ratios_are_those_of_a_round() -> None:
    """A machine twice as slow in the second round changes nothing."""
    rows = [
        row("om_raw", 1, p50=1100, rps=900.0),
        row("om_raw@before", 1, p50=1000, rps=1000.0),
        row("om_raw", 2, p50=2200, rps=450.0),
        row("om_raw@before", 2, p50=2000, rps=500.0),
    ]
    found = {one.kind.name: one for one in compare_rounds(rows, ["grow:1"])}
    assert found[P50.name].ratios == pytest.approx((1.1, 1.1))
    assert (found[P50.name].before, found[P50.name].now) == pytest.approx((1.5, 1.65))
    assert found[CPU.name].verdict == ""
    rows = [{**one, "cell": "grow:16"} for one in rows]
    (rate,) = [one for one in compare_rounds(rows, ["grow:16"]) if one.kind is RATE]
    assert rate.ratios == pytest.approx((1 / 0.9, 1 / 0.9))
    assert rate.verdict == "WORSE", "fewer requests a second"


def test_a_figure_of_one_side_is_no_change() -> None:
    rows = [row("om_raw", 1), row("om_raw@before", 1, n=0), row("om_applied", 1)]
    assert list(compare_rounds(rows, ["grow:1"])) == []


def test_table_of_changes() -> None:
    text = render_changes([change(1.04, 1.06), change(0.5)])
    assert "om_raw grow:1 p50, ms" in text
    assert "+5.0%" in text
    assert "+4.0% … +6.0%" in text
    assert "WORSE" in text.splitlines()[1]
    assert "WORSE" not in text.splitlines()[2]


def test_both_are_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each state has a run of its own in each round; who is first changes."""
    steps: list[beside.Step] = []
    monkeypatch.setattr(beside, "measure", lambda found, *_: steps.extend(found) or [])
    monkeypatch.setenv("OM_BEFORE", "")  # it is set, and goes with this test
    measure_rounds("grow:1", 2, 0.5, tmp_path / "om-proxy", tmp_path / "rows")
    assert [(step.round, step.target) for step in steps] == [
        (1, "om_off om_off@before"),
        (1, "om_raw om_raw@before"),
        (1, "om_applied om_applied@before"),
        (2, "om_off@before om_off"),
        (2, "om_raw@before om_raw"),
        (2, "om_applied@before om_applied"),
    ]


def test_both_have_ports_and_stores_of_their_own(tmp_path: Path) -> None:
    now = describe_target("om_raw", tmp_path, tmp_path)
    earlier = describe_target("om_raw@before", tmp_path, tmp_path, before="/old/om-proxy")
    assert (now.port, earlier.port) == (OM_PORT, BEFORE_PORT)
    assert earlier.command is not None
    assert earlier.command[0] == "/old/om-proxy"
    assert now.headers == earlier.headers != ()
    texts = [(tmp_path / f"{name}.yaml").read_text() for name in ("om_raw", "om_raw@before")]
    assert "om_raw.db" in texts[0]
    assert "om_raw@before.db" in texts[1]


def test_unknown_target(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such target: om_rw"):
        describe_target("om_rw", tmp_path, tmp_path)


def test_checkout_without_a_program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["before", str(tmp_path), "--bench", str(tmp_path)])
    monkeypatch.setattr("signal.signal", lambda *_: None)  # the process of the tests keeps its own
    with pytest.raises(SystemExit, match="scripts/setup"):
        before.main()
