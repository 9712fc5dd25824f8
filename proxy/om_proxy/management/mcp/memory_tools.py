"""Carry out the calls of the four tools, by the look-ups that an actor has. A thread's notes are
the observation block without its preamble."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple
from zoneinfo import ZoneInfo

import structlog

from om_proxy.common.errors import OmError, raise_site
from om_proxy.common.off_loop import run_in_turn
from om_proxy.engine.recall.conversations import read_list_page
from om_proxy.engine.recall.performing import ReadingRights
from om_proxy.management.api.access import Reader
from om_proxy.management.api.admin_call import AdminServices
from om_proxy.management.api.requests import normalize_stored_name
from om_proxy.management.mcp.tools import (
    NO_RESOURCE,
    NO_TENANT,
    NO_THREAD,
    ToolCall,
    use_tool_names,
)
from om_proxy.memory.dates import find_zone, format_moment, read_time
from om_proxy.memory.lifecycle.hints import active_hints
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, Observation
from om_proxy.memory.notes.sections import split_entry
from om_proxy.memory.prompt.context import ContextOptions, observation_block
from om_proxy.memory.recall.arguments import (
    CANNOT_READ_NOW,
    ONLY_THIS_CONVERSATION,
    LookUp,
    LookUpFault,
    ambiguous_label,
    read_look_up,
    unknown_conversation,
)
from om_proxy.memory.recall.clipping import CountTokens, find_fitting_chars
from om_proxy.memory.recall.found import PassageFilter
from om_proxy.memory.recall.message_ids import parse_label, shorten_label, write_range_line
from om_proxy.memory.recall.quoted_message import clean_line, clean_text
from om_proxy.memory.recall.thread_list import (
    ListedThread,
    ThreadListPage,
    find_list_limit,
    write_resource_name,
    write_thread_list,
)
from om_proxy.settings.config import Effective
from om_proxy.settings.identity.callers import choose_reading_scope
from om_proxy.storage.values.listing import ThreadInfo, ThreadSelection
from om_proxy.storage.whole_threads import list_selected

MAX_CALL_S = 10.0
# a search without a resource asks so many, those with the latest turns, and shows the best
MAX_SEARCHED_RESOURCES = 20
TOKENS_A_RESOURCE = 500  # an answer has room for so many of each
MAX_LISTED_THREADS = 2_000  # among which those resources are looked for
SEARCH_S = 5.0  # after this time no further resource is asked

logger = structlog.get_logger("mcp")


MAX_NOTE_TOKENS = 8_000
MAX_NAME_CHARS = 60
_CUT = "\n… (cut here)"


class ToolAnswer(NamedTuple):
    """The text of a tool's answer, as UTF-8 can hold it."""

    text: str
    is_error: bool


