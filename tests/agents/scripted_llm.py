"""A model that gives a test's answers in order, and records its prompts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.agents.models import Abilities
from om_proxy.common.errors import ModelError
from om_proxy.memory.token_prices import Usage


@dataclass
class ScriptedLLM:
    """Each step is an answer's text, an answer, or an error to raise."""

    steps: list[str | Answer | ModelError]
    asked: list[tuple[Target, Prompt]] = field(default_factory=list)

    @classmethod
    def of(cls, *steps: str | Answer | ModelError) -> ScriptedLLM:
        return cls(list(steps))

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        self.asked.append((target, prompt))
        step = self.steps.pop(0)
        if isinstance(step, ModelError):
            raise step
        return (
            Answer(step, target.model, Usage(100, 40, 0, 10), "stop")
            if isinstance(step, str)
            else step
        )

    @property
    def models(self) -> list[str]:
        return [target.model for target, _ in self.asked]


@dataclass
class Waits:
    """Replaces asyncio.sleep: it records the seconds and does not wait."""

    seconds: list[float] = field(default_factory=list)

    async def __call__(self, seconds: float) -> None:
        self.seconds.append(seconds)


def words(text: str) -> int:
    """A tokenizer for tests: a word is a token."""
    return len(text.split())


def texts(prompt: Prompt) -> str:
    return "\n\n".join(part for part in prompt.user if isinstance(part, str))


def bullets(*lines: str, extra: str = "") -> str:
    body = "\n".join(f"* 🔴 (10:00) {line}" for line in lines)
    return f"<observations>\nDate: May 22, 2023\n{body}\n</observations>{extra}"


def named(names: Iterable[str]) -> list[Target]:
    return [Target(name) for name in names]


def know_nothing(_model: str) -> Abilities:
    return Abilities()
