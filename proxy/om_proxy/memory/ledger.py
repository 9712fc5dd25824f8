"""Keep the ledger of a thread: what its turns cost, and what they would have cost without memory.

Net saving = baseline - cost - cost of memory's own calls. It may be negative.

- *Cost*: the tokens that the provider reports, else our own counts (`estimated`).
- *Baseline*, for a client that sends its full history: its prompt as received, in the provider's
  tokens. What is new in both prompts adds to it what it added to the bill. Where memory changed the
  prompt, what is new counts as what came before it.
- The tool for look-ups is no part of the baseline. Of a reply with look-ups, the baseline has the
  output of the last round: the answer, and not the call.
- *Baseline*, for a client that sends less (`partial`): the whole live transcript. It is kept in an
  account of its own, because such a client never paid for its history.
- The baseline has a prompt cache, which behaves as the real one did in this turn. Some of our
  prompt was in the previous one. The share of those tokens that came from the cache also came
  from it in the baseline. A provider may lose a warm cache; then both lose it.
- Where memory itself changed the beginning of the prompt, the cache says nothing about the
  baseline. The mean share of the thread stands in, while the cache's lifetime lasts.
- Without reported tokens, a prompt's beginning is in the cache while its lifetime lasts.

On a recorded session of 439 calls, a baseline without a cache is 4.9 times the bill, and one with a
cache that never loses anything is half of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from msgspec import Struct
from msgspec.structs import astuple, replace

from om_proxy.memory.token_prices import NO_TOKENS, TokenPrices, Tokens, price_tokens, scale
from om_proxy.memory.value_bounds import MAX_TOKENS, Finite, Name, PastSeconds, Sum

# `full`: the client sends its whole history. `partial`: it sends a window, or its newest message.
History = Literal["full", "partial"]
MIN_CACHED_TOKENS = 1_024  # providers keep no shorter beginning of a prompt
ALWAYS_CACHED, NEVER_CACHED = (1, 1), (0, 1)
# a cache that serves whole steps lacks the rest of one, however long the prompt is
CACHE_STEP_TOKENS = 128
LONG_STEP_TOKENS = 1_000


class Account(Struct, frozen=True, array_like=True, gc=False):
    """Sums over model calls. Costs are micro-dollars."""

    calls: Sum = 0
    input: Sum = 0  # this and the next three: as in `Tokens`
    cached: Sum = 0
    cache_write: Sum = 0
    output: Sum = 0
    cost: Sum = 0
    baseline_input: Sum = 0  # this and the next two: the prompt without memory, as in `Tokens`
    baseline_cached: Sum = 0
    baseline_cache_write: Sum = 0
    baseline_cost: Sum = 0
    estimated: Sum = 0  # calls whose tokens are our own counts
    unpriced: Sum = 0  # calls of a model without a known price: their costs are 0
    shadow_calls: Sum = 0  # calls for which a prompt was built, but not sent
    shadow_received: Sum = 0  # tokens of their prompts as received
    shadow_sent: Sum = 0  # tokens of the prompts that were built for them
    shadow_baseline_cost: Sum = 0  # their cost
    shadow_cost: Sum = 0  # what the prompts that were built would have cost
    overhead_us: Sum = 0  # what om-proxy added to turns, before the first byte of their answers
    degraded: Sum = 0  # turns that memory failed in

    @property
    def is_priced(self) -> bool:
        return not self.unpriced

    @property
    def tokens(self) -> Tokens:
        return Tokens(self.input, self.cached, self.cache_write, self.output)

    def add(self, other: Account) -> Account:
        return Account(
            self.calls + other.calls,
            self.input + other.input,
            self.cached + other.cached,
            self.cache_write + other.cache_write,
            self.output + other.output,
            self.cost + other.cost,
            self.baseline_input + other.baseline_input,
            self.baseline_cached + other.baseline_cached,
            self.baseline_cache_write + other.baseline_cache_write,
            self.baseline_cost + other.baseline_cost,
            self.estimated + other.estimated,
            self.unpriced + other.unpriced,
            self.shadow_calls + other.shadow_calls,
            self.shadow_received + other.shadow_received,
            self.shadow_sent + other.shadow_sent,
            self.shadow_baseline_cost + other.shadow_baseline_cost,
            self.shadow_cost + other.shadow_cost,
            self.overhead_us + other.overhead_us,
            self.degraded + other.degraded,
        )


EMPTY_ACCOUNT = Account()


class TurnService(NamedTuple):
    """How a turn was served."""

    overhead_us: int = 0  # as in `Account`
    is_degraded: bool = False  # memory failed in it

    def enter(self, account: Account) -> Account:
        """Return the turn's account with this."""
        return replace(account, overhead_us=self.overhead_us, degraded=int(self.is_degraded))


