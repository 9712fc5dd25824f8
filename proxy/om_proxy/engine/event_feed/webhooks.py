"""Send events to webhooks: each in order, at least once, from a cursor that outlives the process.

Each hook is sent to by one process at a time, which holds its lease and renews it before each event.
A receiver that is away holds up its own events only. No request waits for any of this.

The stored place is the event before the next one to send: what the receiver took, and what its hook
does not ask for, lies after it. Only the holder of the lease moves it, and only from where it has
read it. So types that are passed over are read once, and a process that stood still passes over
nothing that another one has yet to send.

A sender ends between two events: when its hook changes or the process ends, a request under way
ends first, and its event is noted. An event comes twice where its receiver took it and the answer
did not come, or was not noted (docs/contributing/seeing.md#webhooks).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from uuid import uuid4

import httpx
import structlog

from om_proxy.common.errors import OmError
from om_proxy.common.permanent_tasks import keep_running
from om_proxy.engine.event_feed.envelope import (
    HookRequest,
    compute_pause_s,
    name_hook,
    name_receiver,
    write_gap,
    write_headers,
    write_request,
)
from om_proxy.memory.model import Key
from om_proxy.settings.config import WebhookSettings
from om_proxy.storage.contract.memories import LeaseTable
from om_proxy.storage.contract.records import EventLog
from om_proxy.storage.values.records import EventPage, WebhookState

logger = structlog.get_logger("webhooks")

CHECK_INTERVAL_S = 1.0  # for new events, and for other settings
LEASE_S = 100.0  # longer than a request and the longest pause together (85 s)
REQUEST_TIMEOUT_S = 10.0
EVENTS_PER_PAGE = 100
STOP_GRACE_S = 3.0  # for requests under way when the process ends

# it returns the receiver's status, or raises
Post = Callable[[str, bytes, dict[str, str]], Awaitable[int]]


class HookSender:
    """The task that sends to one address. `hook` has the settings in force; None: the hook was
    taken out, and the sender ends."""

    def __init__(self, hook: WebhookSettings) -> None:
        self.hook: WebhookSettings | None = hook
        self.changed = asyncio.Event()
        self.renew_at = 0.0  # the loop's time at which the lease is taken or renewed
        self.task: asyncio.Task[None]

    def change(self, hook: WebhookSettings | None) -> None:
        if hook != self.hook:
            self.hook = hook
            self.changed.set()


class LeasedEvents(EventLog, LeaseTable, Protocol):
    """Events, and the right to send them."""


@dataclass(frozen=True, slots=True, eq=False)
class Webhooks:
    """The senders of all hooks, one task for each. `read_settings` gives the hooks in force."""

    store: LeasedEvents
    read_settings: Callable[[], Sequence[WebhookSettings]]
    post: Post
    clock: Callable[[], float] = time.time
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    jitter: Callable[[], float] = random.random
    _holder: str = field(default_factory=lambda: uuid4().hex)
    _senders: dict[str, HookSender] = field(default_factory=dict)  # by address

    async def run_forever(self) -> None:
        """Keep a sender for each hook of the settings in force. When cancelled, let requests under
        way end, and give the leases back."""
        try:
            while True:
                self._adjust_senders({hook.url: hook for hook in self.read_settings()})
                await self.sleep(CHECK_INTERVAL_S)
        finally:
            await self._end_senders()

    def _adjust_senders(self, hooks: Mapping[str, WebhookSettings]) -> None:
        for url, sender in list(self._senders.items()):
            if sender.task.done():
                del self._senders[url]
            else:
                sender.change(hooks.get(url))
        for url in hooks.keys() - self._senders.keys():
            sender = self._senders[url] = HookSender(hooks[url])
            send = partial(self._send_forever, sender, name_hook(url))
            sender.task = asyncio.create_task(keep_running("webhook", send))

    async def _end_senders(self) -> None:
        tasks = {sender.task for sender in self._senders.values()}
        for sender in self._senders.values():
            sender.change(None)
        self._senders.clear()
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=STOP_GRACE_S)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _send_forever(self, sender: HookSender, name: str) -> None:
        """Send events until the hook is taken out."""
        try:
            while hook := sender.hook:
                sender.changed.clear()
                pause_s = CHECK_INTERVAL_S
                try:
                    if await self._keep_lease(sender, name):
                        is_changed = sender.changed.is_set
                        pause_s = await self.send_page(hook, name, is_changed=is_changed)
                except OmError as exc:  # the store is away
                    logger.warning("webhook.waits", error=type(exc).__name__)
                await self._pause(sender, pause_s)
        finally:
            sender.renew_at = 0.0
            with suppress(OmError):
                await self.store.release(_make_lease_key(name), self._holder)

    async def _pause(self, sender: HookSender, seconds: float) -> None:
        """Wait so long, or until the hook is changed."""
        waits = [
            asyncio.ensure_future(self.sleep(seconds)),
            asyncio.ensure_future(sender.changed.wait()),
        ]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    async def _keep_lease(self, sender: HookSender, name: str) -> bool:
        """Hold the lease for as long as a look at new events takes. It is written seldom: most
        looks find nothing, and `send_page` renews it before each event."""
        now = asyncio.get_running_loop().time()
        if now < sender.renew_at:
            return True
        is_held = await self._take_lease(name)
        sender.renew_at = now + LEASE_S / 3 if is_held else now
        return is_held

    async def _take_lease(self, name: str) -> bool:
        """Take the lease of a hook, or renew it. Return whether this process holds it."""
        return await self.store.lease(_make_lease_key(name), self._holder, LEASE_S)

    async def send_page(
        self, hook: WebhookSettings, name: str, *, is_changed: Callable[[], bool] = lambda: False
    ) -> float:
        """Send what is new, up to the first failure, a change of the hook or the loss of the lease.
        Return the seconds until the next try."""
        state = await self.store.webhook_state(name)
        if state is None:  # a new hook gets what happens from now on
            state = WebhookState(await self.store.event_position(), 0, "", self.clock())
            await self.store.set_webhook_state(name, state)
        page = await self.store.events(None, None, state.cursor, EVENTS_PER_PAGE)
        for before, cursor, request in _list_requests(hook, state.cursor, page):
            if (pause_s := await self._find_pause(name, state, is_changed)) is not None:
                return pause_s
            cause = await self._try_post(hook, request)
            if cause:
                return await self._record_failure(hook, name, state._replace(cursor=before), cause)
            if state.failures:
                logger.info("webhook.recovered", **self._describe_hook(hook))
            state = WebhookState(cursor, 0, "", self.clock())
            # after each one: what a receiver has taken is not sent again
            await self.store.set_webhook_state(name, state)
        if page.cursor != state.cursor:
            if (pause_s := await self._find_pause(name, state, is_changed)) is not None:
                return pause_s
            await self.store.set_webhook_state(name, state._replace(cursor=page.cursor))
        return 0.0 if len(page.events) == EVENTS_PER_PAGE else CHECK_INTERVAL_S

    async def _find_pause(
        self, name: str, state: WebhookState, is_changed: Callable[[], bool]
    ) -> float | None:
        """Return the seconds until the next try if this process may not go on from `state`; None: it
        may."""
        if is_changed():  # the rest is sent as the hook says now
            return 0.0
        if not await self._take_lease(name):  # another process sends the rest
            return CHECK_INTERVAL_S
        stored = await self.store.webhook_state(name)
        if stored is None or stored.cursor != state.cursor:
            return 0.0  # this process stood still, and another one has sent some of these
        return None

    async def _try_post(self, hook: WebhookSettings, request: HookRequest) -> str:
        """Send one request. Return why it failed; empty: the receiver took it."""
        headers = write_headers(request, hook.secret.get_secret_value(), self.clock())
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                status = await self.post(hook.url, request.body, headers)
        except TimeoutError:
            return "timeout"
        except Exception as exc:  # whatever a receiver does, its events wait
            return type(exc).__name__
        return "" if 200 <= status < 300 else f"status {status}"

    async def _record_failure(
        self, hook: WebhookSettings, name: str, state: WebhookState, cause: str
    ) -> float:
        failures = state.failures + 1
        if failures == 1:
            logger.warning("webhook.failing", **self._describe_hook(hook), cause=cause)
        failed = WebhookState(state.cursor, failures, cause, self.clock())
        await self.store.set_webhook_state(name, failed)
        return compute_pause_s(failures, self.jitter())

    def _describe_hook(self, hook: WebhookSettings) -> dict[str, str]:
        """Return the fields that name a hook in the log. Several may be on one host, so they say
        which of the settings it is, unless it was just taken out."""
        urls = [listed.url for listed in self.read_settings()]
        index = f"[{urls.index(hook.url)}]" if hook.url in urls else ""
        return {"hook": f"telemetry.webhooks{index}", "host": name_receiver(hook.url)}


def _list_requests(
    hook: WebhookSettings, after: int, page: EventPage
) -> Iterator[tuple[int, int, HookRequest]]:
    """Yield each request for the page after the place `after`, with the places before it and after
    it."""
    place = after
    if page.has_gap:
        place = (page.events[0].id if page.events else page.cursor + 1) - 1
        yield after, place, write_gap(after)
    for event in page.events:
        if not hook.events or event.type in hook.events:
            yield place, event.id, write_request(event, with_text=hook.text)
        place = event.id


def _make_lease_key(name: str) -> Key:
    return Key("", "webhook", name)  # no tenant has an empty name


class HttpPost:
    """Posts over the house's transport. Redirects are not followed: they could lead anywhere. The
    body of the answer is not read."""

    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self._client = httpx.AsyncClient(
            transport=transport,
            follow_redirects=False,
            trust_env=False,
            timeout=REQUEST_TIMEOUT_S,
        )

    async def __call__(self, url: str, body: bytes, headers: dict[str, str]) -> int:
        async with self._client.stream("POST", url, content=body, headers=headers) as answer:
            return answer.status_code

    async def aclose(self) -> None:
        await self._client.aclose()
