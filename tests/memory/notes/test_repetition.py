"""Loops are found, honest repetition is not taken for one."""

import json
import random
import time
from pathlib import Path

import pytest

from om_proxy.memory.notes.repetition import MAX_LINE_CHARS, is_repetition_loop

LOCOMO = Path(__file__).parents[4] / "shared" / "data" / "locomo10.json"

ROUTINE = [
    "Assistant ran the test suite: {a} passed, {b} failed",
    "Polled the deployment of service-{b}: status pending",
    "Assistant retried the upload of part {a}: HTTP 503",
    "Assistant read src/module_{b}.py",
    "Checked the inbox: no new mail",
    "Heartbeat ok",
]


def honest(seed: int, times: bool = True) -> str:
    """A long, dull, true log: a few kinds of lines, few different numbers, several in one
    minute."""
    rng = random.Random(seed)
    kinds, step, minute = rng.randint(2, len(ROUTINE)), rng.randint(0, 5), rng.randint(0, 600)
    lines = ["Date: May 22, 2023"]
    for _ in range(rng.randint(5, 200)):
        minute += rng.randint(0, step)
        at = f"({minute // 60:02}:{minute % 60:02}) " if times else ""
        lines.append(
            f"* 🟢 {at}{rng.choice(ROUTINE[:kinds]).format(a=rng.randint(1, 20), b=rng.randint(1, 5))}"
        )
    return "\n".join(lines)


def alike(count: int) -> list[str]:
    return [
        f"* 🟢 (09:{i:02}) The assistant looked at the state of the deployment, item {i}"
        for i in range(count)
    ]


def unlike(count: int) -> list[str]:
    rng = random.Random(count)
    return [
        " ".join(rng.choices(["alpha", "beta", "gamma", "delta", "epsilon"], k=12))
        for _ in range(count)
    ]


@pytest.mark.parametrize(
    "lines", [alike, unlike], ids=["lines that begin alike", "lines of their own"]
)
@pytest.mark.parametrize("period", [1, 2, 3, 7, 20, 49, 50])
@pytest.mark.parametrize("before", [False, True], ids=["from the start", "after honest notes"])
def test_a_loop_of_lines_is_found(lines: object, period: int, before: bool) -> None:
    """A loop of any period up to 50 lines is found, once it has run three times and is long enough
    to matter."""
    assert callable(lines)
    once = "\n".join(lines(period)) + "\n"
    loop = once * max(3, 1 + 1_000 // len(once))
    text = honest(period)[: len(loop)] + "\n" + loop if before else loop
    assert is_repetition_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("and again " * 100, id="a phrase within one line"),
        pytest.param("同じことを何度も書く。" * 80, id="without blanks"),
        pytest.param("x" * 1_000, id="one character"),
        pytest.param(
            "* 🔴 (10:00) " + "0123456789" * (MAX_LINE_CHARS // 10), id="a line without end"
        ),
        pytest.param(
            "\n".join(random.Random(1).choices(alike(8), k=120)), id="few lines in no order"
        ),
        pytest.param(
            honest(3) + "\n" + "* 🟢 the end of a long text\n" * 150,
            id="a long log that ends in a loop",
        ),
    ],
)
def test_other_loops_are_found(text: str) -> None:
    """Repeated windows, repeated lines, a line over 50 000 characters."""
    assert is_repetition_loop(text)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="nothing"),
        pytest.param("* 🟢 ok\n" * 5, id="a few equal lines"),
        pytest.param("\n".join(alike(60)), id="many lines that differ in a number"),
        pytest.param(
            "\n".join(unlike(40)) + "\n" + "\n".join(unlike(40)), id="the same notes twice"
        ),
        pytest.param(
            "| a | b |\n|---|---|\n" + "\n".join(f"| {i} | {i * i} |" for i in range(200)),
            id="a table",
        ),
        pytest.param("* 🔴 rule\n" + "-" * 300 + "\n* 🔴 end", id="a drawn line"),
    ],
)
def test_repetition_that_is_no_loop(text: str) -> None:
    """Text that only resembles a loop is kept."""
    assert not is_repetition_loop(text)


@pytest.mark.parametrize("times", [True, False], ids=["with times", "without times"])
def test_honest_logs_are_kept(times: bool) -> None:
    """At most one dull log in twenty may be refused; of these, none is."""
    assert sum(is_repetition_loop(honest(seed, times)) for seed in range(300)) == 0


def test_logs_written_by_models_are_kept() -> None:
    """No observation of LoCoMo is refused."""
    if not LOCOMO.exists():
        pytest.skip("needs shared/data/locomo10.json beside the repository")
    sessions = [
        s
        for conversation in json.loads(LOCOMO.read_text())
        for s in conversation["observation"].values()
    ]
    logs = [
        "\n".join(f"* {who}: {note[0]}" for who, notes in s.items() for note in notes)
        for s in sessions
    ]
    assert len(logs) == 272
    assert not any(map(is_repetition_loop, logs))


@pytest.mark.parametrize(
    "text",
    ["a" * 400_000, "ab\n" * 150_000, "\n".join(unlike(10_000))],
    ids=["a", "lines", "words"],
)
def test_looking_is_linear(text: str) -> None:
    """400 kB, what 100 000 tokens can be, are judged within a second."""
    began = time.process_time()
    is_repetition_loop(text)
    assert time.process_time() - began < 1.0
