"""The observer: turns messages into notes, through one usable answer of a model."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from zoneinfo import ZoneInfo

from om_proxy.agents import wording
from om_proxy.agents.llm import Answer, Image, ModelSettings, Prompt, Target
from om_proxy.agents.memory_agent import MemoryAgent
from om_proxy.agents.model_limits import can_show_images, clamp_prompt
from om_proxy.agents.retries import CallCost
from om_proxy.agents.transcript_text import RenderedTranscript, render_transcript
from om_proxy.errors import CutOff, Unusable
from om_proxy.memory.escaping import escape
from om_proxy.memory.model import Message, sum_framed_tokens
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.observations import ParsedNotes, parse_observation, refuse_cut_off

UTC = ZoneInfo("UTC")
_OBSERVATIONS_TAG = re.compile(r"<\s*observations?\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserverTask:
    """The messages to observe, and the notes and hints known already."""

    messages: tuple[Message, ...]
    previous: str = field(default="", repr=False)  # the log's text, cut to its budget
    task: str | None = field(default=None, repr=False)  # the current task that stands
    title: str | None = field(default=None, repr=False)
    undated_to: int = 0  # seq; as in Memory
    # the beginning of the client's instructions, where they are at hand
    about_assistant: str = field(default="", repr=False)
    timezone: ZoneInfo = UTC  # of the user, as far as known
    instruction: str | None = field(default=None, repr=False)  # the operator's, beside the prompt
    variant: str = field(
        default="default", repr=False
    )  # of the prompt; see wording.write_observer_prompt
    want_title: bool = False
    # only where the messages reach the newest one: otherwise it is stale when it is shown
    # (docs/spec/behaviour.md#hints)
    want_suggestion: bool = False
    clip_tokens: int | None = None  # of the messages in the prompt; None: no limit
    images: bool = True  # whether to show images to models that take them


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Usable notes, and their cost, unusable answers included. A hint or title of None: the answer
    left it out, or it was not wanted. An empty task: nothing is open any more."""

    text: str = field(repr=False)
    task: str | None = field(default=None, repr=False)
    suggestion: str | None = field(default=None, repr=False)
    title: str | None = field(default=None, repr=False)
    model: str = ""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0  # of the input
    calls: int = 0


class Observer(MemoryAgent):
    """Turns messages into notes."""

    async def observe(
        self, task: ObserverTask, targets: Sequence[Target], settings: ModelSettings
    ) -> Observed:
        """Ask for notes. Raises Unusable after two answers that must not enter a memory; CutOff after
        one without its end (fewer messages help); PromptTooLong; or the last model's ModelError."""
        system = wording.write_observer_prompt(
            task.variant,
            want_title=task.want_title,
            instruction=task.instruction,
            want_suggestion=task.want_suggestion,
        )
        shown = await self._render_transcript(task)
        prompt = self._prepare_prompt(
            system, partial(_write_user_prompt, task, shown), settings, with_images=task.images
        )
        answer, spent = await self._caller.ask(targets, prompt)
        try:
            return _build_observed(await self._parse_answer(task, answer), answer, spent)
        except CutOff:
            raise
        except Unusable:
            # another model, where there is one
            answer, more = await self._caller.ask([*targets[1:], targets[0]], prompt)
            return _build_observed(await self._parse_answer(task, answer), answer, spent + more)

    async def observe_together(
        self, tasks: Mapping[str, ObserverTask], targets: Sequence[Target], settings: ModelSettings
    ) -> dict[str, Observed]:
        """Ask for notes of several threads in one call, by their labels (memory/notes/sections.py).
        The tasks differ in their thread alone. A thread without usable notes is missing.

        Raises like `observe`: Unusable only if no thread has usable notes, CutOff at once, because
        the cut answer does not tell which thread lacks its end.
        """
        one = next(iter(tasks.values()))
        system = wording.write_observer_prompt(
            one.variant, want_title=one.want_title, instruction=one.instruction, threads=True
        )
        shown = {label: await self._render_transcript(task) for label, task in tasks.items()}
        prompt = self._prepare_prompt(
            system,
            partial(_write_prompt_of_several, tasks, shown),
            settings,
            with_images=one.images,
        )
        answer, spent = await self._caller.ask(targets, prompt)
        made = await self._parse_threads(tasks, answer, spent)
        if not made:
            answer, more = await self._caller.ask([*targets[1:], targets[0]], prompt)
            made = await self._parse_threads(tasks, answer, spent + more)
        if not made:
            raise Unusable("the answer is no observation: of none of the threads")
        return made

    def _prepare_prompt(
        self,
        system: str,
        write_user_parts: Callable[[bool], Iterator[str | Image]],
        settings: ModelSettings,
        *,
        with_images: bool,
    ) -> Callable[[Target], Prompt]:
        """Return the function that writes the prompt for a model. `write_user_parts` is told whether
        to show images: only if the task has them shown and the model takes them."""

        def write_prompt(target: Target) -> Prompt:
            abilities = self._abilities(target.model)
            images = with_images and can_show_images(target, abilities)
            return clamp_prompt(system, tuple(write_user_parts(images)), settings, abilities)

        return write_prompt

    async def _parse_threads(
        self, tasks: Mapping[str, ObserverTask], answer: Answer, spent: CallCost
    ) -> dict[str, Observed]:
        made: dict[str, Observed] = {}
        texts = await asyncio.to_thread(_split_answer, answer, tasks.keys())
        for label, text in texts.items():
            try:
                parsed = await self._parse_answer(
                    tasks[label], replace(answer, text=text, finish="stop")
                )
            except Unusable:
                continue
            made[label] = _build_observed(parsed, answer, spent)
        return made

    async def _render_transcript(self, task: ObserverTask) -> RenderedTranscript:
        return await asyncio.to_thread(
            render_transcript,
            task.messages,
            task.timezone,
            tokens=self._tokens,
            clip_tokens=task.clip_tokens,
            undated_to=task.undated_to,
        )

    async def _parse_answer(self, task: ObserverTask, answer: Answer) -> ParsedNotes:
        source = sum_framed_tokens(task.messages)
        parsed = await asyncio.to_thread(
            parse_observation,
            answer.text,
            source_tokens=source,
            tokens=self._tokens,
            finish=answer.finish,
        )
        return replace(  # models add a title or suggestion without being asked
            parsed,
            title=parsed.title if task.want_title else None,
            suggestion=parsed.suggestion if task.want_suggestion else None,
        )


