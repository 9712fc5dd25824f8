"""Ask a model server one question with all that memory adds to a prompt, to see what it takes."""

from __future__ import annotations

import time

import orjson

from om_proxy.agents.model_access.completion import EVENT_STARTS
from om_proxy.agents.model_access.direct import QUESTION_PATHS, build_headers
from om_proxy.agents.model_access.llm import Target
from om_proxy.cli.doctor.call import CALL_TIMEOUT_S
from om_proxy.cli.doctor.upstreams import Finding
from om_proxy.common.errors import Overloaded, UpstreamError
from om_proxy.memory.prompt.layout import Layout, adds_system_message, layout_without_system
from om_proxy.memory.prompt.tail import Piece
from om_proxy.memory.recall.offering import TOOL_NAMES
from om_proxy.settings.config.sections.service import UpstreamSettings
from om_proxy.wire.apis.additions import Addition, Lessons, Trial
from om_proxy.wire.apis.api import Request, require_recall
from om_proxy.wire.apis.refusals import UNNAMED_STATUS, read_wrapped_status
from om_proxy.wire.apis.registry import get_api
from om_proxy.wire.upstream import Upstream

QUESTION = "Which city do I drive to? Answer with one word."
SAMPLE_NOTES = "Notes of an earlier part of this conversation: the user drives to Lisbon on May 3."
ADDITION_NAMES = {
    Addition.SYSTEM: "a system message of their own (they begin the user's)",
    Addition.TOOL: "the tool for look-ups",
}


async def try_prompt(upstream: UpstreamSettings, target: Target, layout: Layout) -> Finding:
    """Send a question with notes before it and with the look-up tool. Say what the server took.
    Nothing of it is stored."""
    question = {"role": "user", "content": QUESTION}
    api = get_api(target.api)
    body = api.write_question({"model": target.model, "messages": [question]})
    request = api.parse_request(orjson.dumps(body))
    additions = Addition(0) if api.recall is None else Addition.TOOL
    if adds_system_message(layout, has_instructions=False):
        additions |= Addition.SYSTEM
    trial = Trial(Lessons(), additions, time.monotonic)
    client = Upstream(connections=1)
    try:
        while True:
            chosen = (
                layout
                if trial.sent & Addition.SYSTEM
                else layout_without_system(has_instructions=False)
            )
            prompt = _write_prompt(request, chosen, has_tool=bool(trial.sent & Addition.TOOL))
            status, is_readable = await _post(client, upstream, target, prompt)
            if status < 300 and not is_readable:
                text = f"a chat with {target.model} that has notes gets no reply that can be read"
                return Finding(False, text)
            if status < 300:
                return Finding(True, describe_taken(target, additions & ~trial.sent))
            if not trial.take_back(status):
                text = f"a chat with {target.model} that has notes is refused ({status})"
                return Finding(False, text)
    except (UpstreamError, Overloaded) as exc:
        return Finding(False, f"a chat with {target.model} that has notes: {exc}")
    finally:
        await client.aclose()


def describe_taken(target: Target, left_out: Addition) -> str:
    """Say in a sentence what a chat with this model takes of what memory adds."""
    names = [name for addition, name in ADDITION_NAMES.items() if addition in left_out]
    if not names:
        tool = ", and the tool for look-ups" if get_api(target.api).recall else ""
        return f"a chat with {target.model} takes notes{tool}"
    return f"a chat with {target.model} takes notes; left out: {', '.join(names)}"


def _write_prompt(request: Request, layout: Layout, *, has_tool: bool) -> bytes:
    tail = [Piece(raw, "user", (), None, None, 0, i) for i, raw in enumerate(request.messages)]
    body = request.api.rewrite_body(request, SAMPLE_NOTES, "", tail, layout)
    return (
        require_recall(request).offer_tool(request, body, TOOL_NAMES[0], has_threads=False)
        if has_tool
        else body
    )


async def _post(
    client: Upstream, upstream: UpstreamSettings, target: Target, body: bytes
) -> tuple[int, bool]:
    """Return the status of the answer, and whether it holds a reply. Of an error inside a 200 it is
    the error's own status, or 400 if that names none."""
    headers = [(name.encode(), value.encode()) for name, value in build_headers(target)]
    answer = await client.send(
        "POST",
        f"{upstream.base_url}{QUESTION_PATHS[target.api]}",
        headers,
        body,
        connect_timeout_s=upstream.connect_timeout,
        read_timeout_s=min(upstream.read_timeout, CALL_TIMEOUT_S),
        path_in_settings=upstream.path_in_settings,
    )
    try:
        if answer.status >= 300:
            return answer.status, False
        text = await answer.read()
    finally:
        await answer.aclose()
    reader = get_api(target.api).create_reply_reader(text.lstrip().startswith(EVENT_STARTS))
    reader.feed(text)
    reply = reader.finish()
    if reply.error:
        return read_wrapped_status(text) or UNNAMED_STATUS, False
    return answer.status, reply.message is not None
