"""Performs the two slow decisions, Observe and Reflect: reads the memory, asks a model, commits what came of it."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import structlog
from msgspec import structs

from om_proxy.agents.clipping import cut_behind
from om_proxy.agents.llm import Target
from om_proxy.agents.observer import Observed, Observer, ObserverTask
from om_proxy.agents.reflector import Reflected, Reflector
from om_proxy.agents.targets import DEFAULT, Choice, above_largest, first, targets
from om_proxy.catalogue import prices
from om_proxy.errors import (
    BrokenAnswer,
    CutOff,
    ModelBusy,
    ModelError,
    ModelTimeout,
    OmError,
    Oversized,
    PromptTooLong,
    Unusable,
)
from om_proxy.memories import Memories
from om_proxy.memory import blocks, lifecycle, sections
from om_proxy.memory.context import ContextOptions, Layout
from om_proxy.memory.dates import zone
from om_proxy.memory.gathering import Gather, Settle
from om_proxy.memory.lifecycle import Decision, Observe, Reflect
from om_proxy.memory.model import Key, Memory, Message, Observation, Reflection, Trouble, weight
from om_proxy.memory.observations import previous_observations
from om_proxy.memory.redaction import Notes, without_secrets
from om_proxy.memory.thresholds import Prices
from om_proxy.settings import Effective
from om_proxy.wire.beginning import read_beginning

log = structlog.get_logger("memory")

CALL_TIMEOUT_S = 120.0  # `background.call_timeout`: what one memory call may take, retries included; then it has failed
REFLECTED_TOKENS_PER_TIMEOUT = (
    10_000  # a reflection writes nearly as much as it reads, and has the deadline for each so many tokens
)
LATE = "the memory model did not answer in time"
BATCHES_AT_ONCE = 4  # calls for one resource
ABOUT_ASSISTANT_TOKENS = 200  # of the client's instructions, that the observer is told
ENDLESS_CAUSES = frozenset({f"observe {kind.code}" for kind in (CutOff, BrokenAnswer, ModelTimeout)})
LEAST_CLIP = 500  # tokens of one message below which an observer that finds it too long is given up on


@dataclass(frozen=True, slots=True)
class Instructions:
    """The beginning of a request's instructions, and the thread it was sent in: of no other do they say anything. In memory only."""

    key: Key
    beginning: tuple[bytes, ...] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """What memory work takes from the request that made it due."""

    effective: Effective
    inherited: Target | None = field(default=None, repr=False)  # the actor's model and credential; in memory only
    layout: Layout = "merged"
    context_options: ContextOptions = field(default_factory=ContextOptions)
    instructions: Instructions | None = field(default=None, repr=False)  # None: at hand no more, as after a restart
    bare: Call | None = field(default=None, repr=False)  # this one without a thread's own settings, if it has any

    def with_instructions(self, instructions: Instructions) -> Call:
        """For the work of one turn. Built by hand: `replace` takes twice as long, and every turn that brings something comes here."""
        return Call(self.effective, self.inherited, self.layout, self.context_options, instructions, self.bare)

    def overridden(self, overrides: bytes | None) -> Call:
        """With the settings a person has given one thread (`Memory.overrides`), and no other's."""
        bare = self.bare or self
        return replace(bare, effective=bare.effective.overridden(overrides), bare=bare) if overrides else bare


def priced(effective: Effective, actor: str | None) -> Effective:
    """With the list prices of actor and observer where `memory.economy` is `auto` and both are known."""
    if effective.memory.economy != "auto" or actor is None:
        return effective
    name = first(effective.observer_model, effective.limits.interval or effective.limits.observe_at)
    paid, asked = prices(actor), prices(actor if name == "inherit" else DEFAULT if name == "default" else name)
    if paid is None or asked is None:
        return effective
    known = Prices(
        actor_cached=paid.cached_input,
        actor_fresh=paid.cache_write,
        observer_input=asked.input,
        observer_output=asked.output,
    )
    return replace(effective, limits=replace(effective.limits, prices=known))


