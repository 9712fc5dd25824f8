"""Name the keys of a store. `lua/rows.lua` makes the same names.

A name from outside may hold any character. In a key it is in percent form, so no two names make
one key, and no brace of a name ends the part that places a resource in its slot. In an ordered list
it is as bytes with an end mark, whose order is that of the names.
"""

from __future__ import annotations

import re
from urllib.parse import quote_from_bytes

from om_proxy.common.errors import ConfigError
from om_proxy.memory.model import Key
from om_proxy.storage.encoding import decode_text, encode_text
from om_proxy.storage.encryption.row_cipher import KEY_ID_BYTES

PREFIX_NAME = re.compile(r"[A-Za-z0-9_.-]{1,63}")
# behind every name that begins with the names before it
LAST_BYTE = b"\xff"


class KeyNames:
    """The keys of one store: all begin with its prefix."""

    def __init__(self, prefix: str) -> None:
        if not PREFIX_NAME.fullmatch(prefix):
            raise ConfigError(
                f"storage.prefix: {prefix!r} cannot begin the keys of a Redis; "
                "use at most 63 letters, digits, dots, dashes and underscores"
            )
        self.prefix = prefix

    def of_store(self, kind: str) -> str:
        return f"{self.prefix}:{kind}"

    def of_tenant(self, kind: str, tenant: str) -> str:
        return f"{self.prefix}:{kind}:{_quote(tenant)}"

    def of_resource(self, kind: str, tenant: str, resource: str) -> str:
        return f"{self.prefix}:{{{_quote(tenant)}/{_quote(resource)}}}:{kind}"

    def of_thread(self, part: str, key: Key) -> str:
        return f"{self.of_resource(part, key.tenant, key.resource)}:{_quote(key.thread)}"

    def of_ledger(self, tenant: str, resource: str) -> str:
        return f"{self.of_resource('ledger', tenant, resource)}:"


def _quote(name: str) -> str:
    return quote_from_bytes(encode_text(name), safe="")


def pack_names(*names: str) -> bytes:
    """Return the names one after the other, in the order of their code points."""
    return b"".join(encode_text(name).replace(b"\0", b"\0\xff") + b"\0" for name in names)


def unpack_names(packed: bytes) -> tuple[str, ...]:
    names = re.split(rb"\0(?!\xff)", packed)[:-1]
    return tuple(decode_text(name.replace(b"\0\xff", b"\0")) for name in names)


def split_names(data: bytes, count: int) -> tuple[tuple[str, ...], bytes]:
    """Return the first `count` names, and what is after them: MessagePack of a list."""
    *names, rest = re.split(rb"\0(?!\xff)", data, maxsplit=count)
    return tuple(decode_text(name.replace(b"\0\xff", b"\0")) for name in names), rest


def read_key_id(key_ids: bytes | None) -> bytes | None:
    """Return the id of a memory's own key, given the ids of all of its keys, one after the other;
    None: it is not encrypted."""
    return key_ids[:KEY_ID_BYTES] if key_ids else None


def split_key_ids(key_ids: bytes | None) -> list[bytes]:
    joined = key_ids or b""
    return [joined[at : at + KEY_ID_BYTES] for at in range(0, len(joined), KEY_ID_BYTES)]


def unpack_key(packed: bytes) -> Key:
    return Key(*unpack_names(packed))