def _write_user_prompt(
    task: ObserverTask, shown: RenderedTranscript, images: bool
) -> Iterator[str | Image]:
    """Write the one user message: known notes, the transcript, then its images behind their
    numbers."""
    yield "\n\n".join(
        (
            *_render_task(task),
            *_render_known(task),
            f"# New messages\n\nTimes are those of {task.timezone.key}.\n\n{shown.text}",
        )
    )
    for number, image in shown.images if images else ():
        yield f"Image #{number}:"
        yield image
    yield "Write the observations of these new messages now, in the format you were told and nothing else."


def _write_prompt_of_several(
    tasks: Mapping[str, ObserverTask], shown: Mapping[str, RenderedTranscript], images: bool
) -> Iterator[str | Image]:
    """Write the known notes of all, then for each thread its hints, transcript and images."""
    one = next(iter(tasks.values()))
    yield "\n\n".join((*_render_known(replace(one, task=None, title=None)), "# New messages"))
    for label, task in tasks.items():
        blocks = (*_render_task(task), *_render_blocks(task, ("current-task", "thread-title")))
        known = "".join(f"{block}\n" for block in blocks)
        yield sections.wrap_in_tag(
            label, f"{known}Times are those of {task.timezone.key}.\n\n{shown[label].text}"
        )
        for number, image in shown[label].images if images else ():
            yield f"Image #{number} of conversation {label}:"
            yield image
    yield "Write the observations of these new messages now, conversation by conversation, in the format you were told."


def _split_answer(answer: Answer, labels: Collection[str]) -> dict[str, str]:
    """Split an answer into one answer a thread. Raises CutOff if the end of the whole answer is
    missing."""
    refuse_cut_off(answer.text, answer.finish)
    return {
        label: _wrap_section(said)
        for label, said in sections.split_by_thread(answer.text, labels).items()
    }


def _wrap_section(said: str) -> str:
    """Wrap a thread's section as an answer of its own: all of it counts, not only its bullet
    lines."""
    return said if _OBSERVATIONS_TAG.search(said) else f"<observations>\n{said}\n</observations>"


def _render_task(task: ObserverTask) -> Iterator[str]:
    """Render the block that comes first: it is the same in every call, so a prompt cache keeps
    it."""
    if task.about_assistant:
        yield f"<about-assistant>\n{escape(task.about_assistant)}\n</about-assistant>"


def _render_known(task: ObserverTask) -> Iterator[str]:
    if blocks := list(
        _render_blocks(task, ("previous-observations", "current-task", "thread-title"))
    ):
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


def _build_observed(parsed: ParsedNotes, answer: Answer, spent: CallCost) -> Observed:
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
