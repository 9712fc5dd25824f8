"""Import an export into a store (docs/contributing/storage.md#export-and-import).

The file is read three times: to check every line, to compare it with what the store has already,
and to write. So nothing is written of a file that is refused. One thread is one transaction. A
thread that the store has in the same state is left alone, so an import that was interrupted goes on
when it is run again.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from om_proxy.common.errors import ConfigError, Conflict, UsageError
from om_proxy.management.moving.thread_records import (
    Decoded,
    ExportEnd,
    ExportHeader,
    ForgottenThread,
    RecordDecoder,
    ThreadHead,
    ThreadParts,
    load_rows,
    name_place,
    read_lines,
)
from om_proxy.management.moving.verifying import check_message, check_notes, check_thread
from om_proxy.memory.model import RESOURCE_THREAD, Key, Memory, resource_key
from om_proxy.settings.config import Effective, check_thread_overrides, parse_thread_overrides
from om_proxy.settings.identity.keyed_hashes import fingerprint_key, label_thread
from om_proxy.storage.contract.removal import MemoryMoving
from om_proxy.storage.shared.rekeying import ResourceRekeying, rekey_whole_thread
from om_proxy.storage.values.stored_rows import StoredMessage, StoredObservation, WholeThread
from om_proxy.storage.whole_threads import read_whole_thread
from om_proxy.wire.apis.api import Unreadable
from om_proxy.wire.apis.registry import read_item

HASHED_TENANT = re.compile(r"[0-9a-f]{64}")  # keyed_hashes.hash_credential
MAX_SHOWN_NAMES = 5
OpenLines = Callable[[], Iterator[bytes]]


@dataclass(slots=True)
class ImportResult:
    """The numbers of what an import did, or would do."""

    threads: int = 0
    messages: int = 0
    present_threads: int = 0  # that the store had in the same state already
    kept_threads: int = 0  # that the store has in another state, and keeps
    is_rekeyed: bool = False  # whether the store has another secret, or a tenant another name
    unknown_fields: tuple[str, ...] = ()  # that this release does not know, and left out


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """The options that the caller chose."""

    tenants: Mapping[str, str] = field(default_factory=dict)  # new names by old ones
    keeps_stored: bool = False  # of a thread with another state, the store's stays
    is_dry_run: bool = False
    into_tenant: str | None = None  # whose all threads become; the export then has one tenant
    adopts_secret: bool = True  # whether an empty store takes the secret of the export
    # the settings that a thread's own ones come on top of; raises ConfigError where there are none
    find_settings: Callable[[Memory], Effective] | None = None
    clock: Callable[[], float] = time.time

    def find_tenant(self, old: str) -> str:
        """Return the tenant that a tenant of the export becomes."""
        return self.into_tenant or self.tenants.get(old, old)


@dataclass(slots=True)
class _Index:
    """The results of the first reading."""

    secret: bytes | None = None
    labels: dict[Key, str] = field(default_factory=dict)  # of the threads that count
    lines: dict[Key, int] = field(default_factory=dict)  # number of the record that counts
    sharing: dict[Key, int] = field(default_factory=dict)  # coverage of threads that share a log
    # shared logs: up to which message each covers a thread, by its label
    reaches: dict[Key, dict[str, int]] = field(default_factory=dict)

    faults: dict[Key, str] = field(default_factory=dict)  # of the threads that count

    def leave_out(self, key: Key) -> None:
        """Take out what was before of a thread."""
        for of_threads in (self.labels, self.lines, self.sharing, self.reaches, self.faults):
            of_threads.pop(key, None)

    def add_head(self, head: ThreadHead, number: int) -> None:
        memory = head.memory
        self.leave_out(memory.key)
        self.lines[memory.key] = number
        self.labels[memory.key] = head.label
        if memory.scope == "resource":
            self.sharing[memory.key] = memory.coverage

    def add_whole(self, whole: WholeThread | None, number: int) -> None:
        """Add a thread whose records end before line `number`. One that changed while it was read
        comes once more, and only then must fit together."""
        if whole is None:
            return
        try:
            check_thread(whole)
        except UsageError as exc:
            self.faults[whole.memory.key] = f"the thread before line {number}: {exc}"
        if whole.memory.key.thread == RESOURCE_THREAD:
            # the newest entry about a thread comes last, and of an entry its first part counts
            self.reaches[whole.memory.key] = {
                part.label: part.last
                for entry in whole.memory.log.entries
                for part in reversed(entry.parts)
            }


async def import_memory(
    store: MemoryMoving, open_lines: OpenLines, options: ImportOptions
) -> ImportResult:
    """Import all threads of the export, and return what was done. `open_lines`: begins to read the
    file. Raise UsageError for a file that cannot be imported, and Conflict if the store has a thread
    in another state: then nothing is written."""
    decoder = RecordDecoder(options.clock())
    # in a thread: a server goes on serving
    index = await asyncio.to_thread(_read_index, open_lines(), decoder, options)
    secret = await (_choose_secret(store, index) if options.adopts_secret else store.secret())
    importer = _Importer(store, open_lines, options, index, secret)
    result = await importer.run()
    result.unknown_fields = tuple(sorted(decoder.unknown_fields))
    return result


def _read_index(lines: Iterator[bytes], decoder: RecordDecoder, options: ImportOptions) -> _Index:
    index = _Index()
    parts: ThreadParts | None = None
    for number, part in read_lines(lines, decoder):
        if isinstance(part, ThreadHead | ForgottenThread | ExportEnd):
            index.add_whole(_join(parts, number), number)
            parts = None
        _check_part(part, number)
        match part:
            case ExportHeader(secret=secret):
                index.secret = secret or index.secret
            case ThreadHead():
                _check_overrides(part.memory, number, options)
                parts = ThreadParts(part)
                index.add_head(part, number)
            case ForgottenThread(key=key):
                index.leave_out(key)
            case _ if parts:
                parts.records.append(part)
    for fault in index.faults.values():
        raise UsageError(fault)
    return index


def _check_overrides(memory: Memory, number: int, options: ImportOptions) -> None:
    """Raise UsageError for a thread's own settings that the admin API would refuse."""
    if memory.overrides is None:
        return
    try:
        parse_thread_overrides(memory.overrides)
        try:
            settings = options.find_settings and options.find_settings(memory)
        except ConfigError:  # no request of this model and resource has settings
            return
        if settings:
            check_thread_overrides(settings, memory.overrides)
    except ConfigError as exc:
        raise UsageError(
            f"line {number}: thread.overrides: {exc}; set thread.overrides to null, or change this "
            "value, and import again"
        ) from exc


