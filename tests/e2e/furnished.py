"""Fill a running proxy with everything that memory can hold, so that every route of the admin API
has something to show.

Each kind of text carries a word of its own (`TEXT_CANARIES`), so that a test can tell what got out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

from om_proxy.management.api.route import AdminRoute
from om_proxy.memory.model import Key, Memory
from om_proxy.testing.scripted import OBSERVER, Fault
from tests.e2e.running import Chat, Running
from tests.management.api.test_admin_api import BODIES, QUERIES

MEMORY_SETTINGS = (
    "observation: {message_tokens: 600, buffer_tokens: 150, block_timeout: 5s}, "
    "reflection: {observation_tokens: 800}"
)
# beside other sections: threads of a resource share their log where they ask for it
SCOPE_OVERRIDE_SETTINGS = "\n            identity: {scope_override: true}"
KEY = "sk-canarykey-1234567890abcdef"
OWN = {"authorization": f"Bearer {KEY}"}
RICH, FAILING, EMPTY = "canarythread-rich", "canarythread-failing", "canarythread-throwaway"
FORGOTTEN = "canarythread-forgotten"
RESOURCE = "canaryresource"
SHARING = ("canarythread-shared-1", "canarythread-shared-2")
TITLE, PIN = "canarytitle", "canarypin"
TEXT_CANARIES = {
    "prompt": "canaryprompt",  # and notes: the scripted observer quotes what was said
    "superseded": "canarybranch",
    "title": TITLE,
    "pin": PIN,
}
NAME_CANARIES = {"key": "canarykey", "thread": "canarythread", "resource": RESOURCE}


Places = dict[str, tuple[str, ...]]  # a collection in a path → what it may name


@dataclass(frozen=True)
class Furniture:
    """A furnished proxy, and what a path may name there."""

    run: Running
    tenant: str
    receipt: str  # of a forgotten thread

    async def list_places(self) -> Places:
        """List what a path may name as things stand: an edited note has another id."""
        memories = await _load_memories(self.run)
        rich = memories.get(RICH) or Memory(key=Key("", "", ""))  # it may be forgotten by now
        log, chunks, pins = rich.log, rich.chunks, rich.log.pins[:2]
        shared = memories.get(SHARING[0])
        pins += shared.log.pins if shared else ()
        return {
            "threads": (RICH, FAILING, SHARING[0]),
            "observations": tuple(str(entry.id) for entry in log.entries[::12]) or ("1",),
            "messages": ("1",),
            "chunks": tuple(str(chunk.id) for chunk in chunks) or ("1",),
            "generations": (str(log.generation),),
            "pins": tuple(str(pin.id) for pin in pins) or ("1",),
            "resources": (RESOURCE,),
            "tenants": (self.tenant,),
            "receipts": (self.receipt,),
        }


async def furnish(run: Running) -> Furniture:
    """Build threads with a log of several generations, ready chunks, an older branch, a title,
    overridden settings and a failure, and two threads that share a log. Forget another one."""
    await _play_rich_thread(run)
    for number, thread in enumerate(SHARING * 8):
        talk = _chat(run, thread, **{"x-om-resource": RESOURCE, "x-om-scope": "resource"})
        await talk.say(_remark(number))
        await run.app.background.wait_idle()
    pinning = f"{run.base}/om/v1/resources/{RESOURCE}/pins"
    answer = await run.http.post(pinning, json={"text": f"{PIN} shared"}, headers=OWN)
    assert answer.status_code == 200, answer.text
    await _play_failing_thread(run)
    for thread in (EMPTY, FORGOTTEN):
        await _chat(run, thread).say(_remark(0))
    await run.app.background.wait_idle()
    url = f"{run.base}/om/v1/threads/{FORGOTTEN}"
    receipt = (await run.http.delete(url, headers=OWN)).json()["id"]
    memories = await _load_memories(run)
    _require_everything(memories)
    return Furniture(run, memories[RICH].key.tenant, receipt)


def _chat(run: Running, thread: str, **headers: str) -> Chat:
    return run.chat(thread, key=KEY, **headers)


def _remark(number: int) -> str:
    return (
        f"We decided that canaryprompt-{number} stands in aisle {number} of the quarry. "
        + f"The limit of canaryprompt-{number} is {number} kg, and it must never be moved. " * 6
    )


async def _play_rich_thread(run: Running) -> None:
    talk = _chat(run, RICH)
    for number in range(30):
        await talk.say(_remark(number))
        await run.app.background.wait_idle()
    await talk.say("What is canarybranch-1?")
    talk.history[-2:] = []  # its client takes the last question back
    await talk.say(_remark(98))
    url = f"{run.base}/om/v1/threads/{RICH}"
    for method, path, body in (
        ("PATCH", "", {"title": f"{TITLE} 1"}),
        ("PATCH", "/settings", {"observation": {"message_tokens": 700}}),
        *[("POST", "/pins", {"text": f"{PIN} {number}"}) for number in range(3)],
    ):
        answer = await run.http.request(method, url + path, json=body, headers=OWN)
        assert answer.status_code == 200, answer.text


async def _play_failing_thread(run: Running) -> None:
    run.models.faults.switch(Fault(kind="http", model=OBSERVER, status=401))
    talk = _chat(run, FAILING)
    for number in range(6):
        await talk.say(_remark(number))
        await run.app.background.wait_idle()
    run.models.faults.switch()


def _require_everything(memories: dict[str, Memory]) -> None:
    """Fail if a part of the furniture is missing: what is not there cannot get out."""
    rich = memories[RICH]
    assert rich.log.entries
    assert rich.log.generation > 0
    assert rich.log.reflection
    assert rich.chunks
    assert rich.title
    assert rich.log.pins
    assert memories[FAILING].failures.count
    assert memories[SHARING[0]].scope == "resource"
    assert memories[SHARING[0]].log.entries or memories[SHARING[0]].chunks


async def _load_memories(run: Running) -> dict[str, Memory]:
    return {memory.key.thread: memory for memory in await run.memories()}


# ── requests of the admin API ─────────────────────────────────────────────────────────────────────

# of names in a query, those by which a route shows more or other things
QUERY_VALUES = {
    "live": ("all",),
    "excerpt": ("true",),
    "messages": ("true",),
    "generation": ("1",),
    "text": ("canaryquestion",),
}


@dataclass(frozen=True)
class Example:
    """A request to a route."""

    path: str
    query: tuple[str, ...]
    body: Any

    def write_path(self, **more: str) -> str:
        """Return the path with its query. `more`: further names in it."""
        query = "&".join([*self.query, *(f"{name}={value}" for name, value in more.items())])
        return f"{self.path}?{query}" if query else self.path


def list_examples(route: AdminRoute, places: Places) -> Iterator[Example]:
    """List requests to the route: each thing that its path can name, with and without each name in
    its query that shows more. A path that names a new kind of thing fails, and so does a body of
    which `BODIES` knows none."""
    known = route.query.__struct_fields__
    more = [f"{name}={value}" for name in known for value in QUERY_VALUES.get(name, ())]
    required = [part for part in (QUERIES.get((route.method, route.path)),) if part]
    body = BODIES[route.method, route.path] if route.body is not None else None
    named = re.findall(r"/(\w+)/{(\w+)}", route.path)
    for values in product(*(places[collection] for collection, _ in named)):
        path = route.path
        for (_, name), value in zip(named, values, strict=True):
            path = path.replace(f"{{{name}}}", value)
        shared = values and values[0] in SHARING and "resource" in known
        base = (*required, *([f"resource={RESOURCE}"] if shared else []))
        for extra in ((), *((part,) for part in more)):
            yield Example(path, (*base, *extra), body)
