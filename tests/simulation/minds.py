"""The two memory models, as bad as models are: answers that come at once, late, useless, as errors,
or never.

A usable answer names the ids of what it was about, so that anybody can compare what was observed
with what is covered.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from random import Random

from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.common.errors import ModelBusy, ModelError, PromptTooLong
from tests.simulation.words import filler, ids_in, markers_in, notes, numbered, ranges

# what a call does, and how often
HABITS = {
    "prompt": 50,
    "soon": 20,
    "late": 10,
    "empty": 5,
    "prose": 3,
    "refusal": 2,
    "loop": 2,
    "busy": 3,
    "error": 2,
    "surprise": 2,
    "too long": 3,
    "never": 3,
}
USELESS = {
    "empty": "<observations>\n</observations>",
    "prose": "The user and the assistant spoke of several things, none of which I can put in a list.",
    "refusal": "I'm sorry, but I can't help with that.",
    "loop": notes(
        ["the crate goes to the dock and then the crate goes back to the dock again"] * 60
    ),
}


_THREAD = re.compile(r'^<thread id="([0-9a-f]{16})">\n(.*?)\n</thread>$', re.DOTALL | re.MULTILINE)


def bare(text: str) -> str:
    return text.removeprefix("<observations>\n").removesuffix("\n</observations>")


class Surprise(Exception):
    """What a library may raise that nobody has heard of."""


class Minds:
    """`calm`: from now on every answer is prompt and usable."""

    def __init__(
        self,
        rng: Random,
        told: Callable[[str], None],
        trouble: float,
        risk: Callable[[], Awaitable[None]],
    ) -> None:
        self._rng = rng
        self._told = told
        self._risk = risk
        self._trouble = trouble  # share of the calls that follow HABITS; the others are prompt
        self.calm = False
        self.calls = 0

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        self.calls += 1
        text = "\n".join(part for part in prompt.user if isinstance(part, str))
        observing = "<transcript>" in text
        habit = self._habit()
        self._told(f"{'observer' if observing else 'reflector'} {habit}")
        await self._risk()
        await asyncio.sleep(self._takes(habit))
        self._fail(habit)
        return Answer(
            USELESS.get(habit) or (self._observed if observing else self._reflected)(text),
            target.model,
        )

    def _habit(self) -> str:
        if self.calm or self._rng.random() >= self._trouble:
            return "prompt"
        return self._rng.choices(list(HABITS), weights=list(HABITS.values()))[0]

    def _takes(self, habit: str) -> float:
        if habit == "never":
            return 1e7
        if habit == "late":
            return self._rng.uniform(20, 400)
        return self._rng.uniform(1, 20) if habit == "soon" else self._rng.uniform(0, 1)

    def _fail(self, habit: str) -> None:
        match habit:
            case "busy":
                raise ModelBusy("busy", self._rng.choice((None, 2.0, 90.0)))
            case "error":
                raise ModelError("broken")
            case "surprise":
                raise Surprise
            case "too long":
                raise PromptTooLong("too long")

    def _observed(self, text: str) -> str:
        if threads := self._answered(_THREAD.findall(text)):
            return self._by_thread([(label, self._notes_of(said)) for label, said in threads])
        return notes(self._notes_of(text))

    def _notes_of(self, text: str) -> list[str]:
        transcript = text.rpartition("<transcript>")[2].partition("</transcript>")[0]
        ids = numbered(ids_in(transcript))
        bullets = [
            f"{' '.join(ids[i : i + 4])}: {filler(self._rng, 12)}" for i in range(0, len(ids), 4)
        ]
        return bullets or [filler(self._rng, 5)]

    def _reflected(self, text: str) -> str:
        more = self._rng.choice((0, 0, 10, 500)) if not self.calm else 0
        threads: dict[str, str] = {}
        for label, said in _THREAD.findall(text):
            threads[label] = f"{threads.get(label, '')}\n{said}"
        if threads:
            told = [(label, [self._condensed(said, 3 + more)]) for label, said in threads.items()]
            # words that a person wrote into a reflection of several threads, outside of all tags
            beside = markers_in(text) - markers_in(*threads.values())
            return self._by_thread(told, " ".join(sorted(beside)))
        return notes([self._condensed(text, 3 + more)])

    def _condensed(self, text: str, words: int) -> str:
        about = " ".join([ranges(ids_in(text)), *sorted(markers_in(text))])
        return f"{about}: {filler(self._rng, words)}"

    def _answered(self, threads: list[tuple[str, str]]) -> list[tuple[str, str]]:
        """Those it says anything of: sometimes one is left out."""
        if len(threads) < 2 or self.calm or self._rng.random() >= self._trouble * 0.2:
            return threads
        self._told("left out")
        return [threads[i] for i in self._rng.sample(range(len(threads)), len(threads) - 1)]

    def _by_thread(self, told: list[tuple[str, list[str]]], beside: str = "") -> str:
        """As models write it: with tags that are on lines of their own or not, closed or not, and
        quoted somehow. `beside`: what is of no single thread."""
        quote, close = (
            self._rng.choice(('"', "'", "")),
            self._rng.choice(("\n</thread>", "</thread>", "\n</Thread>\n")),
        )
        body = [
            f"<thread id={quote}{label}{quote}>\n{bare(notes(bullets))}{close}"
            for label, bullets in told
        ]
        if beside:
            body.insert(0, f"* {beside}")
        return "<observations>\n" + "\n".join(body) + "\n</observations>"
