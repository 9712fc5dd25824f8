"""The observer: turns messages into notes, through one usable answer of a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from zoneinfo import ZoneInfo

from om_proxy.agents import wording
from om_proxy.agents.asking import Spent
from om_proxy.agents.fitting import fitted, shows_images
from om_proxy.agents.llm import Answer, Image, ModelSettings, Prompt, Target
from om_proxy.agents.mind import Mind
from om_proxy.agents.transcript_text import Rendered, render
from om_proxy.errors import CutOff, Unusable
from om_proxy.memory import sections
from om_proxy.memory.escaping import escape
from om_proxy.memory.model import Message, weight
from om_proxy.memory.observations import Parsed, parse, refuse_cut_off

UTC = ZoneInfo("UTC")
_OBSERVATIONS = re.compile(r"<\s*observations?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverTask:
    """What to observe, and what is known already."""

    messages: tuple[Message, ...]
    previous: str = field(default="", repr=False)  # the log's text, cut to its budget
    task: str | None = field(default=None, repr=False)  # the current task that stands
    title: str | None = field(default=None, repr=False)
    undated_to: int = 0  # seq; as in Memory
    about_assistant: str = field(
        default="", repr=False
    )  # the beginning of the client's instructions, where they are at hand
    timezone: ZoneInfo = UTC  # of the user, as far as known
    instruction: str | None = field(default=None, repr=False)  # the operator's, beside the prompt
    variant: str = field(default="default", repr=False)  # of the prompt; see wording.observer
    want_title: bool = False
    want_suggestion: bool = (
        # only where the messages reach the newest: else it is stale when it is shown
        # (docs/spec/behaviour.md#hints)
        False
    )
    clip_tokens: int | None = None  # what the messages may take in the prompt; None: all they need
    images: bool = True  # whether to show images to models that take them


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Usable notes, and what they cost, unusable answers included. A hint or title of None: the answer left it out, or
    it was not wanted. A task that is empty: nothing is open any more."""

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
        """Raises Unusable after two answers that may not enter a memory, CutOff after one without its end (less is what helps),
        PromptTooLong, or the last model's ModelError."""
        system = wording.observer(
            task.variant,
            want_title=task.want_title,
            instruction=task.instruction,
            want_suggestion=task.want_suggestion,
        )
        shown = await self._rendered(task)

        def prompt(target: Target) -> Prompt:
            known = self._abilities(target.model)
            images = task.images and shows_images(target, known)
            return fitted(system, tuple(_user(task, shown, images)), settings, known)

        answer, spent = await self._asker.ask(targets, prompt)
        try:
            return _observed(await self._parsed(task, answer), answer, spent)
        except CutOff:
            raise
        except Unusable:
            answer, more = await self._asker.ask(
                [*targets[1:], targets[0]], prompt
            )  # another model, where there is one
            return _observed(await self._parsed(task, answer), answer, spent + more)

    async def observe_together(
        self, tasks: Mapping[str, ObserverTask], targets: Sequence[Target], settings: ModelSettings
    ) -> dict[str, Observed]:
        """Notes of several threads from one call, by the label each is named by (memory/sections.py); a thread of which the answer
        says nothing usable is missing. The tasks differ in nothing but their thread. Raises like `observe`, Unusable only where
        nothing at all can be used, CutOff at once: of which thread the end is missing, nobody can say."""
        one = next(iter(tasks.values()))
        system = wording.observer(one.variant, want_title=one.want_title, instruction=one.instruction, threads=True)
        shown = {label: await self._rendered(task) for label, task in tasks.items()}

        def prompt(target: Target) -> Prompt:
            known = self._abilities(target.model)
            images = one.images and shows_images(target, known)
            return fitted(system, tuple(_user_of_several(tasks, shown, images)), settings, known)

        answer, spent = await self._asker.ask(targets, prompt)
        made = await self._parsed_by_thread(tasks, answer, spent)
        if not made:
            answer, more = await self._asker.ask([*targets[1:], targets[0]], prompt)
            made = await self._parsed_by_thread(tasks, answer, spent + more)
        if not made:
            raise Unusable("the answer is no observation: of none of the threads")
        return made

    async def _parsed_by_thread(
        self, tasks: Mapping[str, ObserverTask], answer: Answer, spent: Spent
    ) -> dict[str, Observed]:
        made: dict[str, Observed] = {}
        told = await asyncio.to_thread(_apart, answer, tasks.keys())
        for label, said in told.items():
            try:
                parsed = await self._parsed(tasks[label], replace(answer, text=said, finish="stop"))
            except Unusable:
                continue
            made[label] = _observed(parsed, answer, spent)
        return made

    async def _rendered(self, task: ObserverTask) -> Rendered:
        return await asyncio.to_thread(
            render,
            task.messages,
            task.timezone,
            tokens=self._tokens,
            clip_tokens=task.clip_tokens,
            undated_to=task.undated_to,
        )

    async def _parsed(self, task: ObserverTask, answer: Answer) -> Parsed:
        source = weight(task.messages)
        parsed = await asyncio.to_thread(
            parse, answer.text, source_tokens=source, tokens=self._tokens, finish=answer.finish
        )
        return replace(  # models volunteer what nobody asked for
            parsed,
            title=parsed.title if task.want_title else None,
            suggestion=parsed.suggestion if task.want_suggestion else None,
        )


