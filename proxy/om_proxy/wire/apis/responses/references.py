"""Read references: ids of a reply's items, which a client sends in place of the items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set

import msgspec
from msgspec import Raw

from om_proxy.wire.apis.api import ReferenceApi, Request
from om_proxy.wire.apis.json_text import decode_or_none
from om_proxy.wire.apis.request_members import join_list
from om_proxy.wire.apis.responses.items import read_head
from om_proxy.wire.apis.responses.request import read_units


class _Named(msgspec.Struct):
    id: str | None = None


_named = msgspec.json.Decoder(_Named)
_list = msgspec.json.Decoder(list[Raw])


class ItemReferences(ReferenceApi):
    """References to items."""

    def list_references(self, request: Request, start: int = 0) -> Set[str]:
        """Return the ids of the references among the units from `start` on."""
        units = read_units(request)
        if start >= len(units):
            return frozenset()
        first = units.starts[start]
        marked = (units.elements[place] for place in units.marked if place >= first)
        return frozenset(id_ for id_, raw in _read_ids(marked) if read_head(raw).is_reference)

    def find_items(self, raw: bytes, ids: Set[str]) -> Mapping[str, bytes]:
        """Return the items of a stored unit that have these ids."""
        return {id_: item for id_, item in _read_ids(_list_items(raw)) if id_ in ids}

    def put_in_items(self, raw: bytes, items: Mapping[str, bytes]) -> bytes:
        """Return a unit with these items in place of the references to them."""
        listed = _list_items(raw)
        named = {item: items[id_] for id_, item in _read_ids(listed) if id_ in items}
        found = {item: known for item, known in named.items() if read_head(item).is_reference}
        return join_list([found.get(item, item) for item in listed]) if found else raw


REFERENCES: ReferenceApi = ItemReferences()


def _list_items(raw: bytes) -> list[bytes]:
    return list(map(bytes, decode_or_none(_list, raw) or ()))


def _read_ids(raws: Iterable[bytes]) -> Iterator[tuple[str, bytes]]:
    for raw in raws:
        named = decode_or_none(_named, raw)
        if named is not None and named.id:
            yield named.id, raw
