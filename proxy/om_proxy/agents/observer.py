"""Turn messages into notes, by one usable answer of a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from zoneinfo import ZoneInfo

from om_proxy.agents import wording
from om_proxy.agents.memory_agent import MemoryAgent, can_show_images, clamp_prompt
from om_proxy.agents.model_access.llm import Answer, Image, ModelSettings, Prompt, Target
from om_proxy.agents.model_access.retries import CallBill
from om_proxy.agents.transcript_text import RenderedTranscript, render_transcript
from om_proxy.common.errors import CutOff, Unusable
from om_proxy.memory.escaping import escape
from om_proxy.memory.model import Message, sum_framed_tokens
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.anchors import drop_false_anchors
from om_proxy.memory.notes.observations import ParsedNotes, parse_observation, refuse_cut_off

UTC = ZoneInfo("UTC")
_OBSERVATIONS_TAG = re.compile(r"<\s*observations?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverTask:
    """The messages to observe, and the notes and hints that the thread has already."""

    messages: tuple[Message, ...]
    previous: str = field(default="", repr=False)  # the log's text, cut to its budget
    task: str | None = field(default=None, repr=False)  # the current task so far
    title: str | None = field(default=None, repr=False)
    undated_to: int = 0  # seq; as in Memory
    corrections: Collection[int] = ()  # seqs of messages that replace an earlier text
    # the beginning of the client's instructions, if they are at hand
    about_assistant: str = field(default="", repr=False)
    timezone: ZoneInfo = UTC  # of the user, as far as known
    instruction: str | None = field(default=None, repr=False)  # the operator's, beside the prompt
    # of the prompt; see wording.write_observer_prompt
    variant: str = field(default="default", repr=False)
    want_title: bool = False
    # only if the messages reach the newest one: otherwise the suggestion is stale when it is shown
    # (docs/contributing/behaviour.md#hints)
    want_suggestion: bool = False
    clip_tokens: int | None = None  # of the messages in the prompt; None: no limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Usable notes. If a hint or the title is None, the answer left it out, or it was not wanted. An
    empty task means that nothing is open any more."""

    text: str = field(repr=False)
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)
    model: str = ""


class Observer(MemoryAgent):
    """The agent that turns messages into notes."""

    async def observe(
        self,
        task: ObserverTask,
        targets: Sequence[Target],
        settings: ModelSettings,
        bill: CallBill | None = None,
    ) -> Observed:
        """Ask for notes, and return them. `bill` gets the calls that are paid for.

        Raises Unusable after two answers that must not enter a memory, CutOff after one answer
        without its end (fewer messages help), PromptTooLong, or the last model's ModelError."""
        system = _write_system_prompt(task)
        transcript = await self._render_transcript(task)
        write_prompt = self._prepare_prompt(
            system, partial(_write_user_prompt, task, transcript), settings
        )
        answer = await self._caller.ask(targets, write_prompt, bill)
        try:
            return _build_observed(await self._parse_answer(task, answer), answer)
        except CutOff:
            raise
        except Unusable:
            # the second answer comes from another model, if there is one
            answer = await self._caller.ask([*targets[1:], targets[0]], write_prompt, bill)
            return _build_observed(await self._parse_answer(task, answer), answer)

    async def observe_together(
        self,
        tasks: Mapping[str, ObserverTask],
        targets: Sequence[Target],
        settings: ModelSettings,
        bill: CallBill | None = None,
    ) -> dict[str, Observed]:
        """Ask for notes of several threads in one call, and return the notes by the threads' labels
        (memory/notes/sections.py). The tasks differ in their thread alone. The result leaves out
        threads without usable notes.

        Raises like `observe`: Unusable only if no thread has usable notes, CutOff at once, because
        the cut answer does not tell which thread lacks its end.
        """
        system = _write_system_prompt(next(iter(tasks.values())), threads=True)
        transcripts = {label: await self._render_transcript(task) for label, task in tasks.items()}
        write_prompt = self._prepare_prompt(
            system,
            partial(_write_prompt_of_several, tasks, transcripts),
            settings,
        )
        answer = await self._caller.ask(targets, write_prompt, bill)
        observed = await self._parse_threads(tasks, answer)
        if not observed:
            answer = await self._caller.ask([*targets[1:], targets[0]], write_prompt, bill)
            observed = await self._parse_threads(tasks, answer)
        if not observed:
            raise Unusable("the answer is no observation: of none of the threads")
        return observed

    def _prepare_prompt(
        self,
        system: str,
        write_user_parts: Callable[[bool], Iterator[str | Image]],
        settings: ModelSettings,
    ) -> Callable[[Target], Prompt]:
        """Return the function that writes the prompt for a model. The argument of `write_user_parts`
        is whether to show images: only if the model takes them."""

        def write_prompt(target: Target) -> Prompt:
            abilities = self._abilities(target.model)
            show_images = can_show_images(target, abilities)
            return clamp_prompt(system, tuple(write_user_parts(show_images)), settings, abilities)

        return write_prompt

    async def _parse_threads(
        self, tasks: Mapping[str, ObserverTask], answer: Answer
    ) -> dict[str, Observed]:
        """Parse the answer's section of each thread, and leave out threads without usable notes."""
        observed: dict[str, Observed] = {}
        texts = await asyncio.to_thread(_split_answer, answer, tasks.keys())
        for label, text in texts.items():
            try:
                parsed = await self._parse_answer(
                    tasks[label], replace(answer, text=text, finish="stop")
                )
            except Unusable:
                continue
            observed[label] = _build_observed(parsed, answer)
        return observed

    async def _render_transcript(self, task: ObserverTask) -> RenderedTranscript:
        return await asyncio.to_thread(
            render_transcript,
            task.messages,
            task.timezone,
            tokens=self._tokens,
            clip_tokens=task.clip_tokens,
            undated_to=task.undated_to,
            corrections=task.corrections,
        )

    async def _parse_answer(self, task: ObserverTask, answer: Answer) -> ParsedNotes:
        source_tokens = sum_framed_tokens(task.messages)
        parsed = await asyncio.to_thread(
            parse_observation,
            answer.text,
            source_tokens=source_tokens,
            tokens=self._tokens,
            finish=answer.finish,
        )
        return replace(  # models add a title or suggestion without being asked
            parsed,
            text=drop_false_anchors(parsed.text),
            title=parsed.title if task.want_title else None,
            suggestion=parsed.suggestion if task.want_suggestion else None,
        )