def _check_part(part: Decoded, number: int) -> None:
    """Raise UsageError for a message or notes that contradict themselves."""
    with name_place(f"line {number}"):
        if isinstance(part, StoredMessage):
            check_message(part)
        elif isinstance(part, StoredObservation):
            check_notes(part.entry)


def _join(parts: ThreadParts | None, number: int) -> WholeThread | None:
    """Join the records of a thread that ended before line `number`."""
    with name_place(f"the thread before line {number}"):
        return parts.join() if parts else None


async def _choose_secret(store: MemoryMoving, index: _Index) -> bytes:
    """Return the secret that the threads will have: the store's, or that of the file if it has one
    and the store has no thread. Nothing is written."""
    stored = await store.secret()
    if index.secret is None or await store.threads(None, limit=1):
        return stored
    return index.secret


@dataclass(frozen=True, slots=True, eq=False)
class _Importer:
    """One import."""

    store: MemoryMoving
    open_lines: OpenLines
    options: ImportOptions
    index: _Index
    secret: bytes
    _left_alone: set[Key] = field(default_factory=set)  # under their new names
    _result: ImportResult = field(default_factory=ImportResult)

    async def run(self) -> ImportResult:
        self._check_tenants()
        self._check_logs()
        await self._compare()
        if not self.options.is_dry_run:
            await self._adopt_secret()
        async for whole in self._read_threads():
            key = whole.memory.key
            if key in self._left_alone:
                continue
            if not self.options.is_dry_run:
                await self.store.restore(whole)
            self._result.threads += key.thread != RESOURCE_THREAD
            self._result.messages += len(whole.messages)
        return self._result

    async def _adopt_secret(self) -> None:
        """Make the chosen secret the store's, once nothing of the file is refused any more."""
        if self.secret == await self.store.secret():
            return
        if not await self.store.adopt_secret(self.secret):
            raise Conflict(
                "the store has memories under its own secret; nothing was imported. Import into a "
                "new store that no process uses"
            )

    def _check_tenants(self) -> None:
        """Raise UsageError for a tenant that nobody would find under this secret, and for a new name
        of a tenant that the export does not have: mistyped, it would leave threads where they were."""
        exported = sorted({key.tenant for key in self.index.lines})
        for old in sorted(self.options.tenants.keys() - set(exported)):
            shown = ", ".join(exported[:MAX_SHOWN_NAMES])
            has = f"it has {shown}" if exported else "it has no thread"
            more = ", …" if len(exported) > MAX_SHOWN_NAMES else ""
            raise UsageError(f"the export has no tenant {old}; {has}{more}; nothing was imported")
        targets: dict[str, str] = {}
        for key in self.index.lines:
            if self._has_own_keys(key):
                continue
            self._result.is_rekeyed = True
            is_named = self.options.into_tenant or key.tenant in self.options.tenants
            if not is_named and HASHED_TENANT.fullmatch(key.tenant):
                raise UsageError(
                    f"tenant {key.tenant} is an API key under another store's secret, so no request "
                    "would find it here; name the tenant that it becomes with "
                    f"--tenant-map {key.tenant}=NEW, or take the secret along "
                    "(om-proxy export --with-secret, into a new store)"
                )
        for tenant in exported:
            new = self.options.find_tenant(tenant)
            if targets.setdefault(new, tenant) != tenant:
                raise UsageError(f"two tenants of the export would both become {new}")

    def _has_own_keys(self, key: Key) -> bool:
        """Return whether fingerprints and labels of this thread hold under the store's secret."""
        keeps_name = self.options.find_tenant(key.tenant) == key.tenant
        return keeps_name and label_thread(self.secret, key) == self.index.labels[key]

    def _check_logs(self) -> None:
        """Raise UsageError if a thread would come without the notes that its messages are in."""
        for key, coverage in sorted(self.index.sharing.items()):
            reaches = self.index.reaches.get(resource_key(key))
            if reaches is None:
                raise UsageError(
                    f"the threads of resource {key.resource} share a log, which this export lacks; "
                    "export the whole resource (om-proxy export --resource)"
                )
            if coverage > (reach := reaches.get(self.index.labels[key], 0)):
                raise UsageError(
                    f"line {self.index.lines[key]}: thread {key.thread} counts on notes up to "
                    f"message {coverage}, and those of its shared log reach message {reach}; "
                    "export the whole resource again (om-proxy export --resource)"
                )

    async def _compare(self) -> None:
        """Find the threads that the store has already. Raise Conflict if one has another state."""
        stored = {
            key: version
            for key in map(self._rename, self.index.lines)
            if (version := await self.store.version(key))
        }
        if not stored:
            return
        conflicts: list[Key] = []
        async for whole in self._read_threads():
            key = whole.memory.key
            if key not in stored:
                continue
            self._left_alone.add(key)
            present = await read_whole_thread(self.store, key)
            if present and is_same_thread(_drop_origins(present), whole):
                self._result.present_threads += key.thread != RESOURCE_THREAD
            else:
                conflicts.append(key)
        if conflicts and not self.options.keeps_stored:
            raise Conflict(
                f"the store has another state of {len(conflicts)} threads: {show_names(conflicts)}; "
                "nothing was imported. Forget them first, or leave them as they are with "
                "--skip-existing (in the admin API: ?existing=keep)"
            )
        self._keep_sharers(conflicts)
        self._result.kept_threads = len(conflicts)

    def _keep_sharers(self, conflicts: list[Key]) -> None:
        """Leave out the threads of each shared log that stays another one: the notes that they
        count on are not in it. Add them to `conflicts`."""
        kept_logs = {key[:2] for key in conflicts if key.thread == RESOURCE_THREAD}
        for key in map(self._rename, self.index.sharing):
            if key[:2] in kept_logs and key not in self._left_alone:
                self._left_alone.add(key)
                conflicts.append(key)

    def _rename(self, key: Key) -> Key:
        return key._replace(tenant=self.options.find_tenant(key.tenant))

    async def _read_threads(self) -> AsyncIterator[WholeThread]:
        """Yield the threads as they will be stored, shared logs before their threads. Those of a
        resource are in memory at once if they get other keys."""
        group: list[WholeThread] = []
        joined = self._join_threads()
        while whole := await asyncio.to_thread(next, joined, None):
            if group and group[0].memory.key[:2] != whole.memory.key[:2]:
                for ready in await asyncio.to_thread(self._rekey, group):
                    yield ready
                group = []
            if self._has_own_keys(whole.memory.key):
                yield whole
            else:
                group.append(whole)
        for ready in await asyncio.to_thread(self._rekey, group):
            yield ready

    def _join_threads(self) -> Iterator[WholeThread]:
        """Yield each thread that counts."""
        parts: ThreadParts | None = None
        for number, part in read_lines(self.open_lines(), RecordDecoder()):
            if isinstance(part, ThreadHead | ForgottenThread | ExportEnd):
                if whole := _join(parts, number):
                    yield whole
                parts = None
            if isinstance(part, ThreadHead) and self.index.lines.get(part.memory.key) == number:
                parts = ThreadParts(part)
            elif parts:
                parts.records.append(part)

    def _rekey(self, group: list[WholeThread]) -> list[WholeThread]:
        """Return the threads of one resource with the keys that they have under this secret and
        their new tenant."""
        if not group:
            return []
        old = group[0].memory.key
        tenant = self._rename(old).tenant
        rekeying = ResourceRekeying(
            old.tenant,
            tenant,
            old.resource,
            [whole.memory.key.thread for whole in group],
            lambda key: label_thread(self.secret, key),
            lambda key: self.index.labels[key],
        )
        fingerprint = create_fingerprint(self.secret, tenant)
        rekeyed = [
            load_rows(
                rekey_whole_thread(
                    whole, whole.memory.key._replace(tenant=tenant), rekeying, fingerprint
                )
            )
            # the log names the chains of the other threads
            for whole in sorted(group, key=lambda one: one.memory.key.thread == RESOURCE_THREAD)
        ]
        return rekeyed[-1:] + rekeyed[:-1]