UNTIMED = TurnService()


class PromptMark(Struct, frozen=True, array_like=True):
    """The ledger's record of a prompt."""

    at: PastSeconds  # unix seconds
    whole: Sum  # tokens of the prompt without memory
    sent: Sum  # tokens of the prompt that went upstream
    # identifies what memory put before the conversation; empty: nothing
    prefix: tuple[Finite, ...] = ()
    # both prompts in the provider's tokens, without the tool for look-ups; 0: not known
    billed_whole: Sum = 0
    billed_sent: Sum = 0
    # how much prompts have grown since the one before, in our tokens and the provider's: the sum of
    # long steps, or the largest step
    step: tuple[Sum, Sum] = (0, 0)


class ThreadLedger(Struct, frozen=True, omit_defaults=True):
    """The sums of one thread, kept in its row."""

    full: Account = EMPTY_ACCOUNT
    full_memory: Account = EMPTY_ACCOUNT  # memory's own calls, while the client sends all
    partial: Account = EMPTY_ACCOUNT
    partial_memory: Account = EMPTY_ACCOUNT
    mark: PromptMark | None = None  # of the newest prompt
    cached: Sum = 0  # tokens that the provider's cache served of `repeated`
    repeated: Sum = 0  # tokens that stood in the previous prompt, where that can be told
    shadow_mark: PromptMark | None = None  # of the newest prompt that was built, but not sent
    shadow_parts: tuple[tuple[Name, Sum], ...] = ()  # its parts: kind, tokens

    @property
    def net_saving(self) -> int:
        """Micro-dollars that memory saved for a client that sends its full history."""
        return self.full.baseline_cost - self.full.cost - self.full_memory.cost

    @property
    def known_net_saving(self) -> int | None:
        """The net saving; None if some of it has no price, or no turn came with its history."""
        is_priced = self.full.is_priced and self.full_memory.is_priced
        return self.net_saving if is_priced and self.full.calls else None

    @property
    def is_priced(self) -> bool:
        accounts = (self.full, self.full_memory, self.partial, self.partial_memory)
        return all(account.is_priced for account in accounts)


EMPTY_LEDGER = ThreadLedger()


class MemoryCosts(Struct, frozen=True):
    """The costs of calls of memory models, by the history that the turns sent which they are
    about."""

    full: Account = EMPTY_ACCOUNT
    partial: Account = EMPTY_ACCOUNT

    def add(self, account: Account, history: History) -> MemoryCosts:
        if history == "full":
            return MemoryCosts(self.full.add(account), self.partial)
        return MemoryCosts(self.full, self.partial.add(account))

    def split(self, weights: Sequence[int]) -> list[MemoryCosts]:
        """Split the costs of one call among its threads, by weight."""
        shares = zip(
            split_account(self.full, weights), split_account(self.partial, weights), strict=True
        )
        return [MemoryCosts(full, partial) for full, partial in shares]


NO_MEMORY_COSTS = MemoryCosts()


class TurnPrompt(Struct, frozen=True):
    """One prompt beside the previous one of its thread."""

    mark: PromptMark
    # tokens of `mark.whole` before the first message that the client took back; None: it took none
    kept_tokens: int | None = None
    is_same_model: bool = True
    lifetime_s: float = 0.0  # of the provider's prompt cache
    shadow: PromptMark | None = None
    tool_tokens: int = 0  # of the tool for look-ups, if it was offered


