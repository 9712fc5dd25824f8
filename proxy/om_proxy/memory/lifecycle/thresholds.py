"""The thresholds of one thread as plain numbers; decisions.py compares a memory with them."""

from __future__ import annotations

from dataclasses import dataclass, replace

# intervals before the threshold from where half an interval is worth a chunk;
# docs/contributing/behaviour.md#buffer
NEAR_THRESHOLD_INTERVALS = 1.1
# of `keep_tokens`: how far an activation may remove more than its target
MAX_OVERSHOOT_SHARE = 0.95
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
    """The thresholds of one memory. Defaults are those of
    docs/contributing/config.md#thresholds."""

    # T: pending tokens from which the oldest chunks become active
    observe_from_tokens: int = 30_000
    # new tokens that are worth a chunk; None: no buffering, observation is synchronous
    interval_tokens: int | None = 6_000
    # F: raw tokens that an activation aims to leave
    keep_tokens: int = 6_000
    # pending tokens from which a request waits for an observation
    block_from_tokens: int = 36_000
    block_timeout_s: float = 20.0  # the longest wait
    # of the log, shown to the observer; None: all of it
    log_excerpt_tokens: int | None = 2_000
    # since the last turn, from when half an interval is worth a chunk; None: never
    buffer_after_idle_s: float | None = None
    # since the last turn of all threads that share a log, from when the rest is observed; None:
    # never
    share_after_idle_s: float | None = 3_600.0
    # R: log tokens from which a finished reflection is swapped in
    reflect_from_tokens: int = 40_000
    # log tokens from which a reflection is made in the background; None: never
    reflect_ahead_from_tokens: int | None = 20_000
    # log tokens from which a request waits for a reflection
    reflect_block_from_tokens: int = 48_000
    # entries with words that a log may have (log_limit.py); None: any number
    max_log_entries: int | None = None
    # since the last turn, from when chunks become active below T; None: never
    activate_after_idle_s: float | None = None
    activate_on_provider_change: bool = False
    # the time after which the provider's prompt cache is certainly cold
    cache_lifetime_s: float = 3_600.0
    tail_limit_tokens: int | None = None  # raw messages in a prompt; None: all of them
    # messages may use the tokens that the log does not use, and the log those of the messages
    has_shared_budget: bool = False
    # set with `economy: auto` if they are known: notes wait until they are expected to pay back
    # (economy.py)
    prices: Prices | None = None
    # names of the fields above that the settings give in tokens: a shared budget does not move them
    fixed_thresholds: frozenset[str] = frozenset()

    def for_memory(self, *, log_tokens: int, pending_tokens: int) -> Limits:
        """Return the thresholds for this log and this tail. They move if messages and log share a
        budget (docs/contributing/behaviour.md#shared-budget).

        A share moves with its threshold. A threshold that the settings give in tokens stays, but no
        request waits before it is reached.
        """
        if not self.has_shared_budget:
            return self
        budget = self.observe_from_tokens + self.reflect_from_tokens
        observe_from = max(self.observe_from_tokens, budget - log_tokens)
        reflect_from = max(self.reflect_from_tokens, budget - pending_tokens)
        observe_factor = observe_from / self.observe_from_tokens
        reflect_factor = reflect_from / self.reflect_from_tokens

        def scale(name: str, factor: float) -> int:
            tokens: int = getattr(self, name)
            return tokens if name in self.fixed_thresholds else round(tokens * factor)

        return replace(
            self,
            observe_from_tokens=observe_from,
            interval_tokens=None
            if self.interval_tokens is None
            else scale("interval_tokens", observe_factor),
            keep_tokens=scale("keep_tokens", observe_factor),
            block_from_tokens=max(observe_from, scale("block_from_tokens", observe_factor)),
            reflect_from_tokens=reflect_from,
            reflect_ahead_from_tokens=None
            if self.reflect_ahead_from_tokens is None
            else scale("reflect_ahead_from_tokens", reflect_factor),
            reflect_block_from_tokens=max(
                reflect_from, scale("reflect_block_from_tokens", reflect_factor)
            ),
        )
