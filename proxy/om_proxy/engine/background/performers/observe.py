"""Perform Observe: ask the observer about messages of one thread, and store its notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from msgspec import structs

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.observer import Observed, Observer, ObserverTask
from om_proxy.common.errors import BrokenAnswer, CutOff, ModelTimeout, PromptTooLong
from om_proxy.engine.background.performers.call_report import (
    CycleReport,
    WorkCosts,
    redact_answer,
    report_call,
    store_paid_answer,
)
from om_proxy.engine.background.performers.memory_models import choose_memory_models
from om_proxy.engine.background.performers.observer_tasks import (
    build_observer_task,
    take_older_half,
)
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.ledger import History
from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.hints import reaches_newest
from om_proxy.memory.lifecycle.observable import messages_between
from om_proxy.memory.model import Failures, Memory, Message, Observation, sum_framed_tokens
from om_proxy.observability import facts

CAUSES_THAT_SHRINK_THE_BATCH = frozenset(
    {f"observe {kind.code}" for kind in (CutOff, BrokenAnswer, ModelTimeout)}
)
# a block clipped to fewer tokens is clipped no further: an observer that finds it too long fails
MIN_CLIP_TOKENS = 500


@dataclass(frozen=True, slots=True, eq=False)
class ObservePerformer:
    """The performer that observes one thread."""

    memories: Memories
    observer: Observer
    count_tokens: Callable[[str], int]
    clock: Callable[[], float]
    environ: Mapping[str, str] = field(repr=False)

    async def perform(
        self,
        memory: Memory,
        decision: Observe,
        context: MemoryContext,
        costs: WorkCosts,
        cycle: CycleReport,
    ) -> None:
        """Observe the messages. `costs` gets what was paid and is not stored with the notes."""
        messages = messages_between(memory, decision.after, decision.last)
        if not messages or decision.after != memory.chunked_to:
            return  # the memory has changed since; what is due now is decided anew
        is_idle = decisions.is_idle(memory, context.effective.limits, self.clock())
        shrunk = _shrink_after_failures(messages, memory.failures)
        await cycle.start(sum_framed_tokens(shrunk))
        messages, notes = await self._ask(
            memory, shrunk, context, costs, may_suggest=decision.wait or is_idle
        )
        await self.store_notes(memory, decision.after, messages, notes, context, costs, cycle)

    async def store_notes(
        self,
        memory: Memory,
        after: int,
        messages: Sequence[Message],
        notes: Observed,
        context: MemoryContext,
        costs: WorkCosts,
        cycle: CycleReport,
    ) -> None:
        notes = await redact_answer(notes, context)
        chunk = Observation(
            id=0,  # given by transitions.add_chunk
            after=after,
            last=messages[-1].seq,
            chain=messages[-1].chain,
            text=notes.text,
            tokens=await asyncio.to_thread(self.count_tokens, notes.text),
            source_tokens=sum_framed_tokens(messages),
            at=messages[-1].at,
            task=notes.task,
            suggestion=notes.suggestion,
            # a title that was not asked for is not kept
            title=notes.title if context.effective.memory.observation.thread_title else None,
            model=notes.model,
        )

        paid = costs.take()

        def add_chunk(is_retry: bool, now: Memory) -> Memory:
            if is_retry and transitions.holds_notes_of(now, chunk):
                return now  # an attempt was written
            # the tail may have been counted anew meanwhile
            counted = structs.replace(
                chunk, source_tokens=sum_framed_tokens(messages_between(now, after, chunk.last))
            )
            # paid for, whether or not the notes still fit
            return transitions.add_memory_costs(transitions.add_chunk(now, counted), paid)

        now = await store_paid_answer(
            lambda is_retry: self.memories.update(
                memory.key, partial(add_chunk, is_retry), row_id=memory.row_id, cause=cycle.cause
            )
        )
        kept = bool(now.chunks) and now.chunks[-1].last == chunk.last
        await cycle.finish(is_stored=kept)
        self.memories.facts.emit(
            facts.Observed(memory.key, chunk.source_tokens, chunk.tokens, kept, notes.model)
        )

    async def _ask(
        self,
        memory: Memory,
        messages: tuple[Message, ...],
        context: MemoryContext,
        costs: WorkCosts,
        *,
        may_suggest: bool,
    ) -> tuple[tuple[Message, ...], Observed]:
        """Return the observer's answer and the messages it is about. These are fewer than given if
        the prompt was too long or the answer was cut off (docs/contributing/behaviour.md#answers).
        If every answer about one block is cut off, that is a failure: no message of the block is
        covered."""
        clip: int | None = None
        answers_cut_off = 0  # about one block
        while True:
            wants_suggestion = may_suggest and reaches_newest(memory, messages[-1].seq)
            task = await asyncio.to_thread(
                build_observer_task,
                memory,
                messages,
                context,
                self.count_tokens,
                clip,
                wants_suggestion,
            )
            models = choose_memory_models(
                context.effective.observer_model,
                context,
                sum_framed_tokens(messages),
                self.environ,
            )
            try:
                return messages, await self._call_observer(
                    memory,
                    task,
                    _rotate(models, answers_cut_off),
                    context,
                    costs,
                    memory.history_at(messages[-1].seq),
                )
            except (PromptTooLong, CutOff, BrokenAnswer) as exc:
                half = take_older_half(messages)
                if half:
                    messages = half
                    continue
                answers_cut_off += not isinstance(exc, PromptTooLong)
                if answers_cut_off == 1 and not isinstance(exc, PromptTooLong):
                    # the network may have cut it off once: the next model, or the same one again,
                    # is shown the same messages
                    continue
                clip = (
                    clip
                    or min(
                        sum_framed_tokens(messages), context.effective.limits.observe_from_tokens
                    )
                ) // 2
                if clip < MIN_CLIP_TOKENS:
                    raise

    async def _call_observer(
        self,
        memory: Memory,
        task: ObserverTask,
        targets: Sequence[Target],
        context: MemoryContext,
        costs: WorkCosts,
        history: History,
    ) -> Observed:
        settings = context.effective.memory.observation.model_settings
        facts = self.memories.facts
        async with report_call(facts, [memory], "observe", targets, costs, history) as report:
            notes = await self.observer.observe(task, targets, settings, report.bill)
            report.model = notes.model
        return notes


def _shrink_after_failures(
    messages: tuple[Message, ...], failures: Failures
) -> tuple[Message, ...]:
    """Return the older part of messages whose observation never ended: half as many for each
    failure in a row. All of them at every try would use up the same deadline at the same place, and
    nothing would ever be covered."""
    for _ in range(failures.count if failures.cause in CAUSES_THAT_SHRINK_THE_BATCH else 0):
        messages = take_older_half(messages) or messages
    return messages


def _rotate(models: tuple[Target, ...], by: int) -> tuple[Target, ...]:
    """Return the models in order, beginning `by` places later."""
    return models[by % len(models) :] + models[: by % len(models)]