class TurnEntry(Struct, frozen=True):
    """The entry of one turn in the ledger. The fields are those of `ThreadLedger`."""

    account: Account
    history: History = "full"
    mark: PromptMark | None = None
    cached: int = 0
    repeated: int = 0
    shadow_mark: PromptMark | None = None
    shadow_parts: tuple[tuple[str, int], ...] = ()


class _Prompt(Struct, frozen=True):
    """A prompt for one turn: its tokens by our count, and how many were in the previous one."""

    tokens: int
    repeated: int
    billed_repeated: int = 0  # the provider's count of these; 0: not known

    def bill_repeated(self, billed: int) -> int:
        """Return the provider's count of what is repeated, in a prompt of `billed` tokens. If it is
        not known, take our share, which is too high where the provider counts more of what is new."""
        if self.billed_repeated:
            return min(self.billed_repeated, billed)
        return scale(self.repeated, billed, self.tokens)


# ── one turn ──────────────────────────────────────────────────────────────────────────────────────


def assess_turn(
    ledger: ThreadLedger,
    prompt: TurnPrompt,
    reported: Tokens | None,
    counted_output: int,
    prices: TokenPrices | None,
    history: History = "full",
    *,
    answer_output: int | None = None,
) -> TurnEntry:
    """Return what this turn adds to its thread's ledger. `reported`: the provider's usage, if the
    reply carries it. Otherwise `counted_output` are the reply's tokens by our count.
    `answer_output`: the tokens of the answer, if `reported` is of a look-up's call."""
    mark, last = prompt.mark, ledger.mark
    is_plain = prompt.shadow is None and not prompt.tool_tokens
    if reported is not None and is_plain and _is_untouched(mark, last):
        return _enter_untouched(prompt, last, reported, prices, history)
    whole = _Prompt(mark.whole, _repeated_tokens(prompt, last))
    has_new_prefix = last is not None and mark.prefix != last.prefix
    sent = _Prompt(mark.sent, 0 if has_new_prefix else _repeated_sent(mark, last, whole))
    if last is not None and prompt.is_same_model:  # another model's tokens are others
        if whole.repeated == last.whole:
            whole = replace(whole, billed_repeated=last.billed_whole)
        if sent.repeated == last.sent:
            sent = replace(sent, billed_repeated=last.billed_sent)
    is_warm = last is not None and prompt.is_same_model and mark.at - last.at <= prompt.lifetime_s
    if reported is None:
        tokens = _estimate(sent, counted_output, is_warm=is_warm, prices=prices)
        baseline = _estimate(whole, counted_output, is_warm=is_warm, prices=prices)
        account = _open_account(tokens, baseline, prices, is_estimated=True)
        entry = TurnEntry(account, history, mark)
    else:
        tokens = reported
        # a beginning that is too short for any cache says nothing about a longer one
        says_nothing = has_new_prefix or sent.repeated < MIN_CACHED_TOKENS <= whole.repeated
        share = _stand_in(ledger, is_warm=is_warm) if says_nothing else None
        own = _leave_out_tool(reported, prompt.tool_tokens) if prompt.tool_tokens else reported
        mark = replace(
            mark,
            billed_whole=_bill_whole(prompt, last, own.prompt),
            billed_sent=own.prompt,
            step=_measure_steps(mark, last, own.prompt),
        )
        baseline = _project(own, sent, whole, mark.billed_whole, share)
        if answer_output is not None:
            baseline = replace(baseline, output=answer_output)
        account = _open_account(reported, baseline, prices)
        entry = _enter_reported(account, history, mark, sent, own)
    if prompt.shadow is None:
        return entry
    account = _add_shadow(account, ledger, prompt.shadow, tokens, sent, whole, prices)
    return replace(entry, account=account, shadow_mark=prompt.shadow)


def _is_untouched(mark: PromptMark, last: PromptMark | None) -> bool:
    """Return whether memory changed neither this prompt nor the previous one. Then the bill itself
    is the baseline: `_project` gives the same, and takes five times as long."""
    if mark.whole != mark.sent or mark.prefix:
        return False
    return last is None or (last.whole == last.sent and not last.prefix)


