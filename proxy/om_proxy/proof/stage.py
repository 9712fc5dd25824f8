"""The proxy inside a program: real HTTP on loopback ports, models of the program's choice, and a
clock that the program sets."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx
import orjson
import structlog
import yaml
from starlette.types import Receive, Scope, Send

from om_proxy.app.app import App
from om_proxy.app.store_opening import open_store
from om_proxy.common.errors import OmError
from om_proxy.proof.recorder import (
    CALL_HEADER,
    ChatMessage,
    Model,
    RecordedCall,
    Recorder,
)
from om_proxy.settings.config import Settings, parse
from om_proxy.testing.loopback import serve_on_loopback

ACTOR_PATH, MEMORY_PATH = "/actor/v1", "/memory/v1"
# what leads to a memory model; the stage's own takes its place
MODEL_SETTINGS = frozenset(("model", "api_base", "api_key"))
NAMES_WITHOUT_MODEL = frozenset(("auto", "inherit", "default"))
KEY = "stage"  # of the memory model
DEFAULT_RESOURCE = "stage"
CHAT_TIMEOUT_S = 600.0
MAX_DUE_THREADS = 100  # looked up at once


class StageClock:
    """A clock in unix seconds that never goes back."""

    def __init__(self, now: float) -> None:
        self._now = now

    def __call__(self) -> float:
        return self._now

    @property
    def now(self) -> float:
        return self._now

    @now.setter
    def now(self, at: float) -> None:
        if at < self._now:
            raise ValueError(f"time never goes back: {at} is before {self._now}")
        self._now = at


@dataclass(frozen=True, slots=True)
class Turn:
    """One request of a client, and what came of it."""

    reply: ChatMessage
    request: ChatMessage  # as it went upstream: `messages` and, with look-ups, `tools`
    receipt: Mapping[str, str]  # the `x-om-*` headers, without their prefix
    memory_calls: tuple[RecordedCall, ...]  # until no work was under way any more

    @property
    def prompt(self) -> list[ChatMessage]:
        """The messages as they went upstream."""
        messages: list[ChatMessage] = self.request["messages"]
        return messages


class Stage:
    """The proxy, its database and its models, from `async with` to its end.

    `settings`: a mapping, YAML text, or the path of a file. The stage sets `storage.url`, `upstream`
    and, with a `memory_model`, that model's address. `actor`, `memory_model`: `NAME@URL` of an
    OpenAI-compatible server, a name of litellm's, or an async function from a chat request to a text
    or a chat message. Without a `memory_model`, the settings' own counts; the actor makes the notes
    if that is `auto` or `inherit`. `now`: where the clock begins. `folder`: keeps the database;
    `secret` (32 bytes): two stages with the same one give the same labels, and so the same prompts.
    """

    def __init__(
        self,
        settings: Mapping[str, Any] | str | Path = "",
        *,
        actor: Model,
        memory_model: Model | None = None,
        now: datetime | float | None = None,
        folder: Path | str | None = None,
        secret: bytes | None = None,
    ) -> None:
        self.clock = StageClock(read_moment(now))
        self.url: str
        self.app: App
        self._settings = read_settings(settings)
        self._actor_name = actor.partition("@")[0] if isinstance(actor, str) else "actor"
        self._memory_model = memory_model
        self._recorder = Recorder({ACTOR_PATH: actor, MEMORY_PATH: memory_model or actor})
        self._folder = folder
        self._secret = secret
        self._resources: dict[str, str] = {}  # of each thread
        self._client: httpx.AsyncClient
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        if not structlog.is_configured():  # the program has no log of its own for the proxy's lines
            structlog.configure(
                wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL)
            )
        async with AsyncExitStack() as stack:
            stack.push_async_callback(self._recorder.close)
            folder = stack.enter_context(open_folder(self._folder))
            models_url = await stack.enter_async_context(
                serve_on_loopback(self._recorder, lifespan="off")
            )
            settings = self._place(models_url, folder)
            if self._secret is not None:
                await adopt_secret(settings, self._secret)
            self.app = App(settings, clock=self.clock)
            self.url = await stack.enter_async_context(
                serve_on_loopback(_Numbered(self.app), lifespan="on")
            )
            # the work of idle threads is done by `advance` alone
            self.app.background.leave_due_work()
            self._client = await stack.enter_async_context(
                httpx.AsyncClient(base_url=self.url, timeout=CHAT_TIMEOUT_S, trust_env=False)
            )
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._stack.aclose()

    async def chat(
        self,
        thread: str,
        messages: Iterable[ChatMessage],
        *,
        resource: str | None = None,
        model: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Turn:
        """Send the messages as a client would, and return when the work that they made due has
        ended. Raise OmError if the answer is an error."""
        resource = self._resources[thread] = resource or DEFAULT_RESOURCE
        named = {"x-om-thread": thread, "x-om-resource": resource, **(headers or {})}
        self._recorder.take_calls()
        response = await self._client.post(
            "/v1/chat/completions",
            content=orjson.dumps({"model": model or self._actor_name, "messages": list(messages)}),
            headers={"content-type": "application/json"} | named,
        )
        answer = read_answer(response)
        await self.app.background.wait_idle()
        calls = self._recorder.take_calls()
        return Turn(
            reply=answer["choices"][0]["message"],
            request=[call.request for call in calls if call.is_actors][-1],
            receipt=read_receipt(response),
            memory_calls=tuple(call for call in calls if not call.is_actors),
        )

    async def load(
        self, thread: str, messages: Iterable[ChatMessage], *, resource: str | None = None
    ) -> int:
        """Store the messages of a conversation that was held elsewhere, and return how many are new.
        Each may have `created_at`. No actor is asked; notes are made as after any turn."""
        resource = self._resources[thread] = resource or DEFAULT_RESOURCE
        response = await self._client.post(
            f"/om/v1/threads/{quote(thread, safe='')}/messages",
            params={"resource": resource},
            content=orjson.dumps({"model": self._actor_name, "messages": list(messages)}),
            headers={"content-type": "application/json"},
        )
        created: int = read_answer(response)["created"]
        await self.app.background.wait_idle()
        return created

    async def advance(self, to: datetime | float) -> tuple[RecordedCall, ...]:
        """Set the clock, do what is due until nothing is, and return the memory models' calls.
        Raise ValueError if the time is in the past."""
        self._recorder.take_calls()
        self.clock.now = read_moment(to)
        store, background = self.app.store, self.app.background
        before: tuple[object, ...] = ()
        # what stays due cannot be done: its model is the actor's, and no request has named one
        while (due := await store.due_threads(self.clock.now, MAX_DUE_THREADS)) and due != before:
            for key in due:
                background.wake(key)
            await background.wait_idle()
            before = due
        return tuple(self._recorder.take_calls())

    async def notes(self, thread: str) -> str:
        """Return the thread's notes: the active ones, then those that wait."""
        answer = await self._read(thread, "observations")
        return "\n".join(note["text"] for kind in ("log", "chunks") for note in answer[kind])

    async def context(self, thread: str, text: str) -> list[ChatMessage]:
        """Return the prompt that would go upstream for one new message. Nothing is stored."""
        messages: list[ChatMessage] = (await self._read(thread, "context", text=text))["messages"]
        return messages

    async def _read(self, thread: str, kind: str, **query: str) -> Mapping[str, Any]:
        response = await self._client.get(
            f"/om/v1/threads/{quote(thread, safe='')}/{kind}",
            params={"resource": self._resources.get(thread, DEFAULT_RESOURCE), **query},
        )
        return read_answer(response)

    def _place(self, models_url: str, folder: Path) -> Settings:
        """Return the settings with this stage's addresses."""
        data = dict(self._settings)
        server = dict(next(iter(data.get("upstream") or ()), {"name": "stage"}))
        data["upstream"] = [server | {"match": ["*"], "base_url": models_url + ACTOR_PATH}]
        data["storage"] = dict(data.get("storage") or {}) | {"url": f"sqlite:///{folder}/om.db"}
        if self._memory_model is not None:
            memory = dict(data.get("memory") or {})
            name = name_memory_model(self._memory_model, str(memory.get("model") or "auto"))
            for agent in ("observation", "reflection"):
                own = (memory.get(agent) or {}).items()
                memory[agent] = {key: value for key, value in own if key not in MODEL_SETTINGS}
            address = {"model": name, "api_base": models_url + MEMORY_PATH, "api_key": KEY}
            data["memory"] = memory | address
        return parse(yaml.safe_dump(data))


