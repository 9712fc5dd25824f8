"""Describe sums of the ledger in answers of the admin API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from msgspec import Meta, Struct

from om_proxy.memory.ledger import EMPTY_ACCOUNT, Account, ThreadLedger
from om_proxy.storage.values.records import LedgerSum

Microdollars = Annotated[int, Meta(description="Micro-dollars, at list prices.")]


class TokenSums(Struct, frozen=True, kw_only=True):
    """Tokens, each of one kind."""

    input: Annotated[int, Meta(description="Of prompts: neither cached nor written.")]
    cached: Annotated[int, Meta(description="Of prompts: read from the provider's cache.")]
    cache_write: Annotated[int, Meta(description="Of prompts: written to the cache.")]
    output: int


class Comparison(Struct, frozen=True, kw_only=True):
    """The costs of turns, and their costs without memory."""

    net: Annotated[
        int, Meta(description="Micro-dollars: baseline - cost - memory_cost. A loss is negative.")
    ]
    baseline: Microdollars
    cost: Microdollars
    memory_cost: Annotated[int, Meta(description="Micro-dollars of memory's own calls.")]


class ShadowFigures(Struct, frozen=True, kw_only=True):
    """Turns whose prompt was built, but not sent."""

    turns: int
    tokens_received: int
    tokens_shadow: Annotated[int, Meta(description="Of the prompts that were built.")]
    cost: Microdollars
    shadow_cost: Annotated[
        int, Meta(description="Micro-dollars that the prompts that were built would have cost.")
    ]


class LedgerFigures(Struct, frozen=True, kw_only=True):
    """The savings and costs of memory."""

    turns: Annotated[
        int, Meta(description="Requests that name a thread, and the look-ups within them.")
    ]
    memory_calls: int
    estimated: Annotated[
        int, Meta(description="Calls that are counted by the proxy: no usage was reported.")
    ]
    priced: Annotated[
        bool, Meta(description="`false`: of some model no price is known; its costs are 0.")
    ]
    saving: Annotated[
        Comparison, Meta(description="Of clients that send their whole history with each turn.")
    ]
    versus_whole_history: Annotated[
        Comparison,
        Meta(
            description=(
                "Of clients that send less: the baseline is their whole conversation, which they "
                "never paid for. Not a part of `saving`."
            )
        ),
    ]
    tokens: TokenSums
    baseline_tokens: TokenSums
    memory_tokens: TokenSums
    shadow: ShadowFigures | None
    overhead_us: Annotated[
        int,
        Meta(
            description=(
                "Microseconds that the proxy added to these turns, before the first byte of their "
                "answers; 0 of turns of older versions."
            )
        ),
    ]
    degraded: Annotated[
        int, Meta(description="Turns that memory failed in, with status `degraded`.")
    ]


def describe_thread_ledger(*ledgers: ThreadLedger) -> LedgerFigures:
    """Describe the sums of threads, or of a thread and the log that it shares."""
    accounts = [
        sum_accounts(getattr(ledger, name) for ledger in ledgers)
        for name in ("full", "full_memory", "partial", "partial_memory")
    ]
    return _describe(*accounts)


def describe_sums(sums: Iterable[LedgerSum]) -> LedgerFigures:
    """Describe the sums of one group of the ledger by day."""
    found = [((s.who == "actor", s.history), s.account) for s in sums]
    kinds = ((True, "full"), (False, "full"), (True, "partial"), (False, "partial"))
    accounts = [sum_accounts(account for of, account in found if of == kind) for kind in kinds]
    return _describe(*accounts)


def sum_accounts(accounts: Iterable[Account]) -> Account:
    total = EMPTY_ACCOUNT
    for account in accounts:
        total = total.add(account)
    return total


def _describe(
    full: Account, full_memory: Account, partial: Account, partial_memory: Account
) -> LedgerFigures:
    turns = full.add(partial)
    memory = full_memory.add(partial_memory)
    both = turns.add(memory)
    return LedgerFigures(
        turns=turns.calls,
        memory_calls=memory.calls,
        estimated=both.estimated,
        priced=both.is_priced,
        saving=_compare(full, full_memory),
        versus_whole_history=_compare(partial, partial_memory),
        tokens=_describe_tokens(turns),
        baseline_tokens=TokenSums(
            input=turns.baseline_input,
            cached=turns.baseline_cached,
            cache_write=turns.baseline_cache_write,
            output=turns.output,
        ),
        memory_tokens=_describe_tokens(memory),
        shadow=_describe_shadow(turns) if turns.shadow_calls else None,
        overhead_us=turns.overhead_us,
        degraded=turns.degraded,
    )


def _compare(turns: Account, memory: Account) -> Comparison:
    return Comparison(
        net=turns.baseline_cost - turns.cost - memory.cost,
        baseline=turns.baseline_cost,
        cost=turns.cost,
        memory_cost=memory.cost,
    )


def _describe_tokens(account: Account) -> TokenSums:
    return TokenSums(
        input=account.input,
        cached=account.cached,
        cache_write=account.cache_write,
        output=account.output,
    )


def _describe_shadow(turns: Account) -> ShadowFigures:
    return ShadowFigures(
        turns=turns.shadow_calls,
        tokens_received=turns.shadow_received,
        tokens_shadow=turns.shadow_sent,
        cost=turns.shadow_baseline_cost,
        shadow_cost=turns.shadow_cost,
    )
