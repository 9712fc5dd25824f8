"""Prepare what memory models are asked: choose the models, and build the task that the observer gets
about a thread, with the log as they read it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import chain

import structlog

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.model_access.targets import Choice, choose_targets, is_above_largest_tier
from om_proxy.agents.models import choose_default_model, find_small_model
from om_proxy.agents.observer import ObserverTask
from om_proxy.agents.transcript_text import clip_end
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory import blocks
from om_proxy.memory.dates import find_zone
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.hints import current_task
from om_proxy.memory.model import Key, Memory, Message, Observation, sum_framed_tokens
from om_proxy.memory.notes import sections
from om_proxy.memory.notes.log_excerpt import excerpt_log
from om_proxy.memory.transcript.corrections import find_corrections
from om_proxy.wire.apis.registry import read_beginning

MAX_ABOUT_ASSISTANT_TOKENS = 200  # of the client's instructions, shown to the observer

logger = structlog.get_logger("memory")


def build_observer_task(
    memory: Memory,
    messages: tuple[Message, ...],
    context: MemoryContext,
    count_tokens: Callable[[str], int],
    clip: int | None = None,
    wants_suggestion: bool = False,
) -> ObserverTask:
    config, limits = context.effective.memory, context.effective.limits
    return ObserverTask(
        messages=messages,
        previous=excerpt_log(list_known_notes(memory), limits.log_excerpt_tokens, count_tokens),
        task=current_task(memory),
        title=memory.title,
        undated_to=memory.undated_to,
        corrections=frozenset(chain.from_iterable(find_corrections(memory.views).values())),
        about_assistant=_excerpt_instructions(memory.key, context, count_tokens),
        timezone=find_zone(memory.timezone, config.timezone),
        instruction=config.observation.instruction,
        variant=config.observation.prompt,
        want_title=config.observation.thread_title,
        want_suggestion=wants_suggestion,
        # only one block is ever clipped: the part cut out of several blocks would count as covered,
        # but no note would mention it
        clip_tokens=clip or (None if take_older_half(messages) else limits.observe_from_tokens),
    )


def take_older_half(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the older half at a safe cut; empty if the messages are one block."""
    marks = [m.mark for m in messages]
    count = blocks.find_safe_cut(marks, sum_framed_tokens(messages) // 2, 0)
    return messages[:count] if count < len(messages) else ()


def _excerpt_instructions(
    key: Key, context: MemoryContext, count_tokens: Callable[[str], int]
) -> str:
    """Return the beginning of the thread's own instructions; empty if they are not at hand."""
    found = context.instructions
    if found is None or found.key != key:
        return ""
    text = "\n".join(map(read_beginning, found.beginning))
    return clip_end(text, MAX_ABOUT_ASSISTANT_TOKENS, count_tokens)


def list_known_notes(memory: Memory) -> list[str]:
    """Return the notes the observer is shown: the log, with a pending reflection in place of the
    entries it covers, then the buffered notes."""
    log, reflection = memory.log.entries, memory.log.reflection
    at = transitions.find_sources(log, reflection) if reflection else None
    shown = [
        section for o in (log[: at.start] if at else log) for section in sections.split_entry(o)
    ]
    if reflection and at:
        labels = find_thread_labels(log[at])
        shown += (
            sections.split_reflection(reflection.text, labels)
            if labels
            else [sections.Section(None, reflection.text)]
        )
        shown += (section for o in log[at.stop :] for section in sections.split_entry(o))
    return sections.render_plain(shown) + [o.text for o in memory.chunks]


def render_sources(sources: Sequence[Observation]) -> str:
    """Return the text that the reflector condenses; sections, if the log is shared."""
    if find_thread_labels(sources):
        return sections.render_sections(
            section for o in sources for section in sections.split_entry(o)
        )
    return "\n\n".join(o.text for o in sources if not o.is_withdrawn)


def find_thread_labels(entries: Sequence[Observation]) -> set[str]:
    """Return the labels of the threads that entries of a shared log are about; none for the entries
    of a thread's own log."""
    return {part.label for o in entries for part in o.parts}


def choose_memory_models(
    choice: Choice, context: MemoryContext, input_tokens: int, environ: Mapping[str, str]
) -> tuple[Target, ...]:
    """Return the models to ask, in order. `environ` may hold the keys of providers."""
    config = context.effective.memory
    key = config.api_key.get_secret_value() if config.api_key else None
    if is_above_largest_tier(choice, input_tokens):
        # the largest tier's model is asked all the same (docs/contributing/behaviour.md#models)
        logger.warning("model.above_tiers", input=input_tokens)
    inherited = context.inherited
    return choose_targets(
        choice,
        inherited=inherited,
        api_base=config.api_base,
        api_key=key,
        input_tokens=input_tokens,
        default_model=choose_default_model(),
        small_model=find_small_model(inherited.model, inherited.base_url) if inherited else None,
        environ=environ,
    )
