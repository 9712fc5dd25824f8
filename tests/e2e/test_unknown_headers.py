"""A header that begins as ours do and means nothing: told once in the log, by its name alone."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from om_proxy.edge import chat
from tests.e2e.raw_upstream import chat_body, read_reason, run_with_raw_upstream
from tests.e2e.written import LogLines, collect_log_lines


def told(out: LogLines) -> list[tuple[str, str | None]]:
    lines = map(orjson.loads, out.text.splitlines())
    return [
        (line["header"], line["meant"])
        for line in lines
        if line["event"] == "memory.unknown_header"
    ]


@pytest.mark.parametrize(
    ("sent", "found"),
    [
        (b"X-OM-Tread: secret", [("x-om-tread", "x-om-thread")]),
        (b"X-OM-Resourse: secret", [("x-om-resourse", "x-om-resource")]),
        (b"X-OM-Question: secret", [("x-om-question", None)]),
        (b"X-OM-" + b"q" * 900 + b": secret", [("x-om-" + "q" * 55, None)]),
        (b"X-OM-Resource: secret", []),
        (b"X-Omelette: secret", []),
    ],
)
async def test_a_misspelt_header_is_told_once(
    tmp_path: Path, sent: bytes, found: list[tuple[str, str | None]]
) -> None:
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            for _ in range(2):
                assert read_reason(await site.ask(chat_body("hi"), sent)) == "off/no-thread"
    assert told(out) == found
    assert "secret" not in out.text


async def test_a_request_with_a_thread_is_not_looked_at(tmp_path: Path) -> None:
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            await site.ask(chat_body("hi"), b"X-OM-Thread: t", b"X-OM-Tread: t")
    assert told(out) == []


async def test_the_configuration_s_own_header_is_meant(tmp_path: Path) -> None:
    """And X-OM-Thread is unknown where the configuration takes another one in its place."""
    names = "identity: {thread_headers: [x-om-talk]}"
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path, names) as site:
            await site.ask(chat_body("hi"), b"X-OM-Talks: t")
            await site.ask(chat_body("hi"), b"X-OM-Thread: t")
    assert told(out)[0] == ("x-om-talks", "x-om-talk")
    assert [header for header, _ in told(out)[1:]] == ["x-om-thread"]


async def test_names_without_end_do_not_fill_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chat, "MAX_TOLD_HEADERS", 2)
    with collect_log_lines() as out:
        async with run_with_raw_upstream(tmp_path) as site:
            for number in range(4):
                await site.ask(chat_body("hi"), b"X-OM-Q%d: t" % number)
    assert len(told(out)) == 2