class _Asked(NamedTuple):
    """A call together with whose memory it reads. `resource` None: all of the tenant's."""

    call: ToolCall
    tenant: str
    resource: str | None
    reader: Reader

    @property
    def resource_key(self) -> Key:
        """The key that stands for the whole resource: none of its threads is the current one."""
        if self.resource is None:
            raise LookUpFault(NO_RESOURCE)
        return Key(self.tenant, self.resource, RESOURCE_THREAD)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryTools:
    """The tools. Nothing that a caller sends is logged."""

    services: AdminServices

    async def call(self, call: ToolCall, reader: Reader) -> ToolAnswer:
        """Carry out a call. What goes wrong is told in the answer."""
        try:
            asked = _find_asked(call, reader)
            async with asyncio.timeout(MAX_CALL_S):
                text = await self._perform(asked)
            key = Key(asked.tenant, asked.resource or "", RESOURCE_THREAD)
            await self.services.audit_log.record_reading(reader.who, call.tool, key)
        except LookUpFault as fault:
            return _write_answer(fault.text, is_error=True)
        except (OmError, TimeoutError):
            return _write_answer(CANNOT_READ_NOW, is_error=True)
        except Exception as exc:
            logger.error("mcp.failed", error=type(exc).__name__, at=raise_site(exc))
            return _write_answer(CANNOT_READ_NOW, is_error=True)
        return _write_answer(text, is_error=False)

    async def _perform(self, asked: _Asked) -> str:
        match asked.call.tool:
            case "search_memory" if asked.resource is None:
                return await self._search_tenant(asked)
            case "list_threads" if asked.resource is None:
                return await self._list_tenant(asked)
            case "get_notes":
                return await self._write_notes(asked)
            case "search_memory":
                return await self._look_up("search", asked)
            case "list_threads":
                return await self._look_up("threads", asked)
            case "read_messages":
                return await self._look_up("messages", asked)

    # ── one resource ──────────────────────────────────────────────────────────────────────────────

    async def _look_up(self, mode: str, asked: _Asked) -> str:
        key = asked.resource_key
        if asked.call.thread is not None or asked.reader.only_thread is not None:
            key = await self._find_thread(asked)
        is_one_thread = key.thread != RESOURCE_THREAD and mode != "messages"
        memory = await self.services.look_ups.memories.load(key)
        rights = ReadingRights(
            key,
            choose_reading_scope(
                "thread" if is_one_thread else "resource",
                is_for_one_thread=asked.reader.only_thread is not None,
            ),
            self._find_zone(memory),
            self._find_settings(memory).memory.retrieval.tokens,
        )
        look_up = read_look_up({**asked.call.fields, "mode": mode}, rights.zone)
        performer = self.services.look_ups
        result = await performer.perform(look_up, rights, performer.open_conversations(rights))
        return result.text

    async def _find_thread(self, asked: _Asked) -> Key:
        """Return the thread that a call names, by its own name or by its id. Raise LookUpFault: in
        the same words for an unknown one and for another's."""
        written = asked.call.thread
        only = asked.reader.only_thread
        memories = self.services.look_ups.memories
        key = asked.resource_key
        if written is not None:
            own_name = key._replace(thread=normalize_stored_name(written))
            label = parse_label(written)
            if only is not None:
                only_key = key._replace(thread=only)
                is_only = own_name == only_key or memories.label(only_key).startswith(label or "-")
                if not is_only:
                    raise LookUpFault(ONLY_THIS_CONVERSATION)
            elif own_name.thread and (await memories.load(own_name)).version:
                return own_name
            else:
                return await self._find_labelled(key, label, written)
        if only is None:
            raise LookUpFault(NO_THREAD)
        return key._replace(thread=only)

    async def _find_labelled(self, resource_key: Key, label: str | None, written: str) -> Key:
        found: dict[str, Key] = {}
        if label is not None:
            selection = ThreadSelection(resource_key.tenant, resource_key.resource)
            async for info in self._list(selection):
                whole = self.services.look_ups.memories.label(info.key)
                if whole.startswith(label):
                    found[whole] = info.key
        if len(found) > 1:
            raise ambiguous_label(label or "", sorted(found)[:5])
        if not found:
            raise unknown_conversation(written)
        return next(iter(found.values()))

    async def _write_notes(self, asked: _Asked) -> str:
        memory, label = await self._load_noted(asked)
        effective = self._find_settings(memory)
        context = effective.context
        now = datetime.fromtimestamp(self.services.clock(), self._find_zone(memory))
        options = ContextOptions(context.relative_time, context.priorities)
        notes = NotesToWrite(memory, label, now, options)
        return await run_in_turn(partial(write_notes, notes, self.services.look_ups.count_tokens))

    async def _load_noted(self, asked: _Asked) -> tuple[Memory, str]:
        """Return the memory whose notes are asked for, and the thread's label. Without a thread it
        is the log that the resource's threads share, or the thread that is its own resource."""
        memories = self.services.look_ups.memories
        if asked.call.thread is not None or asked.reader.only_thread is not None:
            key = await self._find_thread(asked)
            return await memories.load(key), shorten_label(memories.label(key))
        shared = await memories.load(asked.resource_key)
        if shared.version:
            return shared, ""
        key = asked.resource_key._replace(thread=asked.resource or "")
        own = await memories.load(key)
        if not own.version:
            raise LookUpFault(NO_THREAD)
        return own, shorten_label(memories.label(key))

    # ── a whole tenant ────────────────────────────────────────────────────────────────────────────

    async def _list_tenant(self, asked: _Asked) -> str:
        settings = self.services.policies.current.settings.effective(None).memory
        zone = find_zone(None, settings.timezone)
        look_up = read_look_up({**asked.call.fields, "mode": "threads"}, zone)
        limit = find_list_limit(look_up.limit, settings.retrieval.tokens)
        infos = await read_list_page(
            self._list(ThreadSelection(asked.tenant, order="recent")),
            look_up,
            limit,
            self.services.look_ups.memories.label,
        )
        listed = tuple(self._describe_thread(info) for info in infos)
        next_at = listed[limit].active_at if len(listed) > limit else None
        page = ThreadListPage(listed[:limit], look_up.page, limit, next_at)
        count_tokens = self.services.look_ups.count_tokens
        text, _ = await run_in_turn(
            partial(write_thread_list, page, zone, settings.retrieval.tokens, count_tokens)
        )
        return text

    def _describe_thread(self, info: ThreadInfo) -> ListedThread:
        label = self.services.look_ups.memories.label(info.key)
        return ListedThread(
            label,
            info.title,
            info.messages,
            info.created_at,
            info.active_at,
            is_current=False,
            resource=info.key.resource,
        )

    async def _search_tenant(self, asked: _Asked) -> str:
        """Search the resources that were used last, and quote from those with the best messages."""
        if asked.call.thread is not None:
            raise LookUpFault(NO_RESOURCE)
        settings = self.services.policies.current.settings.effective(None).memory
        zone = find_zone(None, settings.timezone)
        look_up = read_look_up({**asked.call.fields, "mode": "search"}, zone)
        resources, has_more = await self._list_resources(asked.tenant)
        ends_at = asyncio.get_running_loop().time() + SEARCH_S
        hits: list[tuple[float, str]] = []
        for searched, resource in enumerate(resources):
            if asyncio.get_running_loop().time() > ends_at:
                resources, has_more = resources[:searched], True
                break
            hits += await self._rank(Key(asked.tenant, resource, RESOURCE_THREAD), look_up)
        best = sorted(hits, reverse=True)[: look_up.limit]
        max_shown = settings.retrieval.tokens // TOKENS_A_RESOURCE
        shown = list(dict.fromkeys(resource for _, resource in best))[:max_shown]
        told = f"; only the {len(resources)} used last were searched" if has_more else ""
        if not shown:
            return f"recall: nothing found in any resource{told}. Try other words"
        parts = [f"the best of {len(shown)} resource{'' if len(shown) == 1 else 's'}{told}"]
        headers = [f"resource {write_resource_name(resource)}: " for resource in shown]
        taken = self.services.look_ups.count_tokens("\n".join((*parts, *headers)))
        room = (settings.retrieval.tokens - taken) // len(shown)
        for resource, header in zip(shown, headers, strict=True):
            limit = sum(1 for _, of in best if of == resource)
            parts.append(header + await self._search_resource(asked, resource, limit, room))
        return "\n".join(parts)

    async def _rank(self, key: Key, look_up: LookUp) -> list[tuple[float, str]]:
        passage_filter = PassageFilter(None, look_up.before, look_up.after)
        search = self.services.look_ups.message_search
        result = await search.search(key, look_up.query, passage_filter)
        return [(hit.score, key.resource) for hit in result.ranked[: look_up.limit]]

    async def _search_resource(
        self, asked: _Asked, resource: str, limit: int, max_tokens: int
    ) -> str:
        performer = self.services.look_ups
        key = Key(asked.tenant, resource, RESOURCE_THREAD)
        zone = self._find_zone(Memory(key=key))
        rights = ReadingRights(key, "resource", zone, max_tokens)
        fields = {**asked.call.fields, "mode": "search", "limit": limit}
        narrowed = read_look_up(fields, zone)
        result = await performer.perform(narrowed, rights, performer.open_conversations(rights))
        return use_tool_names(result.text)

    async def _list_resources(self, tenant: str) -> tuple[list[str], bool]:
        """Return the resources with the latest turns, and whether there are more."""
        resources: dict[str, None] = {}
        read = 0
        async for info in self._list(ThreadSelection(tenant, order="recent")):
            read += 1
            resources[info.key.resource] = None
            if len(resources) > MAX_SEARCHED_RESOURCES or read >= MAX_LISTED_THREADS:
                return list(resources)[:MAX_SEARCHED_RESOURCES], True
        return list(resources), False

    # ── shared ────────────────────────────────────────────────────────────────────────────────────

    def _list(self, selection: ThreadSelection) -> AsyncIterator[ThreadInfo]:
        return list_selected(self.services.look_ups.memories.store, selection)

    def _find_settings(self, memory: Memory) -> Effective:
        return self.services.policies.current.base_settings(memory)

    def _find_zone(self, memory: Memory) -> ZoneInfo:
        return find_zone(memory.timezone, self._find_settings(memory).memory.timezone)


