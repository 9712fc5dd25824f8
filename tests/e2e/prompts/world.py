"""Clients, replicas of the proxy and their store, in one event loop. The store goes away at times."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from random import Random
from typing import Any, Literal
from urllib.parse import urlsplit

import httpx
import orjson

from om_proxy.app.app import App
from om_proxy.common.reasons import Reason
from om_proxy.settings.config import parse
from om_proxy.testing.loopback import serve_on_loopback
from tests.e2e.prompts.clients import SYSTEM, TOOL, Client, Kind
from tests.e2e.prompts.models import NUMBER_HEADER, PromptModels
from tests.e2e.prompts.oracle import Faults, check_prompt, describe_places, find_late_results
from tests.e2e.replicas.pausing import Pause
from tests.support.free_port import free_port
from tests.support.published_apis import find_disorder
from tests.support.three_apis import PATHS, read_prompt, write_body
from tests.support.wire import Wire, open_wire

SETTINGS = """
upstream: [{{name: scripted, base_url: "{models}/v1"}}]
storage: {{url: "{url}", prefix: {prefix}, timeout: 5s}}
memory:
  api_base: "{models}/v1"
  api_key: sk-memory
  observation: {{model: openai/scripted-observer, message_tokens: 500, buffer_tokens: 150, block_timeout: 2s}}
  reflection: {{model: openai/scripted-reflector, observation_tokens: 400}}