def create_fingerprint(secret: bytes, tenant: str) -> Callable[[bytes, str], bytes | None]:
    """Return the function that makes a message's fingerprint from its JSON and its API; None for
    what is no message of that."""
    key = fingerprint_key(secret, tenant)

    def fingerprint(raw: bytes, api: str) -> bytes | None:
        try:
            return read_item(raw, key, api).fp
        except Unreadable:
            return None

    return fingerprint


def is_same_thread(first: WholeThread, second: WholeThread) -> bool:
    """Return whether two stores have the thread in the same state."""
    first, second = (
        whole._replace(memory=without_origin(whole.memory), created_at=None)
        for whole in (first, second)
    )
    return first == second


def _drop_origins(whole: WholeThread) -> WholeThread:
    """Return the thread as an export tells it: without the ids by which requests name replies."""
    messages = tuple(
        stored._replace(
            message=replace(stored.message, item=replace(stored.message.item, origin=None))
        )
        for stored in whole.messages
    )
    return load_rows(whole._replace(messages=messages))


def without_origin(memory: Memory) -> Memory:
    """Leave out what a store gives a thread itself, when background work looks at it next, and
    which fields of its row had no value of a memory: a copy has their defaults."""
    return replace(memory, version=0, row_id=0, due_at=None, put_aside=())


def show_names(keys: list[Key]) -> str:
    """Return the first names, for an error."""
    names = [key.thread or f"the shared log of {key.resource}" for key in keys]
    return ", ".join(names[:MAX_SHOWN_NAMES]) + (", …" if len(names) > MAX_SHOWN_NAMES else "")