def _enter_untouched(
    prompt: TurnPrompt,
    last: PromptMark | None,
    reported: Tokens,
    prices: TokenPrices | None,
    history: History,
) -> TurnEntry:
    """Return the entry of a turn that memory left alone. Nearly every turn of a short thread comes
    here, so it is written out: a call takes as long as ten additions."""
    mark = prompt.mark
    billed = reported.prompt
    step = _measure_steps(mark, last, billed)
    mark = PromptMark(mark.at, mark.whole, mark.sent, mark.prefix, billed, billed, step)
    cached = reported.cached
    account = _open_account(reported, reported, prices)
    if last is None or not mark.whole:
        return TurnEntry(account, history, mark)
    repeated = last.whole if last.whole < mark.whole else mark.whole
    if prompt.kept_tokens is not None and prompt.kept_tokens < repeated:
        repeated = prompt.kept_tokens
    if repeated == last.whole and last.billed_sent and prompt.is_same_model:
        repeated = last.billed_sent if last.billed_sent < billed else billed
    else:  # as `scale` has it
        repeated = (2 * repeated * billed + mark.whole) // (2 * mark.whole)
    if repeated < MIN_CACHED_TOKENS:
        return TurnEntry(account, history, mark)
    if repeated - cached < CACHE_STEP_TOKENS:
        cached = repeated
    return TurnEntry(account, history, mark, cached, repeated)


def _enter_reported(
    account: Account, history: History, mark: PromptMark, sent: _Prompt, reported: Tokens
) -> TurnEntry:
    """Return the entry of a turn, with what it tells of the provider's cache."""
    repeated = sent.bill_repeated(reported.prompt)
    if repeated < MIN_CACHED_TOKENS:
        return TurnEntry(account, history, mark)
    is_all = repeated - reported.cached < CACHE_STEP_TOKENS
    return TurnEntry(account, history, mark, repeated if is_all else reported.cached, repeated)


def _leave_out_tool(reported: Tokens, tool_tokens: int) -> Tokens:
    """Return the usage without the tool for look-ups, which is at the beginning of the
    prompt."""
    cached = min(tool_tokens, reported.cached)
    written = min(tool_tokens - cached, reported.cache_write)
    fresh = min(tool_tokens - cached - written, reported.input)
    return Tokens(
        reported.input - fresh,
        reported.cached - cached,
        reported.cache_write - written,
        reported.output,
    )


def _measure_steps(mark: PromptMark, last: PromptMark | None, billed_sent: int) -> tuple[int, int]:
    """Return the sum of the long steps so far, or the largest step. They tell best how the provider
    counts messages: the client's tools are not in them, and the frames of messages weigh little."""
    if last is None:
        return (0, 0)
    step, billed_step = mark.sent - last.sent, billed_sent - last.billed_sent
    is_known = last.billed_sent and mark.prefix == last.prefix and billed_step > 0
    if not is_known:
        return last.step
    if min(step, last.step[0]) >= LONG_STEP_TOKENS:
        return (last.step[0] + step, last.step[1] + billed_step)
    return (step, billed_step) if step > last.step[0] else last.step


def _bill_whole(prompt: TurnPrompt, last: PromptMark | None, billed_sent: int) -> int:
    """Return the provider's tokens of the prompt without memory.

    It goes on from the previous one. Of a short prompt, the ratio of the provider's tokens to ours
    says little: the client's tools are in it, and a longer prompt has no more of them."""
    mark = prompt.mark
    if mark.whole == mark.sent and not mark.prefix:
        return billed_sent
    if last is None or not last.whole or not last.billed_whole or not prompt.is_same_model:
        return scale(billed_sent, mark.whole, mark.sent)
    new, new_sent = mark.whole - last.whole, mark.sent - last.sent
    billed_new = billed_sent - last.billed_sent
    if new != new_sent or mark.prefix != last.prefix:
        step, billed_step = last.step if last.step[0] else (last.whole, last.billed_whole)
        billed_new = round(new * billed_step / step)
    # an imported mark may say anything
    return min(max(last.billed_whole + billed_new, 0), MAX_TOKENS)