background: {{observer_interval: 1s}}
telemetry: {{log: "off"}}
"""
CLIENT_COUNT = 8
TURNS_OF_A_THREAD = 40
REQUEST_TIMEOUT_S = 60.0
# how long the store is away: so many prompts of each client, or so long
PROMPTS_OF_OUTAGE = 6
MAX_OUTAGE_S = 15.0
# clients go on talking when the store is back, then pause until all is stored
TALK_WHILE_HEALING_S = 1.0
HEALING_TIMEOUT_S = 90.0
SETTLE_S = 0.5
THINK_S = 0.02
EXAMPLES_OF_KIND = 3
PLACES_OF_EXAMPLE = 3  # of so many ids it is told where they stand
# a busy machine makes commits time out while the store is there: such a turn may wait
SLOW_ANSWER_S = 3.0

OutageKind = Literal["refused", "stalled", "started without it"]
OUTAGES: Sequence[OutageKind] = ("refused", "started without it", "stalled")


@dataclass(frozen=True)
class Place:
    """Where the store is. `database`: the file of a SQLite store."""

    url: str
    prefix: str = "om"
    replicas: int = 1
    database: Path | None = None


@dataclass
class Tally:
    """What became of the prompts of one kind of client."""

    prompts: int = 0
    degraded: int = 0
    faulty: int = 0  # prompts with any fault
    counts: Counter[str] = field(default_factory=Counter)  # messages, by fault
    examples: list[str] = field(default_factory=list)
    # results that waited while another process noted their call (docs/concepts/limits.md)
    late_results: int = 0

    def note(self, faults: Faults, where: str, places: Sequence[str] = ()) -> None:
        if not faults:
            return
        self.faulty += 1
        for name, ids in vars(faults).items():
            self.counts[name] += len(ids)
        if len(self.examples) < EXAMPLES_OF_KIND:
            self.examples.append("\n    ".join([f"{where}: {faults}", *places]))


class World:
    """`run` lets clients of these kinds talk until so many prompts are checked."""

    def __init__(
        self,
        place: Place,
        kinds: Mapping[str, Kind],
        seed: int,
        clients: int = CLIENT_COUNT,
        turns: int = TURNS_OF_A_THREAD,
    ) -> None:
        """`clients`: how many talk at once. `turns`: how long each thread lives."""
        self.turns = turns
        self.thread_count = 0
        self.named_count = 0  # of requests that named a past at the server
        self._place = place
        self._kinds = kinds
        self._seed = seed
        self._client_count = clients
        self._models = PromptModels()
        self._numbers = count(1)
        self._bases: list[str] = []
        self._wires: list[Wire] = []
        self._everyone, self._steady = Pause(), Pause()
        self._looking = asyncio.Lock()
        self._dice = Random(f"{seed} outages")
        self.tallies: dict[str, Tally] = defaultdict(Tally)
        self.outages: Counter[str] = Counter()
        self.longest_healing_s = 0.0
        self.prompt_count = 0
        self.checked_count = 0  # while the store was there
        self.has_ended = False
        self.is_store_away = False

    # ── for clients ──

    @asynccontextmanager
    async def take_part(self, works_in_outages: bool) -> AsyncIterator[None]:
        """Wait until a client may go on. Those that take something back do not while the store is
        away."""
        async with AsyncExitStack() as stack:
            if not works_in_outages:
                await stack.enter_async_context(self._steady.stay_out())
            await stack.enter_async_context(self._everyone.stay_out())
            yield
        await asyncio.sleep(self._dice.random() * 2 * THINK_S)

    async def gather(self, works: Iterable[Awaitable[None]]) -> None:
        await asyncio.gather(*works)

    async def ask(
        self, client: Client, shown: Sequence[Mapping[str, Any]], replies: Sequence[Any]
    ) -> None:
        """Send a request that is answered so, and judge its prompt."""
        number, was_away = next(self._numbers), self.is_store_away
        asked_at = time.monotonic()
        promised, allowed = client.find_promised(), client.find_allowed()
        self._models.replies[number] = replies
        api, how = client.choose_api(), dict[str, Any](model=client.model)
        if len(replies) > 1:
            how["n"] = len(replies)
        else:
            how["stream"] = client.rng.random() < 0.5
        if api == "messages":  # without tools, calls are written as texts
            how["tools"] = [TOOL]
        past = client.choose_past(api)
        if past:
            how["previous_response_id"] = past.id
            self.named_count += 1
        sent_messages = client.history[past.length :] if past else shown
        body = write_body(api, [SYSTEM, *sent_messages], **how)
        answer = await self._http.post(
            f"{client.rng.choice(self._bases)}{PATHS[api]}",
            json=body,
            headers={
                "x-om-thread": client.thread,
                "x-om-history": client.history_header,
                NUMBER_HEADER: str(number),
            },
        )
        assert answer.status_code == 200, f"{answer.status_code} {answer.text[:300]}"
        del self._models.replies[number]
        sent = self._models.prompts.pop(number)[-1]
        prompt = read_prompt(api, sent)
        is_past_held = past is not None and b'"previous_response_id"' in sent
        if past and is_past_held:
            prompt = [*past.prompt, *(m for m in prompt if m["role"] != "system")]
        if api == "responses":
            client.note_past(f"resp_{number}", [*prompt, *replies])
        status = answer.headers.get("x-om-status", "")
        assert answer.headers.get("x-om-reason") != Reason.TOOL_PAIRS, client.thread
        client.spoke_in_outage = is_away = was_away or self.is_store_away
        if is_away or status == "degraded":  # it may lack what its client does not show
            promised, allowed = set(), allowed | promised
        faults = check_prompt(
            prompt, shown, promised=promised, allowed=allowed, excused=client.excused
        )
        if (
            api != "chat"
            and not is_past_held
            and (refusal := find_disorder(api, orjson.loads(sent)))
        ):
            faults = replace(faults, refused=(refusal,))
        tally = self.tallies[client.thread.rpartition(".")[0]]
        late = find_late_results(faults.missing, client.history, prompt)
        tally.late_results += len(late)
        faults = replace(faults, missing=tuple(one for one in faults.missing if one not in late))
        self.prompt_count += 1
        self.checked_count += not is_away
        tally.prompts += 1
        tally.degraded += status == "degraded"
        places = [
            describe_places(one, prompt, shown, client.history)
            for one in [*faults.missing, *faults.doubled][:PLACES_OF_EXAMPLE]
        ]
        state = f"{status}, the store was away or healed" if is_away else status
        tally.note(faults, f"{client.thread}, message {len(client.history)}, {state}", places)
        if not is_away and (status == "degraded" or time.monotonic() - asked_at > SLOW_ANSWER_S):
            await self._see_all_healed()

    async def _see_all_healed(self) -> None:
        """Wait until nothing waits in any process, or the store goes away. One client looks at a
        time: on a busy machine, the looks of all would keep the processes from healing."""
        async with self._looking:
            for replica in self._replicas:
                while not (  # noqa: ASYNC110 - it sends no event
                    self.is_store_away or await replica.is_healed(self._http)
                ):
                    await asyncio.sleep(0.1)  # bounded by the run

    # ── its course ──

    async def run(self, prompts: int, outages: int) -> None:
        async with AsyncExitStack() as stack:
            models = await stack.enter_async_context(
                serve_on_loopback(self._models, lifespan="off")
            )
            self._http = await stack.enter_async_context(
                httpx.AsyncClient(trust_env=False, timeout=REQUEST_TIMEOUT_S)
            )
            self._replicas = replicas = [
                await stack.enter_async_context(_Replica.start(self._settings_for(models, url)))
                for url in [await self._open_way(stack) for _ in range(self._place.replicas)]
            ]
            self._bases = [replica.base for replica in replicas]
            async with asyncio.TaskGroup() as tasks:
                for number in range(self._client_count):
                    tasks.create_task(self._live(number))
                tasks.create_task(self._trouble(replicas, prompts, outages))

    def _settings_for(self, models: str, url: str) -> str:
        return SETTINGS.format(models=models, url=url, prefix=self._place.prefix)

    async def _open_way(self, stack: AsyncExitStack) -> str:
        """Return the address of the store by a way of its own."""
        if self._place.database:
            return self._place.url
        address = urlsplit(self._place.url)
        assert address.hostname
        assert address.port
        wire = await stack.enter_async_context(open_wire(address.hostname, address.port))
        self._wires.append(wire)
        return self._place.url.replace(f":{address.port}/", f":{wire.port}/")

    async def _live(self, place: int) -> None:
        """Live as one client after the other."""
        names = list(self._kinds)
        for number in count(place, self._client_count):
            if self.has_ended:
                return
            name = names[number % len(names)]
            thread = f"{name}.{number}"
            rng = Random(f"{self._seed} {thread}")
            self.thread_count += 1
            await self._kinds[name].make(self, rng, thread).talk()

    async def _trouble(self, replicas: Sequence[_Replica], prompts: int, outages: int) -> None:
        """Take the store away so often, and end all once enough prompts are checked."""
        for number in range(1, outages + 1):
            await self._wait_for(prompts * number // (outages + 1))
            kind: OutageKind = (
                "started without it" if self._place.database else OUTAGES[number % len(OUTAGES)]
            )
            await self._be_away(kind, replicas)
        await self._wait_for(prompts)
        self.has_ended = True

    async def _wait_for(self, prompts: int) -> None:
        """Wait until so many prompts are checked while the store was there."""
        while self.checked_count < prompts:  # noqa: ASYNC110 - a count sends no event
            await asyncio.sleep(0.02)

    async def _be_away(self, kind: OutageKind, replicas: Sequence[_Replica]) -> None:
        async with self._steady.hold_all():
            self.is_store_away = True
            if kind == "started without it":
                async with self._everyone.hold_all():
                    await self._start_without_store(replicas)
            for wire in self._wires:
                wire.stall() if kind == "stalled" else wire.refuse()
            began_at, until = (
                time.monotonic(),
                self.prompt_count + PROMPTS_OF_OUTAGE * self._client_count,
            )
            while (  # noqa: ASYNC110 - a count sends no event
                self.prompt_count < until and time.monotonic() - began_at < MAX_OUTAGE_S
            ):
                await asyncio.sleep(0.02)
            restored_at = time.monotonic()
            self._restore()
            await asyncio.sleep(TALK_WHILE_HEALING_S)
            async with self._everyone.hold_all(), asyncio.timeout(HEALING_TIMEOUT_S):
                for replica in replicas:
                    await self._see_healed(replica)
            self.longest_healing_s = max(self.longest_healing_s, time.monotonic() - restored_at)
            self.is_store_away = False
            self.outages[kind] += 1

    async def _start_without_store(self, replicas: Sequence[_Replica]) -> None:
        """Start one again whose store is not there."""
        replica = self._dice.choice(replicas)
        await replica.stop()
        for wire in self._wires:
            wire.refuse()
        if self._place.database:
            self._place.database.rename(f"{self._place.database}.aside")
            self._place.database.write_bytes(b"this is no database " * 1_000)
        await replica.go()

    def _restore(self) -> None:
        for wire in self._wires:
            wire.restore()
        if database := self._place.database:
            shutil.move(f"{database}.aside", database)

    async def _see_healed(self, replica: _Replica) -> None:
        for _ in range(2):  # a turn that is being stored waits no more
            await asyncio.sleep(SETTLE_S)
            while not await replica.is_healed(self._http):  # noqa: ASYNC110 - it sends no event
                await asyncio.sleep(0.05)  # bounded by the time-out of the caller


class _Replica:
    """A proxy on a port that stays the same."""

    def __init__(self, settings: str) -> None:
        self._settings = parse(settings)
        self._port = free_port()
        self.base = f"http://127.0.0.1:{self._port}"
        self._stack = AsyncExitStack()

    @classmethod
    @asynccontextmanager
    async def start(cls, settings: str) -> AsyncIterator[_Replica]:
        replica = cls(settings)
        await replica.go()
        try:
            yield replica
        finally:
            await replica.stop()

    async def go(self) -> None:
        app = App(self._settings, model_timeout_s=5.0)
        await self._stack.enter_async_context(serve_on_loopback(app, port=self._port))

    async def stop(self) -> None:
        await self._stack.aclose()

    async def is_healed(self, http: httpx.AsyncClient) -> bool:
        """Return whether its store is there, and nothing waits to be stored."""
        ready = await http.get(f"{self.base}/readyz")
        page = await http.get(f"{self.base}/metrics")
        waiting = [line for line in page.text.split("\n") if line.startswith("om_turns_waiting")]
        return ready.json()["status"] == "ok" and float(waiting[0].split()[-1]) == 0
