"""Compute a resource's rows under another tenant, as plain values. A backend reads the rows and
writes the results (memory/lifecycle/rekeying.py has the rules)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from msgspec.structs import replace

from om_proxy.memory.lifecycle import rekeying
from om_proxy.memory.lifecycle.rekeying import Chains
from om_proxy.memory.model import (
    RESOURCE_THREAD,
    Key,
    Message,
    Observation,
    Reflection,
    View,
)
from om_proxy.storage.shared.forgetting import LabelThread
from om_proxy.storage.shared.row_decoding import LIVE
from om_proxy.storage.values.changes import MoveResult
from om_proxy.storage.values.stored_rows import WholeThread

MessageIdentity = rekeying.Row
Fingerprint = Callable[[bytes, str], bytes | None]
SAME_NAME_CAME = "a thread of the same name was made while the tenant was moved; run it again"


@dataclass(frozen=True, slots=True)
class MovingResource:
    """A resource that goes from one tenant to another. `fingerprint`: as in `Store.move_tenant`."""

    old: str
    new: str
    name: str
    fingerprint: Fingerprint
    label_of: LabelThread

    def rekey(self, threads: Iterable[str]) -> ResourceRekeying:
        return ResourceRekeying(self.old, self.new, self.name, threads, self.label_of)

    def identify(
        self, seq: int, parent: int, live: int, fp: bytes, chain: bytes, raw: bytes, api: str | None
    ) -> MessageIdentity:
        """Return what the keys of a stored message are made from. `live`, `api`: as they are
        stored."""
        moved = self.fingerprint(raw, api or "chat") or fp
        return MessageIdentity(seq, parent, live == LIVE, fp, chain, moved)

    def map_labels(self, threads: Iterable[str]) -> dict[str, str]:
        """Return the new label for each old one, also of the shared log."""
        names = {*threads, RESOURCE_THREAD}
        return {self._label(self.old, name): self._label(self.new, name) for name in names}

    def create_event_relabeler(self, rekeying: ResourceRekeying) -> Callable[[str], str]:
        # the shared log has a label too, which no note mentions
        old, new = (self._label(tenant, RESOURCE_THREAD) for tenant in (self.old, self.new))
        return lambda data: rekeying.relabel(data).replace(old, new)

    def _label(self, tenant: str, thread: str) -> str:
        return self.label_of(Key(tenant, self.name, thread))

    def count_moved(self, threads: Collection[str], messages: int) -> MoveResult:
        return MoveResult(sum(name != RESOURCE_THREAD for name in threads), messages)


class ResourceRekeying:
    """The new keys of one resource. Call `rekey_thread` thread by thread, with the shared log last:
    its entries name the chains of the other threads."""

    def __init__(
        self,
        old: str,
        new: str,
        resource: str,
        threads: Iterable[str],
        label: Callable[[Key], str],
        old_label: Callable[[Key], str] | None = None,
    ) -> None:
        """`label`: makes labels; `old_label`: made those of the old tenant, under another
        secret."""
        names = [name for name in threads if name != RESOURCE_THREAD]
        self._old_labels = {name: (old_label or label)(Key(old, resource, name)) for name in names}
        self._labels = {self._old_labels[name]: label(Key(new, resource, name)) for name in names}
        self._chains_by_label: dict[str, Chains] = {}

    @property
    def changes_labels(self) -> bool:
        return any(old != new for old, new in self._labels.items())

    def rekey_thread(self, name: str, messages: Sequence[MessageIdentity]) -> ThreadRekeying:
        thread = ThreadRekeying(messages, self._labels, self._chains_by_label)
        if name != RESOURCE_THREAD:
            self._chains_by_label[self._old_labels[name]] = thread.chains
        return thread

    def relabel(self, text: str) -> str:
        return rekeying.replace_labels(text, self._labels)


class ThreadRekeying:
    """The new keys of one thread's rows."""

    def __init__(
        self,
        messages: Sequence[MessageIdentity],
        labels: Mapping[str, str],
        chains_by_label: Mapping[str, Chains],
    ) -> None:
        self._messages = messages
        self._labels = labels
        self._chains_by_label = chains_by_label
        self._chains_by_seq = rekeying.chains_by_seq(messages)
        self.chains = rekeying.chains_by_value(messages, self._chains_by_seq)

    def list_message_keys(self) -> list[tuple[int, bytes, bytes]]:
        """Return the seq, new fingerprint and new chain of each message."""
        return [(row.seq, row.moved, self._chains_by_seq[row.seq]) for row in self._messages]

    def rekey_views(self, views: Iterable[View]) -> tuple[View, ...]:
        return tuple(rekeying.rekey_view(view, self._messages, self.chains) for view in views)

    def rekey_observation(self, observation: Observation) -> Observation:
        return rekeying.rekey_entry(observation, self.chains, self._labels, self._chains_by_label)

    def rekey_reflection(self, reflection: Reflection) -> Reflection:
        """Return the reflection with new labels in its texts. Its sources are ids, which stay."""
        text, task, suggestion = (
            text and rekeying.replace_labels(text, self._labels)
            for text in (reflection.text, reflection.task, reflection.suggestion)
        )
        return replace(reflection, text=text or "", task=task, suggestion=suggestion)


def rekey_whole_thread(
    whole: WholeThread,
    key: Key,
    resource: ResourceRekeying,
    fingerprint: Fingerprint,
) -> WholeThread:
    """Return the thread as it would be under `key`. Its memory lacks what `recent`, `tail`, `chunks`
    and the log hold of its rows (`load_rows`). `fingerprint`: as in `Store.move_tenant`."""
    identities = [
        MessageIdentity(
            stored.message.seq,
            stored.parent,
            stored.state == "live",
            stored.message.item.fp,
            stored.message.chain,
            fingerprint(stored.message.item.raw, stored.message.item.api) or stored.message.item.fp,
        )
        for stored in whole.messages
    ]
    thread = resource.rekey_thread(whole.memory.key.thread, identities)
    keys = {seq: (fp, chain) for seq, fp, chain in thread.list_message_keys()}
    memory = whole.memory
    reflection = memory.log.reflection
    return whole._replace(
        memory=replace(
            memory,
            key=key,
            views=thread.rekey_views(memory.views),
            other_threads_text=resource.relabel(memory.other_threads_text),
            log=replace(memory.log, reflection=reflection and thread.rekey_reflection(reflection)),
        ),
        messages=tuple(
            stored._replace(
                message=_rekey_message(
                    stored.message, *keys[stored.message.seq], resource.changes_labels
                )
            )
            for stored in whole.messages
        ),
        observations=tuple(
            stored._replace(entry=thread.rekey_observation(stored.entry))
            for stored in whole.observations
        ),
    )


def _rekey_message(message: Message, fp: bytes, chain: bytes, changes_labels: bool) -> Message:
    # kept look-ups name threads by their old labels
    look_ups = None if changes_labels else message.look_ups
    item = replace(message.item, fp=fp)
    return replace(message, item=item, chain=chain, look_ups=look_ups)