def name_memory_model(model: Model, configured: str) -> str:
    """Return the name that the proxy asks for. A function has the configured model's name, and so
    its list price."""
    if isinstance(model, str):
        return f"openai/{model.partition('@')[0]}"
    name = "memory" if configured in NAMES_WITHOUT_MODEL else configured.removeprefix("openai/")
    return f"openai/{name}"


class _Numbered:
    """Marks what clients send, so that the recorder knows the actor's calls from memory's own."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            scope = {**scope, "headers": [*scope["headers"], (CALL_HEADER, b"1")]}
        await self._app(scope, receive, send)


@contextmanager
def open_folder(folder: Path | str | None) -> Iterator[Path]:
    """Yield the folder, made if it is missing; None: a new one, removed at the end."""
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="om-proxy-stage-") as name:
            yield Path(name)
    else:
        Path(folder).mkdir(parents=True, exist_ok=True)
        yield Path(folder)


def read_settings(settings: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Return the settings as they would stand in a file. Raise ConfigError, which names the line."""
    if isinstance(settings, Mapping):
        return dict(settings)
    is_path = isinstance(settings, Path) or (
        settings and "\n" not in settings and ":" not in settings
    )
    text = Path(settings).read_text(encoding="utf-8") if is_path else str(settings)
    parse(text)
    return dict(yaml.safe_load(text) or {})


def read_moment(moment: datetime | float | None) -> float:
    """Return unix seconds. A time without a zone is in UTC; None is the present."""
    if moment is None:
        return datetime.now(UTC).timestamp()
    if isinstance(moment, datetime):
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return float(moment)


def read_receipt(response: httpx.Response) -> dict[str, str]:
    prefix = "x-om-"
    headers = response.headers.items()
    return {name.removeprefix(prefix): v for name, v in headers if name.startswith(prefix)}


def read_answer(response: httpx.Response) -> Mapping[str, Any]:
    if response.status_code != httpx.codes.OK:
        raise OmError(f"the stage answered {response.status_code}: {response.text[:300]}")
    answer: Mapping[str, Any] = orjson.loads(response.content)
    return answer


async def adopt_secret(settings: Settings, secret: bytes) -> None:
    """Give the new database this secret. Raise OmError if it holds threads with another one."""
    store = await open_store(settings.storage, settings.retention.generations)
    try:
        if not await store.adopt_secret(secret):
            raise OmError("the folder holds threads with another secret: use it, or a new folder")
    finally:
        await store.close()