def assess_unmarked_call(
    tokens: Tokens, prices: TokenPrices | None, *, is_estimated: bool = False
) -> Account:
    """Return the account of a call that memory had no part in: it is its own baseline."""
    return _open_account(tokens, tokens, prices, is_estimated=is_estimated)


def assess_memory_call(
    tokens: Tokens, prices: TokenPrices | None, *, is_estimated: bool = False
) -> Account:
    """Return the account of a call of a memory model. Without memory there would be none."""
    return _open_account(tokens, NO_TOKENS, prices, is_estimated=is_estimated)


def split_account(account: Account, weights: Sequence[int]) -> list[Account]:
    """Split the account of one call among its threads, by weight. The shares sum up to it."""
    total = sum(weights)
    if not total:
        weights, total = [1] * len(weights), len(weights)
    shares_by_figure = [
        [
            scale(figure, end, total) - scale(figure, start, total)
            for start, end in pairwise((0, *accumulate(weights)))
        ]
        for figure in astuple(account)
    ]
    return [Account(*shares) for shares in zip(*shares_by_figure, strict=True)]


def _repeated_tokens(prompt: TurnPrompt, last: PromptMark | None) -> int:
    """Return how many tokens of the prompt without memory were in the previous one."""
    if last is None:
        return 0
    repeated = min(last.whole, prompt.mark.whole)
    return repeated if prompt.kept_tokens is None else min(repeated, prompt.kept_tokens)


def _repeated_sent(mark: PromptMark, last: PromptMark | None, whole: _Prompt) -> int:
    """Return how many tokens of the prompt that was sent were in the previous one. What is new is
    new in both."""
    if last is None:
        return 0
    return max(min(last.sent, mark.sent - (whole.tokens - whole.repeated)), 0)


def _stand_in(ledger: ThreadLedger, *, is_warm: bool) -> tuple[int, int]:
    """Return the share of repeated tokens that is taken to come from the cache, as a fraction."""
    if not is_warm:
        return NEVER_CACHED
    return (ledger.cached, ledger.repeated) if ledger.repeated else ALWAYS_CACHED


def _project(
    reported: Tokens,
    sent: _Prompt,
    other: _Prompt,
    prompt_tokens: int,
    share: tuple[int, int] | None,
) -> Tokens:
    """Return the usage of another prompt in the same turn, which has `prompt_tokens` by the
    provider's count. `share`: how much of its repeated part comes from the cache; None: as much as
    of the prompt that was sent."""
    if not sent.tokens:
        return reported  # nothing of ours to compare with
    other_repeated = other.bill_repeated(prompt_tokens)
    if share is not None:
        cached = scale(other_repeated, *share)
    else:
        cached = _project_cached(reported, sent, other_repeated)
    cached = min(cached, prompt_tokens)
    fresh = prompt_tokens - cached
    written = scale(fresh, reported.cache_write, reported.input + reported.cache_write)
    return Tokens(fresh - written, cached, written, reported.output)


def _project_cached(reported: Tokens, sent: _Prompt, other_repeated: int) -> int:
    """Return the cached tokens of the other prompt: the same share of what is repeated. What came
    from the cache beyond that (a beginning that other threads share, or the previous reply) is
    in both prompts."""
    repeated = sent.bill_repeated(reported.prompt)
    missing = repeated - reported.cached
    if missing < CACHE_STEP_TOKENS:
        return max(other_repeated - missing, 0)
    return scale(reported.cached, other_repeated, repeated)


def _estimate(prompt: _Prompt, output: int, *, is_warm: bool, prices: TokenPrices | None) -> Tokens:
    """Return the usage by our own counts: what is repeated comes from the cache while that is
    warm."""
    if prompt.tokens < MIN_CACHED_TOKENS:
        return Tokens(prompt.tokens, 0, 0, output)
    cached = prompt.repeated if is_warm and prompt.repeated >= MIN_CACHED_TOKENS else 0
    fresh = prompt.tokens - cached
    if prices is not None and prices.cache_write > prices.input:
        return Tokens(0, cached, fresh, output)
    return Tokens(fresh, cached, 0, output)


