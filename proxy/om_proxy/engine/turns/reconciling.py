"""Compare a request with its thread's memory, and again after other commits.

A count of messages that fails gives way to an estimate: it stops no turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial

from msgspec.structs import replace

from om_proxy.agents.models import TokenCounter
from om_proxy.common.errors import Conflict
from om_proxy.common.off_loop import MANY_BYTES, MANY_MESSAGES, run_off_loop
from om_proxy.common.reasons import Reason
from om_proxy.engine.memory_cache.memories import Memories, retry_on_conflict
from om_proxy.engine.policy import MemoryContext
from om_proxy.engine.turns.deliveries import Deliveries
from om_proxy.engine.turns.named_replies import find_items, find_named_reply
from om_proxy.engine.turns.turn import (
    MissedTurn,
    OpenedTurn,
    ReconciledTurn,
    TakenForSideRequest,
    UnknownPast,
)
from om_proxy.memory.dates import find_zone
from om_proxy.memory.lifecycle import branch, log_sharing
from om_proxy.memory.model import (
    EMPTY_MARK,
    MESSAGE_FRAMING_TOKENS,
    Generation,
    Item,
    Key,
    Mark,
    Memory,
    Message,
    Observation,
    ReplyOrigin,
    Scope,
    resource_key,
)
from om_proxy.memory.tokens import estimate_tokens
from om_proxy.memory.transcript.apply_turn import apply_request
from om_proxy.memory.transcript.corrections import NeedTexts
from om_proxy.memory.transcript.rebase_turn import (
    find_own_attempt,
    find_recorded_attempt,
    keeps_numbers,
    rebase_turn,
    resume_turn,
)
from om_proxy.memory.transcript.reconcile import (
    Hints,
    may_be_side_request,
    reconcile,
    repeats_nothing,
)
from om_proxy.memory.transcript.sent_history import HashedMessages, SentHistory
from om_proxy.memory.transcript.stored_transcript import NeedOutline, StoredTranscript
from om_proxy.memory.transcript.unstored import rewind_memory
from om_proxy.memory.transcript.verdict import Verdict
from om_proxy.memory.transcript.wordings import StoredText, Texts, Wording, read_wording
from om_proxy.observability.facts import Facts
from om_proxy.settings.identity.callers import Caller
from om_proxy.settings.identity.keyed_hashes import fingerprint_key, hash_reply_id
from om_proxy.storage.values.changes import Change
from om_proxy.wire.apis.api import ReferenceApi, Reply, Request, Unreadable
from om_proxy.wire.apis.json_text import write_canonical
from om_proxy.wire.apis.registry import view_message


def find_uncounted(verdict: Verdict, sent: SentHistory) -> dict[int, bytes]:
    """Return the messages whose tokens are not known, by their index in `sent`."""
    swapped = (index for _, index in verdict.swaps)
    added = (*verdict.new, *verdict.corrections)
    return {index: sent.item(index).raw for index in (*added, *swapped)}


def _read_item_with(half: ReferenceApi, request: Request, key: bytes, raw: bytes) -> Item:
    return request.api.read_item(half.put_in_items(raw, request.items), key)


def is_lone_repeat(memory: Memory, sent: SentHistory) -> bool:
    """Return whether a lone message was sent again, byte for byte, and its reply is the newest
    message. It is a retry if the reply was not delivered, else a new message."""
    view = sent.seen
    return view is not None and view.count == 1 == sent.count and 0 < view.reply == memory.end


def _reconcile_with(
    build_transcript: Callable[[], StoredTranscript],
    sent: SentHistory,
    hints: Hints,
    texts: Texts | None,
) -> Verdict | NeedOutline | NeedTexts:
    return reconcile(build_transcript(), sent, hints, texts)


def _read_wording(raw: bytes, api: str) -> Wording | None:
    view = view_message(raw, api)
    return None if view is None else read_wording(view, write_canonical)


@dataclass(frozen=True, slots=True, eq=False)
class Reconciler:
    """The comparison of requests with memories. `last_seq_being_read` returns the seq up to which
    an observation under way reads a thread: the text of these messages may not change."""

    memories: Memories
    token_counter: TokenCounter
    secret: bytes = field(repr=False)
    clock: Callable[[], float]
    last_seq_being_read: Callable[[Key], int]
    deliveries: Deliveries

    async def reconcile(
        self,
        caller: Caller,
        request: Request,
        context: MemoryContext,
        hints: Hints,
        came_at: float | None = None,
        missed: MissedTurn | None = None,
    ) -> OpenedTurn:
        """Open the turn of this request. `caller.key` must be set. Raise TakenForSideRequest.
        `came_at`: when the request came; None: now. `missed`: its turn, if its memory could not be
        read when it came. Something of it may be stored already."""
        forget_count = self.memories.forgettings.count
        asked_at = self.clock() if came_at is None else came_at
        return await retry_on_conflict(
            partial(
                self._load_and_reconcile,
                caller,
                request,
                context,
                hints,
                forget_count,
                asked_at,
                missed,
            )
        )

    async def _load_and_reconcile(
        self,
        caller: Caller,
        request: Request,
        context: MemoryContext,
        hints: Hints,
        forget_count: int,
        asked_at: float,
        missed: MissedTurn | None,
    ) -> OpenedTurn:
        key = caller.key
        should_store = caller.mode != "read"
        assert key is not None  # only requests with a thread get here
        scope = caller.scope or context.effective.memory.scope
        memory = await self.memories.load(key, scope)
        if memory.scope != scope:
            memory = await self._change_scope(memory, scope, should_store=should_store)
        context = context.with_overrides(memory.overrides)
        messages = request.messages
        known_count = messages.digests.count if isinstance(messages, HashedMessages) else 0
        new_count = len(messages) - known_count
        sent, is_known = await self._read_sent_history(request, memory, new_count)
        if not is_known:
            raise UnknownPast
        has_instructions = request.leaves_instructions
        if request.previous is not None:
            hashed = hash_reply_id(self.secret, request.previous)
            named = await find_named_reply(self.memories.store, memory, hashed)
            if named is None or named.item.origin is None:
                raise UnknownPast
            hints = replace(hints, answered_seq=named.seq)
            has_instructions = has_instructions or named.item.origin.has_instructions
        is_held_back = has_instructions and request.previous is not None
        own = missed and find_own_attempt(
            memory,
            sent,
            asked_at,
            self._find_reply_fp(key, request, missed.reply),
            may_be_stored=missed.is_commit_begun,
        )
        if (
            own is None
            and not hints.answered_seq
            and may_be_side_request(memory, sent, hints)
            and await self._is_side_request(memory, sent, request)
        ):
            raise TakenForSideRequest
        verdict = resume_turn(memory, sent, own) if own else None
        reconciled = await self._apply_request(
            memory, sent, hints, request.model, context, asked_at, verdict
        )
        return OpenedTurn(
            key,
            scope,
            context,
            hints,
            request,
            reconciled,
            case=reconciled.verdict.case,
            previous_render_date=reconciled.memory.render_date,
            timezone=caller.timezone,
            row_id=reconciled.memory.row_id,
            forget_count=forget_count,
            asked_at=asked_at,
            should_store=should_store,
            can_rewrite=caller.mode != "write"
            and context.effective.memory.mode != "shadow"
            and not is_held_back,
            look_up_scope=caller.choose_look_up_scope(context.effective.memory.retrieval.scope),
            kept_reason=Reason.SERVER_STATE if is_held_back else Reason.WRITE_ONLY,
            has_instructions=has_instructions,
        )

    def _find_reply_fp(self, key: Key, request: Request, reply: Reply | None) -> bytes | None:
        if reply is None or reply.message is None or not reply.complete:
            return None
        try:
            return request.api.read_item(reply.message, key=self._fingerprint_key(key)).fp
        except Unreadable:
            return None

    async def _read_sent_history(
        self, request: Request, memory: Memory, new_count: int
    ) -> tuple[SentHistory, bool]:
        """Return what was sent, and whether all items that it refers to are known. Behind a recorded
        attempt that is live nobody reads what is in front."""
        api, key = request.api, self._fingerprint_key(memory.key)
        half, parse = api.references, partial(api.read_item, key=key)
        references = half.list_references(request) if half else None
        if half and references:
            parse = partial(_read_item_with, half, request, key)
        read = partial(SentHistory.of, request.messages, parse, memory.views)
        sent = read() if new_count <= MANY_MESSAGES else await run_off_loop(new_count, read)
        if not half or not references:
            return sent, True
        if sent.seen and any(mark.seq == sent.seen.seq for mark in memory.marks):
            references = half.list_references(request, sent.seen.count)
        return sent, await find_items(self.memories.store, memory, request, half, references)

    def _fingerprint_key(self, key: Key) -> bytes:
        return fingerprint_key(self.secret, key.tenant)

    async def _apply_request(
        self,
        memory: Memory,
        sent: SentHistory,
        hints: Hints,
        model: str | None,
        context: MemoryContext,
        asked_at: float,
        verdict: Verdict | None = None,
    ) -> ReconciledTurn:
        """Compare with the memory, or use `verdict`, which is rebased on that memory already."""
        if verdict is None:
            if is_lone_repeat(memory, sent):
                hints = replace(hints, undelivered=await self.deliveries.is_undelivered(memory))
            verdict = await self._compare(memory, sent, hints)
        forks_before_coverage = verdict.cut_seq is not None and verdict.cut_seq < memory.coverage
        base = memory
        if forks_before_coverage:
            timezone = context.effective.memory.timezone
            base = await self._roll_back_to_branch(memory, verdict, timezone)
        revived: dict[int, Message] = {}
        if verdict.revive:
            messages = await self.memories.store.messages_by_seq(memory.key, verdict.revive)
            revived = {message.seq: message for message in messages}
            if not revived.keys() >= set(verdict.revive):
                raise Conflict("messages of the thread are gone: it was forgotten meanwhile")
        changed_count = len(verdict.new) + len(verdict.swaps) + len(verdict.corrections)
        uncounted: dict[int, bytes] = {}
        if changed_count > MANY_MESSAGES:
            uncounted = await run_off_loop(changed_count, partial(find_uncounted, verdict, sent))
        elif changed_count:
            uncounted = find_uncounted(verdict, sent)
        tokens: Mapping[int, int] = {}
        encoding = ""
        if uncounted:
            tokens, encoding = await count_messages(
                self.token_counter,
                self.memories.facts,
                memory.key,
                uncounted,
                model or "",
                sent.api,
            )
        apply = partial(
            apply_request,
            base,
            verdict,
            sent,
            tokens,
            asked_at,
            revived=revived,
            encoding=encoding,
            asked_at=asked_at,
            said_at=hints.said_at,
        )
        asked = (
            apply() if changed_count <= MANY_MESSAGES else await run_off_loop(changed_count, apply)
        )
        return ReconciledTurn(memory, base, sent, verdict, revived, tokens, asked, asked)

    async def _is_side_request(self, memory: Memory, sent: SentHistory, request: Request) -> bool:
        if request.offers_tools:
            return False
        sent_count = sent.count
        is_new = await run_off_loop(
            sent_count, lambda: repeats_nothing(StoredTranscript.of(memory), sent)
        )
        if isinstance(is_new, NeedOutline):
            outline = await self.memories.store.outline(memory.key)
            build_transcript = partial(
                StoredTranscript.of, memory, live=outline.live, superseded=outline.superseded
            )
            is_new = await run_off_loop(
                sent_count + len(outline.live), lambda: repeats_nothing(build_transcript(), sent)
            )
        return is_new is True

    async def _compare(self, memory: Memory, sent: SentHistory, hints: Hints) -> Verdict:
        fixed = max(memory.chunked_to, self.last_seq_being_read(memory.key))
        message_count = sent.count - (sent.seen.count if sent.seen else 0)
        build_transcript = partial(StoredTranscript.of, memory, fixed=fixed)
        texts: Texts | None = None
        has_outline = False
        while True:
            if message_count <= MANY_MESSAGES:
                answer = reconcile(build_transcript(), sent, hints, texts)
            else:
                compare = partial(_reconcile_with, build_transcript, sent, hints, texts)
                answer = await run_off_loop(message_count, compare)
            if isinstance(answer, NeedTexts):
                texts = await self._read_texts(memory, answer.seqs, sent.api)
                message_count += len(answer.seqs)
            elif not isinstance(answer, NeedOutline):
                return answer
            elif has_outline:
                raise Conflict(
                    "the thread changed while its outline was read; the next request finds it settled"
                )
            else:
                outline = await self.memories.store.outline(memory.key)
                await self._check_versions(memory)
                build_transcript = partial(
                    build_transcript,
                    live=tuple(mark for mark in outline.live if mark.seq < memory.next_seq),
                    superseded=outline.superseded,
                )
                message_count += len(outline.live)
                has_outline = True

    async def _read_texts(self, memory: Memory, seqs: Sequence[int], api: str) -> Texts:
        """Read these messages for a comparison by their texts. `api`: of the sent ones."""
        wanted = set(seqs)
        messages = [message for message in memory.tail if message.seq in wanted]
        covered = sorted(wanted.difference([message.seq for message in messages]))
        if covered:
            messages += await self.memories.store.messages_by_seq(memory.key, covered)

        def read() -> Texts:
            stored = {
                message.seq: StoredText(wording, message.item.fp)
                for message in messages
                if (wording := _read_wording(message.item.raw, message.item.api))
            }
            return Texts(stored, partial(_read_wording, api=api))

        return read() if len(seqs) <= MANY_MESSAGES else await run_off_loop(len(seqs), read)

    async def _check_versions(self, memory: Memory) -> None:
        """Raise Conflict if the thread has changed since `memory` was loaded: in that case, the
        values read after it belong to another version."""
        versions = {memory.key: memory.version}
        if memory.shared_log_ref:
            versions[resource_key(memory.key)] = memory.shared_log_ref.version
        for key, version in versions.items():
            if await self.memories.store.version(key) != version:
                self.memories.held.drop(key)
                raise Conflict("the thread changed while more of it was read")

    async def _roll_back_to_branch(self, memory: Memory, verdict: Verdict, timezone: str) -> Memory:
        """Return the memory rolled back to the branch of a request that forks before coverage
        (docs/contributing/behaviour.md#branch)."""
        assert verdict.cut_seq is not None  # a fork has a cut
        older = await self._load_generations(memory)
        live = (await self.memories.store.outline(memory.key)).live
        entries, note_seq = branch.find_rollback_target(
            memory, verdict.cut_seq, older, {m.seq: m.chain for m in live}
        )
        if note_seq is not None:
            when = datetime.fromtimestamp(self.clock(), find_zone(memory.timezone, timezone))
            at = next((m for m in reversed(live) if m.seq <= note_seq), EMPTY_MARK)
            entries = branch.add_rollback_note(memory, entries, at, when, self.token_counter.tokens)
        return await self._roll_back(memory, verdict.cut_seq, entries, live)

    async def _load_generations(self, memory: Memory) -> Sequence[Generation]:
        where = resource_key(memory.key) if memory.shared_log_ref else memory.key
        return await self.memories.store.generations(where, memory.log.generation)

    async def _roll_back(
        self, memory: Memory, cut_seq: int, entries: tuple[Observation, ...], live: Sequence[Mark]
    ) -> Memory:
        coverage = branch.find_coverage(memory, entries)
        covered = [m for m in live if m.seq <= coverage]
        tail = await self.memories.store.messages(memory.key, coverage)
        await self._check_versions(memory)
        before = (
            len(covered),
            sum(m.tokens for m in covered) + MESSAGE_FRAMING_TOKENS * len(covered),
        )
        return branch.roll_back(memory, cut_seq, entries, covered, tail, before, self.clock())

    async def _change_scope(self, memory: Memory, scope: Scope, *, should_store: bool) -> Memory:
        """Let the thread share its resource's log instead of its own, or the other way round."""
        if scope == "resource":
            shared_log = await self.memories.load(resource_key(memory.key))
            label = self.memories.label(memory.key)
            after = log_sharing.join_shared_log(memory, shared_log, label, self.clock())
            if not should_store:
                return after
            bare, log = log_sharing.detach_log(after)
            return await self.memories.commit_shared(Change(memory, bare), Change(shared_log, log))
        own, shared_log_after = log_sharing.leave_shared_log(
            memory, await self._load_generations(memory), self.clock()
        )
        thread, shared_log_before = log_sharing.detach_log(memory)
        live = (await self.memories.store.outline(memory.key)).live
        after = await self._roll_back(
            log_sharing.finish_leaving(thread, own, self.clock()), memory.end, own, live
        )
        if not should_store:
            return after
        changed = (
            Change(shared_log_before, shared_log_after)
            if shared_log_after != shared_log_before
            else None
        )
        return await self.memories.commit_shared(Change(thread, after), changed)

    async def refresh(self, turn: OpenedTurn) -> ReconciledTurn:
        """Compare the turn with the memory as it is now."""
        memory = await self.memories.latest_of_row(turn.key, turn.scope, turn.row_id)
        reconciled = turn.reconciled
        if (
            memory.version == reconciled.memory.version
            and memory.shared_log_ref == reconciled.memory.shared_log_ref
        ):
            return reconciled
        if memory.scope != turn.scope:
            should_store = turn.should_store and not self.is_forgotten(turn, memory)
            memory = await self._change_scope(memory, turn.scope, should_store=should_store)
        sent = reconciled.sent
        verdict: Verdict | None = None
        if keeps_numbers(memory, reconciled.memory):
            verdict = rebase_turn(memory, reconciled.verdict, sent, turn.asked_at)
        if verdict is None:
            message_count = len(turn.request.messages)
            # `sent` was recognised by the views of another memory
            sent, _ = await self._read_sent_history(turn.request, memory, message_count)
            # its message may be stored ahead of its reply
            own = find_recorded_attempt(memory, sent, turn.asked_at)
            verdict = resume_turn(memory, sent, own) if own else None
        return await self._apply_request(
            memory, sent, turn.hints, turn.request.model, turn.context, turn.asked_at, verdict
        )

    async def reconcile_in_time(self, turn: OpenedTurn) -> tuple[ReconciledTurn, Memory]:
        """Compare a turn that is stored late with the memory as it was when its request came.
        Return that, and the memory as it is now."""
        newest = await self.memories.latest_of_row(turn.key, turn.scope, turn.row_id)
        if newest.scope != turn.scope:
            newest = await self._change_scope(newest, turn.scope, should_store=turn.should_store)
        then = rewind_memory(newest, turn.asked_at)
        sent, _ = await self._read_sent_history(turn.request, then, len(turn.request.messages))
        reconciled = await self._apply_request(
            then, sent, turn.hints, turn.request.model, turn.context, turn.asked_at
        )
        return reconciled, newest

    def is_forgotten(self, turn: OpenedTurn, memory: Memory) -> bool:
        """Return whether the thread was forgotten after the turn began. `memory`: as it is now."""
        return self.memories.forgettings.is_forgotten_since(memory, turn.row_id, turn.forget_count)

    async def is_name_forgotten(self, turn: OpenedTurn, memory: Memory) -> bool:
        """Return whether a first turn was forgotten, though others have stored its thread since."""
        return await self.memories.forgettings.is_name_forgotten(memory, turn.row_id, turn.asked_at)

    async def refresh_until_stable(self, turn: OpenedTurn) -> OpenedTurn:
        """Return the turn compared with the newest memory, even while other turns commit."""
        reconciled = await retry_on_conflict(partial(self.refresh, turn))
        if reconciled is turn.reconciled:
            return turn
        if await self.is_name_forgotten(turn, reconciled.memory):
            return replace(turn, reconciled=reconciled)  # its commit finds that, too
        return replace(turn, reconciled=reconciled, row_id=turn.row_id or reconciled.memory.row_id)

    async def read_reply_item(self, turn: OpenedTurn, reply: Reply | None) -> Item | None:
        """Return the reply as the memory stores it; None if there is no readable one."""
        if reply is None or reply.message is None:
            return None
        key = self._fingerprint_key(turn.key)
        read = partial(turn.request.api.read_item, reply.message, key=key)
        size_bytes = len(reply.message)
        try:
            if size_bytes <= MANY_BYTES:
                item = read()
            else:
                item = await run_off_loop(size_bytes, read, MANY_BYTES)
        except Unreadable:
            return None  # the client's messages are then stored as unanswered
        if reply.id is None or not reply.complete:
            return item
        return replace(item, origin=self._describe_origin(turn, reply.id, reply.is_stored))

    def is_named_as(self, turn: OpenedTurn, recorded: Item, reply: Reply) -> bool:
        """Return whether later requests name the stored reply as they would name this one."""
        if reply.id is None:
            return True
        return recorded.origin == self._describe_origin(turn, reply.id, reply.is_stored)

    def _describe_origin(self, turn: OpenedTurn, id_: str, is_stored: bool) -> ReplyOrigin:
        server, hashed = turn.context.server, hash_reply_id(self.secret, id_)
        return ReplyOrigin(hashed, server, is_stored, turn.has_instructions)


async def count_messages(
    token_counter: TokenCounter,
    facts: Facts,
    key: Key,
    raws: Mapping[int, bytes],
    model: str,
    api: str,
) -> tuple[Mapping[int, int], str]:
    """Return the payload tokens of each message by its key in `raws`, and the name of the encoding.
    Without a message, or of estimates, it is empty: these are counted again after the reply."""
    if not raws:
        return {}, ""

    async def count() -> tuple[Mapping[int, int], str]:
        return await token_counter.count(raws, model, api), token_counter.encoding(model)

    counted = await facts.await_extra("tokens", key, None, count)
    if counted is not None:
        return counted
    return {n: estimate_tokens(raw.decode("utf-8", "replace")) for n, raw in raws.items()}, ""