def _find_asked(call: ToolCall, reader: Reader) -> _Asked:
    """Return whose memory the call reads. Raise LookUpFault."""
    if reader.tenant is None:
        raise LookUpFault(NO_TENANT)
    resource = reader.resource
    if call.resource is not None:
        resource = normalize_stored_name(call.resource)
        if not reader.may_read(resource):
            raise unknown_conversation(call.thread or "")
    return _Asked(call, reader.tenant, resource, reader)


def _write_answer(text: str, *, is_error: bool) -> ToolAnswer:
    readable = use_tool_names(text).encode("utf-8", "replace").decode()
    return ToolAnswer(readable, is_error)


class NotesToWrite(NamedTuple):
    """The notes of a thread or, without its name, of a resource. `now`: in the reader's zone."""

    memory: Memory
    label: str
    now: datetime
    options: ContextOptions


def write_notes(notes: NotesToWrite, count_tokens: CountTokens) -> str:
    """Write the notes in at most MAX_NOTE_TOKENS, the oldest left out first. The first line tells
    how many are."""
    entries = [entry for entry in notes.memory.log.entries if not entry.is_withdrawn]
    if not entries and not notes.memory.log.pins:
        return "recall: there are no notes yet"
    fewest, most = 0, len(entries)  # the number of entries left out, by halving
    text = _write(notes, entries, 0)
    if count_tokens(text) > MAX_NOTE_TOKENS:
        while fewest < most:
            middle = (fewest + most) // 2
            fits = count_tokens(_write(notes, entries, middle)) <= MAX_NOTE_TOKENS
            fewest, most = (fewest, middle) if fits else (middle + 1, most)
        # the newest is shown, cut if need be
        text = _write(notes, entries, min(fewest, max(len(entries) - 1, 0)))
    if count_tokens(text) <= MAX_NOTE_TOKENS:
        return text
    room = MAX_NOTE_TOKENS - count_tokens(_CUT)
    return text[: find_fitting_chars(text, room, count_tokens)] + _CUT


