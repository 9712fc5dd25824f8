"""Perform Reflect: ask the reflector to condense entries of a log, and keep its answer beside the
log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial

from om_proxy.agents.reflector import Reflected, Reflector
from om_proxy.common.errors import Oversized, PromptTooLong
from om_proxy.engine.background.performers.observer_tasks import (
    choose_memory_models,
    find_thread_labels,
    render_sources,
)
from om_proxy.engine.background.performers.work_guard import (
    CycleReport,
    WorkCosts,
    find_sources,
    redact_answer,
    report_call,
    store_paid_answer,
)
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.lifecycle import transitions
from om_proxy.memory.lifecycle.decisions import Reflect
from om_proxy.memory.model import Memory, Observation, Reflection
from om_proxy.observability import facts


@dataclass(frozen=True, slots=True, eq=False)
class ReflectPerformer:
    """The performer that condenses a log. `environ` may hold the keys of providers."""

    memories: Memories
    reflector: Reflector
    count_tokens: Callable[[str], int]
    clock: Callable[[], float]
    environ: Mapping[str, str] = field(repr=False)

    async def perform(
        self,
        memory: Memory,
        decision: Reflect,
        context: MemoryContext,
        cycle: CycleReport,
    ) -> None:
        sources = find_sources(memory, decision)
        if len(sources) < decision.entries or not sources:
            return
        await cycle.start(sum(o.tokens for o in sources))
        sources, answer = await self._condense(memory, sources, decision, context, cycle.costs)
        answer = await redact_answer(answer, context)
        size = sum(o.tokens for o in sources)
        tokens = await asyncio.to_thread(self.count_tokens, answer.text)
        # possible: of a shared log the reflector also sees the marks of threads, which no entry
        # holds
        if tokens >= size:
            raise Oversized("the reflection is no shorter than the notes it is of")
        reflection = Reflection(
            generation=memory.log.generation,
            sources=tuple(o.id for o in sources),
            text=answer.text,
            tokens=tokens,
            source_tokens=size,
            at=self.clock(),
            task=answer.task,
            suggestion=answer.suggestion,
            model=answer.model,
        )
        paid = cycle.costs.take()

        def keep_reflection(is_retry: bool, now: Memory) -> Memory:
            if is_retry and now.log.reflection == reflection:
                return now  # an attempt was written
            kept = transitions.keep_reflection(now, reflection)
            return transitions.add_memory_costs(kept, paid)

        now = await store_paid_answer(
            lambda is_retry: self.memories.update(
                memory.key,
                partial(keep_reflection, is_retry),
                row_id=memory.row_id,
                cause=cycle.cause,
            )
        )
        await cycle.finish(is_stored=now.log.reflection == reflection)
        self.memories.facts.emit(facts.Reflected(memory.key, size, reflection.tokens, answer.model))

    async def _condense(
        self,
        memory: Memory,
        sources: tuple[Observation, ...],
        decision: Reflect,
        context: MemoryContext,
        costs: WorkCosts,
    ) -> tuple[tuple[Observation, ...], Reflected]:
        """Return the reflector's answer and the entries it replaces: only the older ones, if all
        were too long for it.

        The newer ones then stay word for word after the answer. Parts that are reflected one by one
        and joined would lose more: all entries would be rewritten into one, which can never be
        split again.
        """
        config, whole = context.effective.memory.reflection, sum(o.tokens for o in sources)
        while True:
            size = sum(o.tokens for o in sources)
            targets = choose_memory_models(
                context.effective.reflector_model, context, size, self.environ
            )
            try:
                history = memory.history_at(sources[-1].last)
                async with report_call(
                    self.memories.facts, [memory], "reflect", targets, costs, history
                ) as report:
                    answer = await self.reflector.reflect(
                        render_sources(sources),
                        target_tokens=decision.accept_below * size // max(whole, 1),
                        instruction=_join_instructions(config.instruction, decision.instruction),
                        targets=targets,
                        settings=config.model_settings,
                        labels=find_thread_labels(sources),
                        depth=max(o.depth for o in sources),
                        bill=report.bill,
                    )
                    report.model = answer.model
                return sources, answer
            except PromptTooLong:
                if len(sources) == 1:
                    raise
                # three quarters, not half: a refusal costs little, and with too few entries the
                # oldest one is condensed over and over
                sources = sources[: len(sources) * 3 // 4]


def _join_instructions(*instructions: str | None) -> str | None:
    return "\n\n".join(text for text in instructions if text) or None
