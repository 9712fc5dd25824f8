"""The kinds of clients. Each holds the true conversation, and shows it in its own way."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.e2e.prompts.oracle import find_ids
from tests.simulation.words import filler
from tests.support.three_apis import APIS, Api

if TYPE_CHECKING:
    from tests.e2e.prompts.world import World

Message = dict[str, Any]

ALTERED_AFTER_MESSAGES = (2, 8, 20)  # a client alters what is older than so many messages
WINDOW_MESSAGES = (5, 6, 9)
CORRECTED_EVERY_TURNS = 5
FIRST_EDITED_AFTER_TURNS = 9
CHOICE_COUNT = 3
SYSTEM: Message = {"role": "system", "content": "Be brief."}
TOOL: Message = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object"}},
}

_numbers = count(1)


class Client:
    """Sends its whole history, and edits or regenerates at times."""

    # of its kind: it goes on in the same way while the store is away
    works_in_outages = False
    history_header = "auto"
    may_call_tools = True
    numbers_calls_by_step = False  # its model server counts the calls of each reply from 0
    choices = 1

    def __init__(self, world: World, rng: Random, thread: str) -> None:
        self.world = world
        self.rng = rng
        self.thread = thread
        self.history: list[Message] = []
        self.abandoned: set[str] = set()
        self.excused: set[str] = set()
        self.spoke_in_outage = False  # with its newest request
        self.model = "scripted-actor"

    async def talk(self) -> None:
        """Live one thread to its end. It does not end before a prompt has told what was said while
        the store was away."""
        for number in count():
            if self.world.has_ended or (number >= self.world.turns and not self.spoke_in_outage):
                return
            async with self.world.take_part(self.works_in_outages):
                await self.step(number)

    async def step(self, number: int) -> None:
        if len(self.history) >= 6 and self.rng.random() < 0.15:
            self.go_back()
        await self.say()

    def go_back(self) -> None:
        """Take the end of the conversation back, to before something that the user said."""
        places = [i for i, m in enumerate(self.history) if i >= 2 and m["role"] == "user"][-3:]
        if places:  # its first turn may hold nothing but steps
            self.cut(self.rng.choice(places))

    def cut(self, place: int) -> None:
        self.abandoned |= set(list_ids(self.history[place:]))
        del self.history[place:]

    async def say(self) -> None:
        self.history.append(self.write("user"))
        await self.ask()

    async def ask(self) -> None:
        """Ask until the reply calls no tool."""
        while True:
            replies = [self.reply() for _ in range(self.choices)]
            shown = self.show()
            await self.world.ask(self, shown, replies)
            chosen = self.rng.choice(replies)
            self.abandoned |= set(list_ids(one for one in replies if one is not chosen))
            self.history.append(chosen)
            self.note_answered()
            if not chosen.get("tool_calls"):
                return
            self.history += self.order_results(
                [self.write("tool", tool_call_id=call["id"]) for call in chosen["tool_calls"]]
            )

    # what kinds do in other ways

    def choose_api(self) -> Api:
        return "chat"

    def choose_past(self, api: Api) -> Past | None:
        """Return the past that a request names in place of showing it; None: it shows all."""
        return None

    def note_past(self, id_: str, prompt: list[Message]) -> None:
        """Called with the id of a reply, and all that its server then holds."""

    def show(self) -> list[Message]:
        return list(self.history)

    def note_answered(self) -> None:
        """Called with the reply in the history."""

    def order_results(self, results: list[Message]) -> list[Message]:
        return results

    def find_promised(self) -> set[str]:
        """Return the ids that a prompt must tell, beyond those that are shown."""
        return set()

    def find_allowed(self) -> set[str]:
        """Return the ids that a prompt may tell beyond those."""
        return set()

    # texts

    def write(self, role: str, **more: Any) -> Message:
        return {"role": role, "content": self.text(), **more}

    def text(self) -> str:
        words = filler(self.rng, self.rng.randrange(6, 24))
        return (
            f"M{next(_numbers)} {words}\ncafé {filler(self.rng, 5)}\nto the {filler(self.rng, 4)}"
        )

    def reply(self) -> Message:
        if not self.may_call_tools or self.rng.random() > 0.25:
            return self.write("assistant")
        one = f"M{next(_numbers)}"
        calls = [
            {
                "id": f"call_{n}" if self.numbers_calls_by_step else f"call_{one}_{n}",
                "type": "function",
                "function": {"name": "look", "arguments": f'{{"q": "{one} {n}"}}'},
            }
            for n in range(self.rng.choice((1, 2, 3)))
        ]
        return {"role": "assistant", "content": None, "tool_calls": calls}


class Past(NamedTuple):
    """What the model server holds up to a reply: its id, and the prompt that ended in it."""

    id: str
    prompt: list[Message]
    length: int  # of the client's history up to the reply


class ApiClient(Client):
    """Changes its API from request to request. Goes back at times. In the Responses API it goes on
    from a reply by its id at times, and not always from the newest."""

    def __init__(self, world: World, rng: Random, thread: str) -> None:
        super().__init__(world, rng, thread)
        self.pasts: list[Past] = []

    def choose_api(self) -> Api:
        return self.rng.choice(APIS)

    def choose_past(self, api: Api) -> Past | None:
        if api != "responses" or not self.pasts or self.rng.random() < 0.4:
            return None
        return self.rng.choice(self.pasts[-2:])

    def note_past(self, id_: str, prompt: list[Message]) -> None:
        self.pasts = [*self.pasts[-4:], Past(id_, prompt, len(self.history) + 1)]

    def cut(self, place: int) -> None:
        super().cut(place)
        self.pasts = [past for past in self.pasts if past.length <= place]


class _PartialClient(Client):
    """Shows a part of its history. What was answered is promised."""

    works_in_outages = True
    may_call_tools = False

    def __init__(self, world: World, rng: Random, thread: str) -> None:
        super().__init__(world, rng, thread)
        # ids that were answered with a store; those answered since it went away, of this process
        self.promised: set[str] = set()
        self.waiting: set[str] = set()

    async def step(self, number: int) -> None:
        await self.say()

    def note_answered(self) -> None:
        self.waiting |= set(list_ids(self.history)) - self.promised

    def find_promised(self) -> set[str]:
        if not self.world.is_store_away:
            self.promised |= self.waiting
            self.waiting = set()
        return set(self.promised)

    def find_allowed(self) -> set[str]:
        return set(list_ids(self.history))


class WindowClient(_PartialClient):
    """Sends its last messages."""

    def __init__(self, world: World, rng: Random, thread: str) -> None:
        super().__init__(world, rng, thread)
        self.window = rng.choice(WINDOW_MESSAGES)

    def show(self) -> list[Message]:
        return self.history[-self.window :]


class ToolWindowClient(WindowClient):
    """Sends its last messages, from something that the user said on."""

    may_call_tools = True

    def show(self) -> list[Message]:
        users = [i for i, m in enumerate(self.history) if m["role"] == "user"]
        start = len(self.history) - self.window
        return self.history[max((i for i in users if i <= start), default=0) :]


class ApiWindowClient(ApiClient, ToolWindowClient):
    """Sends its last messages, each time by any API."""

    step = ToolWindowClient.step


class NewestClient(_PartialClient):
    """Sends its newest message only."""

    def show(self) -> list[Message]:
        return self.history[-1:]


class WholeClient(Client):
    """Sends its whole history, also while the store is away, and takes nothing back."""

    works_in_outages = True

    async def step(self, number: int) -> None:
        await self.say()


# ── altered texts ─────────────────────────────────────────────────────────────────────────────────


def change_spaces(text: str) -> str:
    return "  ".join(text.split(" ", 3)) + " \n"


def change_line_ends(text: str) -> str:
    return text.replace("\n", "\r\n")


def decompose(text: str) -> str:
    return unicodedata.normalize("NFD", text)


def stamp(text: str) -> str:
    return f"[2023-11-14 10:{len(text) % 60:02d}] {text}"


def truncate(text: str) -> str:
    return f"{text[:60]}…" if len(text) > 64 else text


class AlteringClient(Client):
    """Alters what it has shown some messages ago, of both roles."""

    alter: Callable[[str], str]

    def __init__(self, world: World, rng: Random, thread: str) -> None:
        super().__init__(world, rng, thread)
        self.after = rng.choice(ALTERED_AFTER_MESSAGES)

    async def step(self, number: int) -> None:
        await self.say()

    def show(self) -> list[Message]:
        old = len(self.history) - self.after
        return [self.alter_message(m) if place < old else m for place, m in enumerate(self.history)]

    def alter_message(self, message: Message) -> Message:
        if message["role"] == "tool" or not message["content"]:
            return message
        return {**message, "content": type(self).alter(message["content"])}


class AlteringWindowClient(WindowClient):
    """Alters the first message of its window."""

    alter: Callable[[str], str]
    works_in_outages = False

    def show(self) -> list[Message]:
        first, *rest = super().show()
        if not rest:
            return [first]
        return [{**first, "content": type(self).alter(first["content"])}, *rest]


def alters(kind: type[Client], alter: Callable[[str], str]) -> type[Client]:
    return type(kind.__name__, (kind,), {"alter": staticmethod(alter)})


# ── others ────────────────────────────────────────────────────────────────────────────────────────


class ReorderingClient(Client):
    """Asks with the results of parallel calls in the order in which they came. Later shows them in
    the order of their calls."""

    async def step(self, number: int) -> None:
        await self.say()

    def order_results(self, results: list[Message]) -> list[Message]:
        return self.rng.sample(results, len(results))

    def show(self) -> list[Message]:
        newest = next(
            (i for i in reversed(range(len(self.history))) if self.history[i]["role"] != "tool"), 0
        )
        shown: list[Message] = []
        batch: list[Message] = []
        for message in self.history[: newest + 1]:
            if message["role"] == "tool":
                batch.append(message)
                continue
            shown += sorted(batch, key=lambda m: m["tool_call_id"])
            batch = []
            shown.append(message)
        return shown + self.history[newest + 1 :]


class StepNumberingClient(ReorderingClient):
    numbers_calls_by_step = True


class CorrectingClient(Client):
    """Corrects an old message in place, and goes on behind all that followed it."""

    async def step(self, number: int) -> None:
        if number and number % CORRECTED_EVERY_TURNS == 0:
            texts = [i for i, m in enumerate(self.history[:-3]) if isinstance(m["content"], str)]
            texts = [i for i in texts if self.history[i]["role"] != "tool"]
            place = self.rng.choice(texts)
            old = self.history[place]
            self.excused |= set(find_ids(old))
            one, _, text = old["content"].partition(" ")
            corrected = f"{one} I mean M{next(_numbers)} and not what stood here {text}"
            self.history[place] = {**old, "content": corrected}
        await self.say()

    def find_allowed(self) -> set[str]:
        """Return the marks of corrections that were corrected again: notes keep them."""
        return self.abandoned


class FullCorrectingClient(CorrectingClient):
    history_header = "full"


class FullClient(Client):
    """Says that it sends all it holds. Goes back at times."""

    history_header = "full"


class FirstEditingClient(Client):
    """Edits its first message once, and so begins anew (docs/concepts/limits.md)."""

    async def step(self, number: int) -> None:
        if number == FIRST_EDITED_AFTER_TURNS:
            self.cut(0)
        await self.say()


class SideBySideClient(Client):
    """Asks two models, one after the other. Each sees its own replies."""

    at_once = False

    def __init__(self, world: World, rng: Random, thread: str) -> None:
        super().__init__(world, rng, thread)
        self.sides = [_Side(world, rng, thread, model) for model in ("scripted-actor", "other")]

    async def step(self, number: int) -> None:
        question = self.write("user")
        for side in self.sides:
            side.history.append(question)
            side.abandoned = set(list_ids(m for other in self.sides for m in other.history))
        if self.at_once:
            await self.world.gather(side.ask() for side in self.sides)
        else:
            for side in self.sides:
                await side.ask()


class _Side(Client):
    may_call_tools = False

    def __init__(self, world: World, rng: Random, thread: str, model: str) -> None:
        super().__init__(world, rng, thread)
        self.model = model


class AtOnceClient(SideBySideClient):
    """Asks two models at once (docs/concepts/limits.md)."""

    at_once = True


class ChoosingClient(Client):
    """Asks for several replies, and goes on with one of them."""

    may_call_tools = False
    choices = CHOICE_COUNT

    async def step(self, number: int) -> None:
        await self.say()


def list_ids(messages: Iterable[Message]) -> list[str]:
    return [one for message in messages for one in find_ids(message)]


@dataclass(frozen=True)
class Kind:
    """A kind of client. `limit`: how the page on limits names what it does, so that its faults are
    counted by themselves."""

    make: type[Client]
    limit: str = ""


KINDS: Mapping[str, Kind] = {
    "whole": Kind(WholeClient),
    "editing": Kind(Client),
    "full": Kind(FullClient),
    "window": Kind(WindowClient),
    "window-with-tools": Kind(ToolWindowClient),
    "newest-only": Kind(NewestClient),
    "spaces": Kind(alters(AlteringClient, change_spaces)),
    "line-ends": Kind(alters(AlteringClient, change_line_ends)),
    "unicode-form": Kind(alters(AlteringClient, decompose)),
    "time-stamps": Kind(alters(AlteringClient, stamp)),
    "truncation": Kind(alters(AlteringClient, truncate)),
    "window-time-stamp": Kind(alters(AlteringWindowClient, stamp)),
    "window-truncation": Kind(alters(AlteringWindowClient, truncate)),
    "tool-order": Kind(ReorderingClient),
    "tool-order-by-step": Kind(StepNumberingClient),
    "corrections": Kind(CorrectingClient),
    "corrections-full": Kind(FullCorrectingClient),
    "first-edited": Kind(
        FirstEditingClient, limit="The first message of a conversation, edited and sent alone"
    ),
    "side-by-side": Kind(SideBySideClient),
    "at-once": Kind(AtOnceClient, limit="Two models that answer at once in one chat"),
    "n-choices": Kind(ChoosingClient),
    "three-apis": Kind(ApiClient),
    "three-apis-window": Kind(ApiWindowClient),
}