def _write(notes: NotesToWrite, entries: list[Observation], left_out: int) -> str:
    memory, log = notes.memory, notes.memory.log
    sections = [(entry, part) for entry in entries[left_out:] for part in split_entry(entry)]
    hints = active_hints(memory)
    block = observation_block(
        [part.text for _, part in sections],
        task=hints.task,
        suggestion=None,
        as_of=format_moment(read_time(hints.as_of, notes.now.tzinfo)) if hints.as_of else None,
        scope="thread",
        render_date=notes.now,
        options=notes.options,
        labels=[part.label for _, part in sections],
        pins=[pin.text for pin in log.pins],
        ranges=[
            write_range_line(entry, part.label, memory.thread_label) for entry, part in sections
        ],
    )
    header = _write_header(notes, len(entries), left_out)
    # the preamble speaks to an actor; it has no empty line
    return f"{header}\n{clean_text(block.partition(chr(10) * 2)[2])}"


def _write_header(notes: NotesToWrite, count: int, left_out: int) -> str:
    title = clean_line(notes.memory.title or "", MAX_NAME_CHARS)
    named = f'"{title}"' if title else "an untitled conversation"
    whose = f"of {named} [{notes.label}]" if notes.label else "that conversations share"
    told = f"; the oldest {left_out} of {count} are left out" if left_out else ""
    return f"notes {whose}, {count} entr{'y' if count == 1 else 'ies'}, oldest first{told}"
