"""`om-proxy context`: show what would go upstream for a thread now. Nothing is stored, and no model
is called."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from om_proxy.apis.message_summary import summarize_message
from om_proxy.cli.answers import (
    print_fields,
    print_heading,
    print_json,
    print_table,
    print_text,
    render_number,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, run_with_api
from om_proxy.cli.thread_choice import find_thread
from om_proxy.edge.admin.routes.context import (
    ContextAnswer,
    DueWork,
    TextQuery,
    preview_request,
    preview_text,
)
from om_proxy.errors import UsageError

SAMPLE_TEXT = "…"  # stands for the next message
PART_COLUMNS = ("part", "tokens", "prompt cache")


def run(options: argparse.Namespace) -> int:
    """Print the parts of the prompt, and its messages."""
    return run_with_api(options, print_context)


async def print_context(api: LocalApi, options: argparse.Namespace) -> int:
    body = read_request(options.request) if options.request else None
    key = await find_thread(api.store, options)
    if body is not None:
        answer = await api.ask_about(preview_request, key, body=body)
    else:
        query = TextQuery(resource=key.resource, text=options.text or SAMPLE_TEXT)
        answer = await api.ask_about(preview_text, key, query)
    if options.json:
        print_json(answer)
    else:
        print_answer(answer)
    return DONE


def read_request(path: str) -> bytes:
    """Read a chat request from a file, or from stdin for `-`."""
    try:
        return sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as exc:
        raise UsageError(f"--request {path} cannot be read: {exc.strerror}") from exc


def print_answer(answer: ContextAnswer) -> None:
    print_fields(render_decisions(answer))
    print_text("")
    rows = (
        (part.kind, render_number(part.tokens), "stays" if part.is_stable else "moves")
        for part in answer.parts
    )
    print_table(PART_COLUMNS, rows)
    for raw in answer.messages:
        speaker, texts = summarize_message(bytes(raw))
        print_text("")
        print_heading(speaker)
        print_text("\n".join(texts))


def render_decisions(answer: ContextAnswer) -> Iterator[tuple[str, str]]:
    """Yield what memory would do with the request, and why."""
    reason = f", {answer.reason}" if answer.reason else ""
    yield "status", f"{answer.status}{reason}"
    if answer.case:
        cut = f", after message {answer.cut}" if answer.cut is not None else ""
        yield "case", f"{answer.case}{cut}"
    if answer.tokens_received is not None and answer.tokens_sent is not None:
        yield (
            "tokens",
            f"{render_number(answer.tokens_received)} received, "
            f"{render_number(answer.tokens_sent)} sent",
        )
    if answer.recall:
        yield "look-ups", render_offer(answer)
    for decision in answer.decisions:
        yield "first", render_decision(decision)


def render_offer(answer: ContextAnswer) -> str:
    """Say whether the model is offered the tool that looks up earlier messages."""
    if answer.tool is None:
        return f"not offered ({answer.recall})"
    return f"offered, by a tool of {render_number(len(bytes(answer.tool)))} bytes"


def render_decision(decision: DueWork) -> str:
    match decision.kind:
        case "activate":
            return f"{decision.count} ready notes become active ({decision.why})"
        case "swap":
            return "a ready reflection takes its notes' place"
        case "observe":
            return f"the request would wait for notes of {decision.tokens} tokens"
        case _:
            return f"the request would wait for {decision.count} notes to be condensed"
