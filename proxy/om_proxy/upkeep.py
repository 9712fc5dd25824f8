"""What an operator does to stored memories by command: forget a thread, move a tenant to another credential.

The server may run meanwhile: it sees what has changed.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Callable

from om_proxy.errors import ConfigError
from om_proxy.memory import identity
from om_proxy.memory.model import Key
from om_proxy.storage.base import Forgotten, Store, ThreadInfo
from om_proxy.wire import chat

DONE, DECLINED, WRONG_USE, NOT_THERE, IN_THE_WAY = 0, 1, 2, 4, 5  # exit statuses
ERASE_WAIT_S = (
    60.0  # for a reader that holds the bytes; a backup takes so long, and what holds them longer may hold them for ever
)


async def forget_thread(
    store: Store,
    thread: str,
    resource: str | None,
    tenant: str | None,
    *,
    agrees: Callable[[], bool],
    erase_wait: float = ERASE_WAIT_S,
) -> int:
    """Forget the one thread of this name and say what went; the command's exit status. `agrees`: asked before anything is done."""
    found = [info async for info in _threads(store, tenant, resource) if info.key.thread == thread]
    if not found:
        _complain(f"there is no memory of a thread {shown(thread)} {_where(resource, tenant)}")
        return NOT_THERE
    if len(found) > 1:
        _complain("several threads have this name; say which one by --resource and --tenant:")
        for info in found:
            print(f"  {line_of(info)}", file=sys.stderr)
        return WRONG_USE
    print(line_of(found[0]))
    if not agrees():
        print("nothing was forgotten")
        return DECLINED
    forgotten = await store.forget(found[0].key)
    if not forgotten.threads:
        _complain("somebody else has forgotten it meanwhile")
        return NOT_THERE
    print(told(forgotten))
    if forgotten.log == "pending":
        await _wait_erased(store, erase_wait)
    return DONE


async def rekey_tenant(store: Store, old: str, new: str, keys: tuple[tuple[str, str], ...] = ()) -> int:
    """Give what was kept under one credential to another; the command's exit status. `keys`: `auth.keys`, where the new one may stand."""
    secret = await store.secret()
    source, target = _tenant_of(old, secret), _tenant_of(new, secret, keys)
    if source == target:
        raise ConfigError("the two credentials are the same; there is nothing to move")
    key = identity.fingerprint_key(secret, target)

    def fingerprint(raw: bytes) -> bytes | None:
        try:
            return chat.item(raw, key).fp
        except chat.Unreadable:
            return None

    moved = await store.move_tenant(source, target, fingerprint)
    if moved.in_the_way:
        _complain(
            f"nothing was moved: the new credential has {moved.in_the_way} threads or shared logs of the same names; forget one of "
            f"each first (om-proxy forget THREAD --tenant T, where T is {source} for the old one, {target} for the new one)"
        )
        return IN_THE_WAY
    if not moved.threads:
        _complain("there is no memory of the old credential here; give it as clients sent it, without `Bearer`")
        return NOT_THERE
    print(f"moved: {moved.threads} threads with {moved.messages} messages, to tenant {shown(target)}")
    return DONE


def _tenant_of(credential: str, secret: bytes, keys: tuple[tuple[str, str], ...] = ()) -> str:
    """As a request with this credential has it."""
    if not credential:
        raise ConfigError("a credential is empty; give the old one, then the new one")
    headers = [(b"authorization", b"Bearer " + credential.encode())]
    found = identity.tenant(headers, identity.Rules(keys=keys), secret)
    assert found is not None  # noqa: S101 — only callers without a credential have none
    return found


async def _threads(store: Store, tenant: str | None, resource: str | None) -> AsyncIterator[ThreadInfo]:
    cursor: Key | None = None
    while page := await store.threads(tenant, resource, cursor, 1_000):
        for info in page:
            yield info
        cursor = page[-1].key


async def _wait_erased(store: Store, seconds: float) -> None:
    print("its bytes are still in the database's files: another program is reading them; waiting for it", flush=True)
    try:
        async with asyncio.timeout(seconds):
            await store.wait_erased()
    except TimeoutError:
        print(
            "its bytes are still there; a running server goes on trying until they are gone, or the next one that starts"
        )
    else:
        print("its bytes are gone")


def line_of(info: ThreadInfo) -> str:
    """A thread as an operator recognises it."""
    last = time.strftime("%Y-%m-%d %H:%M", time.localtime(info.turn_at or info.created_at))
    key = info.key
    title = f", {shown(info.title)}" if info.title else ""
    names = f"thread {shown(key.thread)} of resource {shown(key.resource)}, tenant {shown(key.tenant)}"
    return f"{names}: {info.messages} messages, last used {last}{title}"


def told(forgotten: Forgotten) -> str:
    went = f"{forgotten.messages} messages, {forgotten.observations} notes in {forgotten.generations} logs"
    return f"forgotten: {went}" + (f", {forgotten.reflections} reflection in the making" * bool(forgotten.reflections))


def shown(text: str) -> str:
    """With what would move the cursor or hide itself made visible: a title was written by a model."""
    return "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in text)


def _where(resource: str | None, tenant: str | None) -> str:
    named = [f"{word} {shown(name)}" for word, name in (("resource", resource), ("tenant", tenant)) if name]
    return f"of {' and '.join(named)}" if named else "here"


def _complain(text: str) -> None:
    print(f"om-proxy: {text}", file=sys.stderr)