class Progress(Protocol):
    """What is told of the calls of a Gather, so that nobody waits for more than the one that reads their thread."""

    def begin(self, keys: Sequence[Key]) -> tuple[Key, ...]:
        """A call for these is about to begin; of which of them it is to be."""

    def end(self, keys: Sequence[Key]) -> None:
        """It is through."""


class Observing:
    """`perform` never raises for a model's failure: it records it with the thread and says that the work stops here."""

    def __init__(
        self,
        memories: Memories,
        observer: Observer,
        reflector: Reflector,
        tokens: Callable[[str], int],
        clock: Callable[[], float] = time.time,
        jitter: Callable[[], float] = random.random,
        within: Callable[[], float] = lambda: CALL_TIMEOUT_S,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """`within`: seconds one memory call may take. `environ` is where the keys of providers are looked for."""
        self._environ = environ or {}
        self._within = within
        self._memories = memories
        self._observer = observer
        self._reflector = reflector
        self._tokens = tokens
        self._clock = clock
        self._jitter = jitter

    async def perform(
        self, key: Key, decision: Decision | Gather | Settle, call: Call, progress: Progress | None = None
    ) -> bool:
        """Whether it worked, so that more may follow."""
        if isinstance(decision, Gather):
            return await self._gather(decision, call, progress)
        if isinstance(decision, Settle):
            return await settle(self._memories, decision.keys, self._clock())
        memory = await self._memories.load(key)
        return await self._guarded(memory, decision, self._performed(memory, decision, call))

    async def _performed(self, memory: Memory, decision: Decision, call: Call) -> None:
        if isinstance(decision, Observe):
            await self._observe(memory, decision, call)
        elif isinstance(decision, Reflect):
            await self._reflect(memory, decision, call)

    async def _guarded(
        self, memory: Memory, decision: Decision, work: Awaitable[None], *, raise_late: bool = False
    ) -> bool:
        """Whether the work was done in time and without a failure of its model; else that is recorded with the thread.

        `raise_late`: raise TimeoutError, when it has been recorded, where the deadline was missed."""
        try:
            async with asyncio.timeout(self._deadline(memory, decision)):
                await work
            return True
        except TimeoutError:
            await self._failed(memory, decision, ModelTimeout(LATE))
            if raise_late:
                raise
            return False
        except ModelError as exc:
            failure: ModelError = exc
        except OmError:
            raise  # the store's: nothing is known against the model
        except Exception as exc:  # whatever a memory model's library does counts as its failure: the thread backs off
            failure = ModelError(type(exc).__name__)
        await self._failed(memory, decision, failure)
        return False

    def _deadline(self, memory: Memory, decision: Decision) -> float:
        size = sum(o.tokens for o in _stretch_of(memory, decision)) if isinstance(decision, Reflect) else 0
        return self._within() * max(size / REFLECTED_TOKENS_PER_TIMEOUT, 1.0)

    async def _failed(self, memory: Memory, decision: Decision, exc: ModelError) -> None:
        what = type(decision).__name__.lower()
        label = self._memories.label(memory.key)
        failures, advice = memory.trouble.failures + 1, {"advice": exc.advice} if exc.advice else {}
        log.warning(f"{what}.failed", thread=label, error=exc.code, failures=failures, **advice)
        now, jitter, size, cause = self._clock(), self._jitter(), memory.log_tokens, f"{what} {exc.cause}"
        if isinstance(decision, Reflect):
            await self._memories.update(memory.key, lambda m: lifecycle.unproductive(m, size, cause), born=memory.born)
        else:
            await self._memories.update(memory.key, lambda m: lifecycle.failed(m, now, jitter, cause), born=memory.born)

    # ── observing ────────────────────────────────────────────────────────────────────────────────────────────────────

    async def _observe(self, memory: Memory, decision: Observe, call: Call) -> None:
        messages = lifecycle.between(memory, decision.after, decision.last)
        if not messages or decision.after != memory.chunked_to:
            return  # the memory moved on; what is due now will be decided anew
        is_idle = lifecycle.is_left_alone(memory, call.effective.limits, self._clock())
        shrunk = self._shrunk(messages, memory.trouble)
        messages, made = await self._ask(memory, shrunk, call, may_suggest=decision.wait or is_idle)
        await self._keep(memory, decision.after, messages, await _kept_of(made, call), call)

    async def _keep(self, memory: Memory, after: int, messages: Sequence[Message], made: Observed, call: Call) -> None:
        chunk = Observation(
            id=0,  # given by lifecycle.observed
            after=after,
            last=messages[-1].seq,
            chain=messages[-1].chain,
            text=made.text,
            tokens=await asyncio.to_thread(self._tokens, made.text),
            source_tokens=weight(messages),
            at=messages[-1].at,
            task=made.task,
            suggestion=made.suggestion,
            title=made.title if call.effective.memory.observation.thread_title else None,  # nobody asked for one
            model=made.model,
        )

        def observed(now: Memory) -> Memory:
            # the tail may have been counted anew meanwhile
            counted = structs.replace(chunk, source_tokens=weight(lifecycle.between(now, after, chunk.last)))
            return lifecycle.observed(now, counted)

        now = await self._memories.update(memory.key, observed, born=memory.born)
        kept = bool(now.chunks) and now.chunks[-1].last == chunk.last
        label = self._memories.label(memory.key)
        log.info("observed", thread=label, source=chunk.source_tokens, tokens=chunk.tokens, kept=kept)

    async def _ask(
        self, memory: Memory, messages: tuple[Message, ...], call: Call, *, may_suggest: bool
    ) -> tuple[tuple[Message, ...], Observed]:
        """The observer's answer and the messages it is about: fewer than asked where the prompt was too long, or the answer was
        cut off (docs/spec/behaviour.md#answers). One block that is cut off each time ends in a
        failure: nothing of it is covered."""
        clip: int | None = None
        cut_alone = 0  # answers about one block that were cut off
        while True:
            suggests = may_suggest and lifecycle.reaches_newest(memory, messages[-1].seq)
            task = await asyncio.to_thread(self._task, memory, messages, call, clip, suggests)
            models = self._targets(call.effective.observer_model, call, weight(messages))
            try:
                return messages, await self._observer.observe(
                    task, _rotated(models, cut_alone), call.effective.memory.observation.model_settings
                )
            except (PromptTooLong, CutOff, BrokenAnswer) as exc:
                half = self._half(messages)
                if half:
                    messages = half
                    continue
                cut_alone += not isinstance(exc, PromptTooLong)
                if cut_alone == 1 and not isinstance(exc, PromptTooLong):
                    continue  # a network may do that once: the next model, or the same again, is shown the same
                clip = (clip or min(weight(messages), call.effective.limits.observe_at)) // 2
                if clip < LEAST_CLIP:
                    raise

    def _shrunk(self, messages: tuple[Message, ...], trouble: Trouble) -> tuple[Message, ...]:
        """The older part of a batch that came to no end before: half as much for each failure in a row. To begin with all of it at
        every try would use up the same deadline at the same place, and nothing would ever be covered."""
        for _ in range(trouble.failures if trouble.cause in ENDLESS_CAUSES else 0):
            messages = self._half(messages) or messages
        return messages

    @staticmethod
    def _half(messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The older half at a safe cut; empty when it is one block already."""
        marks = [m.mark for m in messages]
        count = blocks.safe_cut(marks, weight(messages) // 2, 0)
        return messages[:count] if count < len(messages) else ()

    def _task(
        self, memory: Memory, messages: tuple[Message, ...], call: Call, clip: int | None, suggests: bool = False
    ) -> ObserverTask:
        config = call.effective.memory
        return ObserverTask(
            messages=messages,
            previous=previous_observations(_known(memory), call.effective.limits.previous, self._tokens),
            task=lifecycle.current_task(memory),
            title=memory.title,
            undated_to=memory.undated_to,
            about_assistant=self._about_assistant(memory.key, call),
            timezone=zone(memory.timezone, config.timezone),
            instruction=config.observation.instruction,
            variant=config.observation.prompt,
            want_title=config.observation.thread_title,
            want_suggestion=suggests,
            # only one block is ever clipped: of several, what was cut out would be covered and known to nobody
            clip_tokens=clip or (None if self._half(messages) else call.effective.limits.observe_at),
        )

    def _about_assistant(self, key: Key, call: Call) -> str:
        told = call.instructions
        if told is None or told.key != key:
            return ""
        text = "\n".join(read_beginning(raw) for raw in told.beginning)
        return cut_behind(text, ABOUT_ASSISTANT_TOKENS, self._tokens)

    def _targets(self, choice: Choice, call: Call, input_tokens: int) -> tuple[Target, ...]:
        config = call.effective.memory
        key = config.api_key.get_secret_value() if config.api_key else None
        if above_largest(choice, input_tokens):
            # the largest tier's model is asked (docs/spec/behaviour.md#models)
            log.warning("model.above_tiers", input=input_tokens)
        return targets(
            choice,
            inherited=call.inherited,
            api_base=config.api_base,
            api_key=key,
            input_tokens=input_tokens,
            environ=self._environ,
        )

    # ── observing a resource's threads together ──────────────────────────────────────────────────────────────────────

    async def _gather(self, decision: Gather, call: Call, progress: Progress | None) -> bool:
        """All batches, a few at a time; whether any of them worked, so that another look is worth it. Once a call was not answered
        in time, no further one is begun: a server that hangs would hold this place for each of them."""
        places, hangs = asyncio.Semaphore(BATCHES_AT_ONCE), False

        async def placed(batch: Sequence[Key]) -> bool:
            nonlocal hangs
            async with places:
                if hangs:
                    return False
                mine = progress.begin(batch) if progress else batch
                try:
                    return await self._batch(mine, call)
                except TimeoutError:
                    hangs = True
                    return False
                finally:
                    if progress:
                        progress.end(mine)

        done = await asyncio.gather(*(placed(batch) for batch in decision.batches), return_exceptions=True)
        for outcome in done:  # all have ended: nothing goes on without the lease
            if isinstance(outcome, BaseException):
                raise outcome
        return any(done)

    async def _batch(self, keys: Sequence[Key], call: Call) -> bool:
        """One call for these threads; one for each where they cannot be answered together. Whether anything came of it. Raises
        TimeoutError, when the failure has been recorded."""
        found = [
            (memory, due) for memory in [await self._memories.load(key) for key in keys] if (due := _due(memory, call))
        ]
        if len(found) < 2:
            return bool(found) and await self._alone(*found[0], call)
        try:
            async with asyncio.timeout(self._within()):
                await self._together(found, call)
            return True
        except TimeoutError:
            for memory, due in found:  # each is asked about alone next time (gathering.batches)
                await self._failed(memory, due, ModelBusy(LATE))
            raise
        except OmError as exc:
            if not isinstance(exc, ModelError):
                raise  # the store's
        except Exception as exc:
            log.warning("observe.apart", error=type(exc).__name__, threads=len(found))
        # whose trouble it is shows only when each is asked about alone: it must touch no other
        # (docs/spec/behaviour.md#failures)
        return any([await self._alone(memory, due, call) for memory, due in found])

    async def _alone(self, memory: Memory, due: Observe, call: Call) -> bool:
        return await self._guarded(memory, due, self._observe(memory, due, call), raise_late=True)

    async def _together(self, found: Sequence[tuple[Memory, Observe]], call: Call) -> None:
        """A thread that the answer leaves out stays unobserved, and is asked about again after a pause."""
        parts = {self._memories.label(m.key): (m, due, lifecycle.between(m, due.after, due.last)) for m, due in found}
        tasks = {
            label: await asyncio.to_thread(self._task, memory, messages, call, None)
            for label, (memory, _, messages) in parts.items()
        }
        size = sum(weight(messages) for _, _, messages in parts.values())
        models = self._targets(call.effective.observer_model, call, size)
        made = await self._observer.observe_together(tasks, models, call.effective.memory.observation.model_settings)
        for label, (memory, due, messages) in parts.items():
            if label in made:
                await self._keep(memory, due.after, messages, await _kept_of(made[label], call), call)
            else:
                await self._failed(memory, due, Unusable("the answer left this thread out"))

    # ── reflecting ───────────────────────────────────────────────────────────────────────────────────────────────────

    async def _reflect(self, memory: Memory, decision: Reflect, call: Call) -> None:
        sources = _stretch_of(memory, decision)
        if len(sources) < decision.entries or not sources:
            return
        sources, made = await self._condense(sources, decision.accept_below, call)
        made = await _kept_of(made, call)
        size, tokens = sum(o.tokens for o in sources), await asyncio.to_thread(self._tokens, made.text)
        if tokens >= size:  # of a shared log the reflector saw the marks of threads too, which entries do not hold
            raise Oversized("the reflection is no shorter than the notes it is of")
        reflection = Reflection(
            generation=memory.generation,
            sources=tuple(o.id for o in sources),
            text=made.text,
            tokens=tokens,
            source_tokens=size,
            at=self._clock(),
            task=made.task,
            suggestion=made.suggestion,
            model=made.model,
        )
        await self._memories.update(memory.key, lambda m: lifecycle.reflected(m, reflection), born=memory.born)
        log.info("reflected", thread=self._memories.label(memory.key), source=size, tokens=reflection.tokens)

    async def _condense(
        self, sources: tuple[Observation, ...], accept_below: int, call: Call
    ) -> tuple[tuple[Observation, ...], Reflected]:
        """The reflector's answer and the entries it stands for: the older ones only where all were too long for it.

        The newer ones then stay word for word behind it. Parts reflected one by one and joined would lose more: all entries would
        be rewritten, and become one that can never be split again.
        """
        config, whole = call.effective.memory.reflection, sum(o.tokens for o in sources)
        while True:
            size = sum(o.tokens for o in sources)
            try:
                return sources, await self._reflector.reflect(
                    _joined(sources),
                    target_tokens=accept_below * size // max(whole, 1),
                    instruction=config.instruction,
                    targets=self._targets(call.effective.reflector_model, call, size),
                    settings=config.model_settings,
                    labels=_labels(sources),
                )
            except PromptTooLong:
                if len(sources) == 1:
                    raise
                # not half of them: a refusal costs little, and with too few the oldest one is condensed over and over
                sources = sources[: len(sources) * 3 // 4]


def _rotated(models: tuple[Target, ...], by: int) -> tuple[Target, ...]:
    """The models in order from another one on."""
    return models[by % len(models) :] + models[: by % len(models)]


async def settle(memories: Memories, keys: Sequence[Key], now: float) -> bool:
    """Make the buffered notes of these threads part of the log; whether there were any."""
    moved = False
    for key in keys:
        memory = await memories.load(key)
        ids = tuple(c.id for c in lifecycle.settling(memory))
        if ids:
            await memories.update(key, partial(lifecycle.activated, ids=ids, now=now), born=memory.born)
            moved = True
    return moved


async def _kept_of(made: Notes, call: Call) -> Notes:
    """What may be kept of an answer: no secret, unless the configuration wants them all."""
    return await asyncio.to_thread(without_secrets, made) if call.effective.memory.observation.redact else made


def _known(memory: Memory) -> list[str]:
    """The log as the observer should know it: a pending reflection stands in for what it covers; then what is buffered."""
    log, pending = memory.log, memory.reflection
    at = lifecycle.find_sources(log, pending) if pending else None
    told = [section for o in (log[: at.start] if at else log) for section in sections.sections(o)]
    if pending and at:
        labels = _labels(log[at])
        told += sections.reflected(pending.text, labels) if labels else [sections.Section(None, pending.text)]
        told += (section for o in log[at.stop :] for section in sections.sections(o))
    return sections.plain(told) + [o.text for o in memory.chunks]


def _stretch_of(memory: Memory, decision: Reflect) -> tuple[Observation, ...]:
    return memory.log[decision.start : decision.start + decision.entries]


def _labels(entries: Sequence[Observation]) -> set[str]:
    """The threads that entries of a shared log are about; of a thread's own log none."""
    return {part.label for o in entries for part in o.parts}


def _joined(sources: Sequence[Observation]) -> str:
    """What a reflector is given; of a shared log in sections."""
    if _labels(sources):
        return sections.shown(section for o in sources for section in sections.sections(o))
    return "\n\n".join(o.text for o in sources)


def _due(memory: Memory, call: Call) -> Observe | None:
    """What of a thread is observed together with others: all that may be, up to T."""
    return lifecycle.everything(memory, call.effective.limits.observe_at)
