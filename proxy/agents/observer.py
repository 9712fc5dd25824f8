"""The observer: turns messages into notes, through one usable answer of a model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from zoneinfo import ZoneInfo

from proxy.agents import wording
from proxy.agents.asking import Spent
from proxy.agents.fitting import fitted, shows_images
from proxy.agents.llm import Answer, Image, ModelSettings, Prompt, Target
from proxy.agents.mind import Mind
from proxy.agents.transcript_text import Rendered, render
from proxy.errors import Unusable
from proxy.memory.escaping import escape
from proxy.memory.model import Message, weight
from proxy.memory.observations import Parsed, parse

UTC = ZoneInfo("UTC")


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverTask:
    """What to observe, and what is known already."""

    messages: tuple[Message, ...]
    previous: str = field(default="", repr=False)  # the log's text, cut to its budget
    task: str | None = field(default=None, repr=False)  # the hints that stand
    suggestion: str | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)
    timezone: ZoneInfo = UTC  # of the user, as far as known
    instruction: str | None = field(default=None, repr=False)  # the operator's, beside the prompt
    variant: str = field(default="default", repr=False)  # of the prompt; see wording.observer
    want_title: bool = False
    clip_tokens: int | None = None  # what the messages may take in the prompt; None: all they need
    images: bool = True  # whether to show images to models that take them


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Usable notes, and what they cost, unusable answers included. A hint or title of None: the answer left it out."""

    text: str = field(repr=False)
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input
    calls: int = 0


class Observer(Mind):
    """Turns messages into notes."""

    async def observe(self, task: ObserverTask, targets: Sequence[Target], settings: ModelSettings) -> Observed:
        """Raises Unusable after two answers that may not enter a memory, PromptTooLong, or the last model's ModelError."""
        system = wording.observer(task.variant, want_title=task.want_title, instruction=task.instruction)
        shown = await asyncio.to_thread(
            render, task.messages, task.timezone, tokens=self._tokens, clip_tokens=task.clip_tokens
        )

        def prompt(target: Target) -> Prompt:
            known = self._abilities(target.model)
            images = task.images and shows_images(target, known)
            return fitted(system, tuple(_user(task, shown, images)), settings, known)

        answer, spent = await self._asker.ask(targets, prompt)
        try:
            return _observed(await self._parsed(task, answer), answer, spent)
        except Unusable:
            answer, more = await self._asker.ask(
                [*targets[1:], targets[0]], prompt
            )  # another model, where there is one
            return _observed(await self._parsed(task, answer), answer, spent + more)

    async def _parsed(self, task: ObserverTask, answer: Answer) -> Parsed:
        source = weight(task.messages)
        return await asyncio.to_thread(parse, answer.text, source_tokens=source, tokens=self._tokens)


def _user(task: ObserverTask, shown: Rendered, images: bool) -> Iterator[str | Image]:
    """The one user message: what is known, then the transcript, then its images behind their numbers."""
    yield "\n\n".join((*_known(task), f"# New messages\n\nTimes are those of {task.timezone.key}.\n\n{shown.text}"))
    for number, image in shown.images if images else ():
        yield f"Image #{number}:"
        yield image
    yield "Write the observations of these new messages now, in the format you were told and nothing else."


def _known(task: ObserverTask) -> Iterator[str]:
    known = {
        "previous-observations": task.previous,
        "current-task": task.task,
        "suggested-response": task.suggestion,
        "thread-title": task.title if task.want_title else None,
    }
    blocks = [f"<{tag}>\n{escape(text)}\n</{tag}>" for tag, text in known.items() if text and text.strip()]
    if blocks:
        yield "# Known already"
        yield from blocks


def _observed(parsed: Parsed, answer: Answer, spent: Spent) -> Observed:
    return Observed(
        text=parsed.text,
        task=parsed.task,
        suggestion=parsed.suggestion,
        title=parsed.title,
        model=answer.model,
        input_tokens=spent.input_tokens,
        output_tokens=spent.output_tokens,
        cached_tokens=spent.cached_tokens,
        calls=spent.calls,
    )