def _open_account(
    tokens: Tokens, baseline: Tokens, prices: TokenPrices | None, *, is_estimated: bool = False
) -> Account:
    cost = price_tokens(tokens, prices)
    return Account(
        1,
        tokens.input,
        tokens.cached,
        tokens.cache_write,
        tokens.output,
        cost,
        baseline.input,
        baseline.cached,
        baseline.cache_write,
        cost if baseline is tokens else price_tokens(baseline, prices),
        int(is_estimated),
        int(prices is None),
    )


def _add_shadow(
    account: Account,
    ledger: ThreadLedger,
    shadow: PromptMark,
    tokens: Tokens,
    sent: _Prompt,
    whole: _Prompt,
    prices: TokenPrices | None,
) -> Account:
    """Return the account with what the prompt that was built would have cost."""
    last = ledger.shadow_mark
    has_new_prefix = last is None or last.prefix != shadow.prefix
    repeated = 0 if has_new_prefix else _repeated_sent(shadow, last, whole)
    prompt_tokens = scale(tokens.prompt, shadow.sent, sent.tokens)
    would_be = _project(tokens, sent, _Prompt(shadow.sent, repeated), prompt_tokens, None)
    return replace(
        account,
        shadow_calls=1,
        shadow_received=sent.tokens,
        shadow_sent=shadow.sent,
        shadow_baseline_cost=account.cost,
        shadow_cost=price_tokens(would_be, prices),
    )


def keep_shadow(account: Account) -> Account:
    """Return the account with nothing but its shadow figures."""
    return Account(
        shadow_calls=account.shadow_calls,
        shadow_received=account.shadow_received,
        shadow_sent=account.shadow_sent,
        shadow_baseline_cost=account.shadow_baseline_cost,
        shadow_cost=account.shadow_cost,
    )


# ── the sums of a thread ──────────────────────────────────────────────────────────────────────────


def add_turn(ledger: ThreadLedger, entry: TurnEntry) -> ThreadLedger:
    """Return the ledger with one more turn."""
    is_full = entry.history == "full"
    return ThreadLedger(
        ledger.full.add(entry.account) if is_full else ledger.full,
        ledger.full_memory,
        ledger.partial if is_full else ledger.partial.add(entry.account),
        ledger.partial_memory,
        entry.mark or ledger.mark,
        ledger.cached + entry.cached,
        ledger.repeated + entry.repeated,
        entry.shadow_mark or ledger.shadow_mark,
        entry.shadow_parts or ledger.shadow_parts,
    )


def add_memory_calls(ledger: ThreadLedger, costs: MemoryCosts) -> ThreadLedger:
    """Return the ledger with more calls of memory models."""
    return replace(
        ledger,
        full_memory=ledger.full_memory.add(costs.full),
        partial_memory=ledger.partial_memory.add(costs.partial),
    )


def join_ledgers(ledger: ThreadLedger, later: ThreadLedger) -> ThreadLedger:
    """Return the ledger with the sums of `later`, and with its marks."""
    return ThreadLedger(
        ledger.full.add(later.full),
        ledger.full_memory.add(later.full_memory),
        ledger.partial.add(later.partial),
        ledger.partial_memory.add(later.partial_memory),
        later.mark or ledger.mark,
        ledger.cached + later.cached,
        ledger.repeated + later.repeated,
        later.shadow_mark or ledger.shadow_mark,
        later.shadow_parts or ledger.shadow_parts,
    )


def rebase_ledger(now: ThreadLedger, before: ThreadLedger, after: ThreadLedger) -> ThreadLedger:
    """Return `now` with what was added between `before` and `after`."""
    added = replace(
        after,
        full=_subtract(after.full, before.full),
        full_memory=_subtract(after.full_memory, before.full_memory),
        partial=_subtract(after.partial, before.partial),
        partial_memory=_subtract(after.partial_memory, before.partial_memory),
        cached=max(after.cached - before.cached, 0),
        repeated=max(after.repeated - before.repeated, 0),
    )
    return join_ledgers(now, added)


def _subtract(account: Account, before: Account) -> Account:
    pairs = zip(astuple(account), astuple(before), strict=True)
    return Account(*(max(new - old, 0) for new, old in pairs))