def _user(task: ObserverTask, shown: Rendered, images: bool) -> Iterator[str | Image]:
    """The one user message: what is known, then the transcript, then its images behind their numbers."""
    yield "\n\n".join(
        (*_about(task), *_known(task), f"# New messages\n\nTimes are those of {task.timezone.key}.\n\n{shown.text}")
    )
    for number, image in shown.images if images else ():
        yield f"Image #{number}:"
        yield image
    yield "Write the observations of these new messages now, in the format you were told and nothing else."


def _user_of_several(
    tasks: Mapping[str, ObserverTask], shown: Mapping[str, Rendered], images: bool
) -> Iterator[str | Image]:
    """What is known of all, then thread by thread its hints, its transcript, its images."""
    one = next(iter(tasks.values()))
    yield "\n\n".join((*_known(replace(one, task=None, title=None)), "# New messages"))
    for label, task in tasks.items():
        blocks = (*_about(task), *_blocks(task, ("current-task", "thread-title")))
        known = "".join(f"{block}\n" for block in blocks)
        yield sections.tagged(label, f"{known}Times are those of {task.timezone.key}.\n\n{shown[label].text}")
        for number, image in shown[label].images if images else ():
            yield f"Image #{number} of conversation {label}:"
            yield image
    yield "Write the observations of these new messages now, conversation by conversation, in the format you were told."


def _apart(answer: Answer, labels: Collection[str]) -> dict[str, str]:
    """What an answer says of each thread, as answers of their own. Raises CutOff where the end of the whole answer is missing."""
    refuse_cut_off(answer.text, answer.finish)
    return {label: _as_alone(said) for label, said in sections.by_thread(answer.text, labels).items()}


def _as_alone(said: str) -> str:
    """A thread's section as an answer about that thread alone: all of it is meant, not only its bullet lines."""
    return said if _OBSERVATIONS.search(said) else f"<observations>\n{said}\n</observations>"


def _about(task: ObserverTask) -> Iterator[str]:
    """First of all: it stays the same from call to call, so that a prompt cache keeps it."""
    if task.about_assistant:
        yield f"<about-assistant>\n{escape(task.about_assistant)}\n</about-assistant>"


def _known(task: ObserverTask) -> Iterator[str]:
    if blocks := list(_blocks(task, ("previous-observations", "current-task", "thread-title"))):
        yield "# Known already"
        yield from blocks


def _blocks(task: ObserverTask, tags: Sequence[str]) -> Iterator[str]:
    known = {
        "previous-observations": task.previous,
        "current-task": task.task,
        "thread-title": task.title if task.want_title else None,
    }
    for tag in tags:
        if (text := known[tag]) and text.strip():
            yield f"<{tag}>\n{escape(text)}\n</{tag}>"


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
