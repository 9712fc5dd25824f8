"""The thresholds of one thread as plain numbers; decisions.py compares a memory with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

# intervals before the threshold from where half an interval is worth a chunk;
# docs/spec/behaviour.md#buffer
NEAR_THRESHOLD_INTERVALS = 1.1
MAX_OVERSHOOT_SHARE = 0.95  # of `keep`: how far an activation may remove more than its target
MIN_RAW_TOKENS = 1_000  # an activation aims to leave them raw


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Dollars per token. `actor_cached`: of input the provider has in its prompt cache;
    `actor_fresh`: of input it has not."""

    actor_cached: float
    actor_fresh: float
    observer_input: float
    observer_output: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Token counts unless said otherwise. Defaults are those of docs/spec/config.md#thresholds."""

    observe_at: int = 30_000  # T: pending from which the oldest chunks become active
    # new tokens that are worth a chunk; None: no buffering, observation is synchronous
    interval: int | None = 6_000
    keep: int = 6_000  # F: raw tokens an activation aims to leave
    block_at: int = 36_000  # pending from which a request waits for an observation
    block_timeout: float = 20.0  # seconds it waits at most
    previous: int | None = 2_000  # of the log shown to the observer; None: all of it
    buffer_after_idle: float | None = (
        # seconds after the last turn from which half an interval is worth a chunk; None: never
        None
    )
    reflect_at: int = 40_000  # R: log tokens at which a reflection is swapped in
    # log tokens from which one is made in the background; None: never
    reflect_from: int | None = 20_000
    reflect_block_at: int = 48_000  # log tokens from which a request waits for one
    activate_after_idle: float | None = None  # seconds since the last turn
    activate_on_provider_change: bool = False
    # seconds after which the provider's prompt cache is certainly cold
    cache_lives: float = 3_600.0
    tail_limit: int | None = None
    shared: bool = False  # messages may use what the log does not, and the other way round
    prices: Prices | None = (
        # `economy: auto`, and both known: notes wait until they are expected to pay back
        # (economy.py)
        None
    )
    fixed: frozenset[str] = (
        frozenset()
    )  # names of the thresholds above that were set in tokens: a shared budget does not move them

    def for_memory(self, *, log_tokens: int, pending_tokens: int) -> Limits:
        """The thresholds for this log and this tail: moved where messages and log share a budget, else
        unchanged (docs/spec/behaviour.md#shared-budget).

        Shares follow the threshold they are shares of. What was set in tokens stays, but no request
        waits below the threshold.
        """
        if not self.shared:
            return self
        budget = self.observe_at + self.reflect_at
        observe_at, reflect_at = (
            max(self.observe_at, budget - log_tokens),
            max(self.reflect_at, budget - pending_tokens),
        )

        def scale(name: str, tokens: int, by: float) -> int:
            return tokens if name in self.fixed else round(tokens * by)

        wider, longer = observe_at / self.observe_at, reflect_at / self.reflect_at
        return replace(
            self,
            observe_at=observe_at,
            interval=None if self.interval is None else scale("interval", self.interval, wider),
            keep=scale("keep", self.keep, wider),
            block_at=max(observe_at, scale("block_at", self.block_at, wider)),
            reflect_at=reflect_at,
            reflect_from=None
            if self.reflect_from is None
            else scale("reflect_from", self.reflect_from, longer),
            reflect_block_at=max(
                reflect_at, scale("reflect_block_at", self.reflect_block_at, longer)
            ),
        )
