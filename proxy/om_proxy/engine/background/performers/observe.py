"""Perform Observe and ObserveBatch: ask the observer about messages of one thread, or about several
threads of a resource with one call, and store its notes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import structlog
from msgspec import structs

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.observer import Observed, Observer, ObserverTask
from om_proxy.common.errors import (
    BrokenAnswer,
    CutOff,
    ModelBusy,
    ModelError,
    ModelTimeout,
    OmError,
    PromptTooLong,
    Unusable,
)
from om_proxy.engine.background.performers.observer_tasks import (
    build_observer_task,
    choose_memory_models,
    take_older_half,
)
from om_proxy.engine.background.performers.work_guard import (
    STOPPED_CODE,
    TIMEOUT_MESSAGE,
    CycleReport,
    WorkCosts,
    WorkGuard,
    redact_answer,
    report_call,
    store_paid_answer,
)
from om_proxy.engine.background.thread_run import ThreadRun
from om_proxy.engine.memory_cache.memories import Memories
from om_proxy.engine.memory_cache.memory_events import create_cycle_id
from om_proxy.engine.policy import MemoryContext
from om_proxy.memory.ledger import NO_MEMORY_COSTS, History, MemoryCosts
from om_proxy.memory.lifecycle import decisions, transitions
from om_proxy.memory.lifecycle.batches import ObserveBatch
from om_proxy.memory.lifecycle.decisions import Observe
from om_proxy.memory.lifecycle.hints import reaches_newest
from om_proxy.memory.lifecycle.observable import messages_between
from om_proxy.memory.model import Failures, Key, Memory, Message, Observation, sum_framed_tokens
from om_proxy.observability import facts

CAUSES_THAT_SHRINK_THE_BATCH = frozenset(
    {f"observe {kind.code}" for kind in (CutOff, BrokenAnswer, ModelTimeout)}
)
# a block clipped to fewer tokens is clipped no further: an observer that finds it too long fails
MIN_CLIP_TOKENS = 500

logger = structlog.get_logger("memory")

MAX_CALLS_PER_RESOURCE = 4  # at once


@dataclass(frozen=True, slots=True, eq=False)
class ObservePerformer:
    """The performer that observes one thread, or several with one call."""

    memories: Memories
    observer: Observer
    count_tokens: Callable[[str], int]
    clock: Callable[[], float]
    environ: Mapping[str, str] = field(repr=False)
    guard: WorkGuard

    async def perform(
        self,
        memory: Memory,
        decision: Observe,
        context: MemoryContext,
        cycle: CycleReport,
    ) -> None:
        messages = messages_between(memory, decision.after, decision.last)
        if not messages or decision.after != memory.chunked_to:
            return  # the memory has changed since; what is due now is decided anew
        is_idle = decisions.is_idle(memory, context.effective.limits, self.clock())
        shrunk = _shrink_after_failures(messages, memory.failures)
        await cycle.start(sum_framed_tokens(shrunk))
        messages, notes = await self._ask(
            memory, shrunk, context, cycle.costs, may_suggest=decision.wait or is_idle
        )
        await self._store_notes(memory, decision.after, messages, notes, context, cycle)

    async def _store_notes(
        self,
        memory: Memory,
        after: int,
        messages: Sequence[Message],
        notes: Observed,
        context: MemoryContext,
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

        paid = cycle.costs.take()

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

    # ── several threads ───────────────────────────────────────────────────────────────────────────

    async def perform_batch(
        self, decision: ObserveBatch, context: MemoryContext, run: ThreadRun | None
    ) -> bool:
        """Observe all batches, a few at a time. Return whether any of them worked, so that another
        look is worth it. `run` is told of each call. After one call has timed out no further one begins: a server that hangs
        would hold this slot once for each of them."""
        slots, hangs = asyncio.Semaphore(MAX_CALLS_PER_RESOURCE), False

        async def observe_in_slot(batch: Sequence[Key]) -> bool:
            nonlocal hangs
            async with slots:
                if hangs:
                    return False
                mine = run.begin_call(batch) if run else batch
                try:
                    return await self._observe_batch(mine, context)
                except TimeoutError:
                    hangs = True
                    return False
                finally:
                    if run:
                        run.end_call(mine)

        done = await asyncio.gather(
            *(observe_in_slot(batch) for batch in decision.batches), return_exceptions=True
        )
        # raise only now that all have ended: no call may continue without the lease
        for outcome in done:
            if isinstance(outcome, BaseException):
                raise outcome
        return any(done)

    async def _observe_batch(self, keys: Sequence[Key], context: MemoryContext) -> bool:
        """Observe these threads with one call, or each with its own if the answer to one call is
        unusable. Return whether anything was observed. Raise TimeoutError after recording the
        failure."""
        found = [
            (memory, due)
            for memory in [await self.memories.load(key) for key in keys]
            if (due := _decide_alone(memory, context))
        ]
        if len(found) < 2:
            return bool(found) and await self._observe_alone(*found[0], context, NO_MEMORY_COSTS)
        costs, cycle_id = WorkCosts(), create_cycle_id()
        cycles = [self.guard.open_cycle(memory, due, cycle_id) for memory, due in found]
        try:
            async with asyncio.timeout(self.guard.policies.current.call_timeout_s):
                await self._observe_together(found, context, costs, cycles)
            return True
        except TimeoutError:
            # next time each is asked about alone (batches.split_batches)
            _share_costs(costs, found, cycles)
            for cycle in cycles:
                await self.guard.record_failure(ModelBusy(TIMEOUT_MESSAGE), cycle)
            raise
        except asyncio.CancelledError:
            await _fail_all(cycles, STOPPED_CODE)
            raise
        except OmError as exc:
            await _fail_all(cycles, exc.code)
            if not isinstance(exc, ModelError):
                raise  # the store's failure
        except Exception as exc:
            await _fail_all(cycles, ModelError.code)
            logger.warning("observe.apart", error=type(exc).__name__, threads=len(found))
        # only a call for each thread alone shows which of them fails: it must not touch the others
        # (docs/contributing/behaviour.md#failures)
        _share_costs(costs, found, cycles)
        return any(
            [
                await self._observe_alone(memory, due, context, cycle.costs.take())
                for (memory, due), cycle in zip(found, cycles, strict=True)
            ]
        )

    async def _observe_alone(
        self, memory: Memory, due: Observe, context: MemoryContext, costs: MemoryCosts
    ) -> bool:
        work = partial(self.perform, memory, due, context)
        return await self.guard.run(memory, due, work, costs=costs, raise_timeout=True)

    async def _observe_together(
        self,
        found: Sequence[tuple[Memory, Observe]],
        context: MemoryContext,
        costs: WorkCosts,
        cycles: Sequence[CycleReport],
    ) -> None:
        """Observe the threads with one call. A thread that is missing from the answer stays
        unobserved, and is asked about again after a pause."""
        parts = {
            self.memories.label(m.key): (m, due, messages_between(m, due.after, due.last), cycle)
            for (m, due), cycle in zip(found, cycles, strict=True)
        }
        names = [memory.key.thread for memory, _ in found]
        for _, _, messages, cycle in parts.values():
            await cycle.start(sum_framed_tokens(messages), names)
        tasks = {
            label: await asyncio.to_thread(
                build_observer_task, memory, messages, context, self.count_tokens
            )
            for label, (memory, _, messages, _) in parts.items()
        }
        size = sum(sum_framed_tokens(messages) for _, _, messages, _ in parts.values())
        models = choose_memory_models(context.effective.observer_model, context, size, self.environ)
        memories = [memory for memory, _ in found]
        settings = context.effective.memory.observation.model_settings
        facts = self.memories.facts
        # one call is one line of the ledger; what it costs is not kept from the saving of a client
        # that sends its whole history
        histories = {memory.history_at(due.last) for memory, due in found}
        history: History = "full" if "full" in histories else "partial"
        async with report_call(facts, memories, "observe", models, costs, history) as report:
            made = await self.observer.observe_together(tasks, models, settings, report.bill)
            report.model = next(iter(made.values())).model
        _share_costs(costs, found, cycles)
        for label, (memory, due, messages, cycle) in parts.items():
            if label in made:
                await self._store_notes(memory, due.after, messages, made[label], context, cycle)
            else:
                left_out = Unusable("the answer left this thread out")
                await self.guard.record_failure(left_out, cycle)


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


def _share_costs(
    costs: WorkCosts, found: Sequence[tuple[Memory, Observe]], cycles: Sequence[CycleReport]
) -> None:
    """Share what a call for several threads has cost, by the tokens that each has to observe."""
    shares = costs.take().split([due.tokens for _, due in found])
    for share, cycle in zip(shares, cycles, strict=True):
        cycle.costs = WorkCosts(share)


async def _fail_all(cycles: Sequence[CycleReport], code: str) -> None:
    for cycle in cycles:
        await cycle.fail(code)


def _decide_alone(memory: Memory, context: MemoryContext) -> Observe | None:
    """Return what is observed of a thread together with others: all that may be, up to T."""
    return decisions.observe_everything(memory, context.effective.limits.observe_from_tokens)
