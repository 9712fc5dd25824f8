"""Build policies of settings that no file changes, and one whose answers a test gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from om_proxy.engine.policy import Policy, PolicyInForce
from om_proxy.memory.model import Memory
from om_proxy.settings.config import Settings, WatchedSettings, parse
from om_proxy.storage.values.changes import ResourceWakeup


@dataclass(frozen=True, slots=True, eq=False)
class AnsweredPolicy(Policy):
    """Says when work is due by two functions, in place of the settings."""

    due_answer: Callable[[Memory], float | None] = lambda memory: None
    wakeup_answer: Callable[[Memory], ResourceWakeup | None] = lambda memory: None

    def due_at(self, memory: Memory, now: float) -> float | None:
        return self.due_answer(memory)

    def resource_wakeup(self, memory: Memory, now: float) -> ResourceWakeup | None:
        return self.wakeup_answer(memory)


def build_policies(settings: Settings, model_timeout_s: float | None = None) -> PolicyInForce:
    return PolicyInForce(WatchedSettings(settings), model_timeout_s=model_timeout_s)


def build_answering_policies(
    due: Callable[[Memory], float | None] = lambda memory: None,
    wakeup: Callable[[Memory], ResourceWakeup | None] = lambda memory: None,
) -> PolicyInForce:
    """Build policies whose answers a test gives; by default nothing is ever due."""
    policies = build_policies(parse(""))
    policies._policy = AnsweredPolicy(
        policies.current.settings, due_answer=due, wakeup_answer=wakeup
    )
    return policies
