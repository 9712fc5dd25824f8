"""Show what would go upstream for a thread now. Nothing is stored, and no model
is called."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from om_proxy.cli.answers import (
    print_fields,
    print_heading,
    print_json,
    print_table,
    print_text,
    render_number,
)
from om_proxy.cli.exit_status import DONE
from om_proxy.cli.store_command import LocalApi, read_file
from om_proxy.cli.thread_choice import find_thread
from om_proxy.management.api.routes.context import (
    ContextAnswer,
    DueWork,
    preview_request,
    preview_text,
)
from om_proxy.wire.apis.message_parts import summarize_message

PART_COLUMNS = ("part", "tokens", "prompt cache")


async def show(api: LocalApi, options: argparse.Namespace) -> int:
    """Print the parts of the prompt, and its messages."""
    body = read_file(options.request) if options.request else None
    key = await find_thread(api.store, options)
    handler = preview_text if body is None else preview_request
    answer = await api.ask(handler, options, key=key, body=body)
    print_json(answer) if options.json else print_answer(answer)
    return DONE


def print_answer(answer: ContextAnswer) -> None:
    print_fields(render_decisions(answer))
    print_text("")
    rows = (
        (part.kind, render_number(part.tokens), "stays" if part.is_stable else "moves")
        for part in answer.parts
    )
    print_table(PART_COLUMNS, rows)
    for raw in answer.messages:
        speaker, texts = summarize_message(bytes(raw), answer.api)
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