def _write_system_prompt(task: ObserverTask, *, threads: bool = False) -> str:
    return wording.write_observer_prompt(
        task.variant,
        want_title=task.want_title,
        instruction=task.instruction,
        threads=threads,
        want_suggestion=task.want_suggestion and not threads,
    )


def _write_user_prompt(
    task: ObserverTask, transcript: RenderedTranscript, show_images: bool
) -> Iterator[str | Image]:
    """Yield the parts of the user message: earlier notes, the transcript, then its images after
    their numbers."""
    yield "\n\n".join(
        (
            *_render_task(task),
            *_render_earlier_notes(task),
            f"# New messages\n\nTimes are those of {task.timezone.key}.\n\n{transcript.text}",
        )
    )
    for number, image in transcript.images if show_images else ():
        yield f"Image #{number}:"
        yield image
    yield "Write the observations of these new messages now, in the format you were told and nothing else."


def _write_prompt_of_several(
    tasks: Mapping[str, ObserverTask],
    transcripts: Mapping[str, RenderedTranscript],
    show_images: bool,
) -> Iterator[str | Image]:
    """Yield the earlier notes of all threads, then for each thread its hints, transcript and
    images."""
    first_task = next(iter(tasks.values()))
    earlier_notes = _render_earlier_notes(replace(first_task, task=None, title=None))
    yield "\n\n".join((*earlier_notes, "# New messages"))
    for label, task in tasks.items():
        blocks = (*_render_task(task), *_render_blocks(task, ("current-task", "thread-title")))
        hints = "".join(f"{block}\n" for block in blocks)
        transcript = transcripts[label]
        yield sections.wrap_in_tag(
            label, f"{hints}Times are those of {task.timezone.key}.\n\n{transcript.text}"
        )
        for number, image in transcript.images if show_images else ():
            yield f"Image #{number} of conversation {label}:"
            yield image
    yield "Write the observations of these new messages now, conversation by conversation, in the format you were told."


def _split_answer(answer: Answer, labels: Collection[str]) -> dict[str, str]:
    """Split an answer into one answer for each thread. Raises CutOff if the end of the whole answer
    is missing."""
    refuse_cut_off(answer.text, answer.finish)
    sections_by_label = sections.split_by_thread(answer.text, labels)
    return {label: _wrap_section(section) for label, section in sections_by_label.items()}


def _wrap_section(section: str) -> str:
    """Wrap a thread's section as an answer of its own, so that all of it counts, not only its bullet
    lines."""
    if _OBSERVATIONS_TAG.search(section):
        return section
    return f"<observations>\n{section}\n</observations>"


def _render_task(task: ObserverTask) -> Iterator[str]:
    """Render the block that comes first. It is the same in every call, so that a prompt cache keeps
    it."""
    if task.about_assistant:
        yield f"<about-assistant>\n{escape(task.about_assistant)}\n</about-assistant>"


def _render_earlier_notes(task: ObserverTask) -> Iterator[str]:
    tags = ("previous-observations", "current-task", "thread-title")
    blocks = list(_render_blocks(task, tags))
    if blocks:
        yield "# Known already"
        yield from blocks


def _render_blocks(task: ObserverTask, tags: Sequence[str]) -> Iterator[str]:
    texts = {
        "previous-observations": task.previous,
        "current-task": task.task,
        "thread-title": task.title if task.want_title else None,
    }
    for tag in tags:
        if (text := texts[tag]) and text.strip():
            yield f"<{tag}>\n{escape(text)}\n</{tag}>"


def _build_observed(parsed: ParsedNotes, answer: Answer) -> Observed:
    return Observed(
        text=parsed.text,
        task=parsed.task,
        suggestion=parsed.suggestion,
        title=parsed.title,
        model=answer.model,
    )
