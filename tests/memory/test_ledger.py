"""What turns cost, and what they would have cost without memory."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from om_proxy.memory import ledger as ledger_module
from om_proxy.memory.ledger import (
    EMPTY_ACCOUNT,
    EMPTY_LEDGER,
    Account,
    History,
    MemoryCosts,
    PromptMark,
    ThreadLedger,
    TurnEntry,
    TurnPrompt,
    add_memory_calls,
    add_turn,
    assess_memory_call,
    assess_turn,
    assess_unmarked_call,
    join_ledgers,
    rebase_ledger,
    split_account,
)
from om_proxy.memory.token_prices import TokenPrices, Tokens, price_tokens
from om_proxy.memory.value_bounds import MAX_TOKENS

SESSION = Path(__file__).parents[3] / "shared" / "data" / "coding-session.jsonl"
SONNET = TokenPrices(3_000_000, 300_000, 3_750_000, 15_000_000)
# of OpenAI's kind: what is not cached costs the same, written or not
PLAIN = TokenPrices(2_500_000, 1_250_000, 2_500_000, 10_000_000)
LIFETIME_S = 300.0
NOTES = (1.0, 3.0, 7.0, 100.0)  # a prefix of memory's


def mark(whole: int, sent: int, at: float = 0.0, prefix: tuple[float, ...] = ()) -> PromptMark:
    return PromptMark(at, whole, sent, prefix)


def after(last: PromptMark | None, cache: tuple[int, int] = (0, 0)) -> ThreadLedger:
    cached, repeated = cache
    return ThreadLedger(mark=last, cached=cached, repeated=repeated)


def baseline(entry: TurnEntry) -> tuple[int, int, int, int]:
    """Return the tokens of the baseline: input, cached, cache write, output."""
    account = entry.account
    return (
        account.baseline_input,
        account.baseline_cached,
        account.baseline_cache_write,
        account.output,
    )


@dataclass(frozen=True)
class Case:
    """One turn: the ledger before it, its prompt, the provider's usage, and its baseline."""

    last: PromptMark | None
    now: PromptMark
    reported: Tokens | None
    baseline: tuple[int, int, int, int]
    cache: tuple[int, int] = (0, 0)  # of the thread so far
    kept: int | None = None
    same_model: bool = True
    output: int = 50
    prices: TokenPrices = PLAIN


CASES = {
    "the first turn": Case(None, mark(2_000, 2_000), Tokens(2_000, 0, 0, 9), (2_000, 0, 0, 9)),
    "the first turn, with a beginning that other threads warmed": Case(
        None, mark(2_000, 2_000), Tokens(800, 1_200, 0, 9), (800, 1_200, 0, 9)
    ),
    "nothing is rewritten: the bill itself": Case(
        mark(2_000, 2_000), mark(2_400, 2_400, 9.0), Tokens(464, 1_936, 0, 9), (464, 1_936, 0, 9)
    ),
    "the provider lost its cache: the baseline lost it too": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(11_000, 0, 0, 9),
        (51_000, 0, 0, 9),
    ),
    "all that is repeated was cached": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(1_000, 10_000, 0, 9),
        (1_000, 50_000, 0, 9),
    ),
    "half of what is repeated was cached": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(6_000, 5_000, 0, 9),
        (26_000, 25_000, 0, 9),
    ),
    "more was cached than stood in the previous prompt: its reply": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(500, 10_500, 0, 9),
        (500, 50_500, 0, 9),
    ),
    "the provider counts twice as many": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(2_000, 20_000, 0, 9),
        (2_000, 100_000, 0, 9),
    ),
    "what is not cached is written, at a price of its own": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(100, 10_000, 900, 9),
        (100, 50_000, 900, 9),
    ),
    "memory changed the beginning: the thread's mean": Case(
        mark(50_000, 50_000),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(11_000, 0, 0, 9),
        (11_000, 40_000, 0, 9),
        cache=(80, 100),
    ),
    "memory changed the beginning before anything was known of the cache": Case(
        mark(50_000, 50_000),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(11_000, 0, 0, 9),
        (1_000, 50_000, 0, 9),
    ),
    "memory changed the beginning after a pause: the cache was cold": Case(
        mark(50_000, 50_000),
        mark(51_000, 11_000, 301.0, NOTES),
        Tokens(11_000, 0, 0, 9),
        (51_000, 0, 0, 9),
        cache=(80, 100),
    ),
    "memory changed the beginning as another model was asked": Case(
        mark(50_000, 50_000),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(11_000, 0, 0, 9),
        (51_000, 0, 0, 9),
        cache=(80, 100),
        same_model=False,
    ),
    "our prompt is too short for a cache": Case(
        mark(5_000, 900, 0.0, NOTES),
        mark(5_100, 1_000, 9.0, NOTES),
        Tokens(1_000, 0, 0, 9),
        (1_100, 4_000, 0, 9),
        cache=(80, 100),
    ),
    "what is new is short, so the provider counts more of it than we do": Case(
        PromptMark(0.0, 50_000, 10_000, NOTES, 50_000, 10_000),
        mark(50_050, 10_050, 9.0, NOTES),
        Tokens(250, 9_900, 0, 9),
        (250, 49_900, 0, 9),
    ),
    "another model counts anew": Case(
        PromptMark(0.0, 50_000, 10_000, NOTES, 50_000, 10_000),
        mark(51_000, 11_000, 9.0, NOTES),
        Tokens(2_000, 20_000, 0, 9),
        (2_000, 100_000, 0, 9),
        same_model=False,
    ),
    "the client took messages back": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(46_000, 6_000, 9.0, NOTES),
        Tokens(1_000, 5_000, 0, 9),
        (1_000, 45_000, 0, 9),
        kept=45_000,
    ),
    "no usage: the cache is warm": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 300.0, NOTES),
        None,
        (1_000, 50_000, 0, 50),
    ),
    "no usage: the cache is cold": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 300.5, NOTES),
        None,
        (51_000, 0, 0, 50),
    ),
    "no usage: writing has a price of its own": Case(
        mark(50_000, 10_000, 0.0, NOTES),
        mark(51_000, 11_000, 9.0, NOTES),
        None,
        (0, 50_000, 1_000, 50),
        prices=SONNET,
    ),
    "no usage: too short for a cache": Case(
        mark(900, 900), mark(1_000, 1_000, 9.0), None, (1_000, 0, 0, 50)
    ),
    "nothing of ours in the prompt": Case(None, mark(0, 0), Tokens(5, 0, 0, 1), (5, 0, 0, 1)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_baseline(case: Case) -> None:
    """The baseline's tokens are the prompt as received, with the cache as it behaved."""
    prompt = TurnPrompt(case.now, case.kept, case.same_model, LIFETIME_S)
    ledger = after(case.last, case.cache)
    entry = assess_turn(ledger, prompt, case.reported, case.output, case.prices)
    assert baseline(entry) == case.baseline
    assert entry.account.baseline_cost == price_tokens(Tokens(*case.baseline), case.prices)
    assert entry.account.estimated == (case.reported is None)
    if case.reported is not None:
        assert entry.account.tokens == case.reported
        assert entry.account.cost == price_tokens(case.reported, case.prices)


def test_an_imported_mark_adds_no_more_than_one_prompt_can_have() -> None:
    """Whatever it says of the step before: the sums stay within their bounds."""
    last = PromptMark(0.0, 50_000, 10_000, NOTES, 10**12, 10**12, (1, 10**12))
    now = mark(51_000, 6_000, 9.0, (*NOTES, 1.0))
    prompt = TurnPrompt(now, None, True, LIFETIME_S)
    entry = assess_turn(after(last), prompt, Tokens(6_000, 0, 0, 9), 9, PLAIN)
    assert sum(baseline(entry)[:3]) <= MAX_TOKENS


def test_cost_without_usage() -> None:
    """Without reported usage, our counts are the cost, marked as estimated: what stood in the
    previous prompt is cached, but for what memory changed."""
    last = mark(50_000, 10_000, 0.0, NOTES)
    same, changed = mark(51_000, 11_000, 9.0, NOTES), mark(51_000, 6_000, 9.0, (*NOTES, 1.0))
    for now, usage in ((same, Tokens(1_000, 10_000, 0, 50)), (changed, Tokens(6_000, 0, 0, 50))):
        entry = assess_turn(after(last), TurnPrompt(now, None, True, LIFETIME_S), None, 50, PLAIN)
        assert (entry.account.tokens, entry.account.estimated) == (usage, 1)


def test_the_cache_record_grows_by_what_is_known() -> None:
    """A turn whose beginning memory changed tells nothing of the cache; nor does one without
    usage."""
    last = mark(50_000, 10_000, 0.0, NOTES)
    same, changed = mark(51_000, 11_000, 9.0, NOTES), mark(51_000, 6_000, 9.0, ())
    records = [
        assess_turn(after(last), TurnPrompt(now, None, True, 1.0), usage, 1, PLAIN)
        for now, usage in (
            (same, Tokens(3_000, 8_000, 0, 1)),
            (same, Tokens(0, 11_000, 0, 1)),
            (same, None),
            (changed, Tokens(6_000, 0, 0, 1)),
        )
    ]
    found = [(entry.cached, entry.repeated) for entry in records]
    assert found == [(8_000, 10_000), (10_000, 10_000), (0, 0), (0, 0)]


def test_no_price() -> None:
    """A model without a known price counts by its tokens alone."""
    entry = assess_turn(EMPTY_LEDGER, TurnPrompt(mark(9, 9)), Tokens(9, 0, 0, 9), 0, None)
    account = entry.account
    assert (account.cost, account.baseline_cost, account.is_priced) == (0, 0, False)
    assert account.tokens == Tokens(9, 0, 0, 9)
    assert not add_turn(EMPTY_LEDGER, entry).is_priced


def test_memory_calls_have_no_baseline() -> None:
    """Memory's own calls are a cost alone, so a thread that saved nothing shows a loss."""
    call = assess_memory_call(Tokens(1_000, 0, 0, 100), SONNET)
    assert (call.cost, call.baseline_cost, call.calls) == (4_500, 0, 1)
    histories: tuple[History, ...] = ("full", "partial")
    for history in histories:
        ledger = add_memory_calls(EMPTY_LEDGER, MemoryCosts().add(call, history))
        assert ledger.net_saving == (-4_500 if history == "full" else 0)
        assert ledger.partial_memory.cost == (0 if history == "full" else 4_500)


def test_costs_of_a_call_are_shared_without_a_rest() -> None:
    """Each share stays in the account of the call."""
    call = assess_memory_call(Tokens(1_000, 0, 0, 101), SONNET)
    histories: tuple[History, ...] = ("full", "partial")
    for history in histories:
        shares = MemoryCosts().add(call, history).split([1, 2, 4])
        total = EMPTY_LEDGER
        for share in shares:
            total = add_memory_calls(total, share)
        assert total == add_memory_calls(EMPTY_LEDGER, MemoryCosts().add(call, history))
        assert shares[2].full.cost + shares[2].partial.cost > call.cost // 2


def test_a_call_without_memory_is_its_own_baseline() -> None:
    account = assess_unmarked_call(Tokens(1_000, 500, 20, 100), SONNET)
    assert account.cost == account.baseline_cost > 0


def test_a_partial_history_is_kept_apart() -> None:
    """What a thin client's whole transcript would have cost is never a saving of the other kind."""
    now = mark(50_000, 10_000, 0.0, NOTES)
    entry = assess_turn(EMPTY_LEDGER, TurnPrompt(now), Tokens(10_000, 0, 0, 1), 1, PLAIN, "partial")
    ledger = add_turn(EMPTY_LEDGER, entry)
    assert ledger.net_saving == 0
    assert ledger.partial.baseline_cost - ledger.partial.cost == 100_000
    assert ledger.full == EMPTY_ACCOUNT


def test_a_shadow_prompt_is_priced_beside_the_one_that_was_sent() -> None:
    """What was built would have had the same cache: its repeated part stands in the shadow prompt
    before it, if memory left it as it was."""
    ledger = ThreadLedger(mark=mark(50_000, 50_000), shadow_mark=mark(50_000, 10_000, 0.0, NOTES))
    now = mark(51_000, 51_000, 9.0)
    shadow = mark(51_000, 11_000, 9.0, NOTES)
    usage = Tokens(1_000, 50_000, 0, 9)
    entry = assess_turn(ledger, TurnPrompt(now, shadow=shadow), usage, 9, PLAIN)
    account = entry.account
    assert account.cost == account.baseline_cost == account.shadow_baseline_cost
    assert account.shadow_cost == price_tokens(Tokens(1_000, 10_000, 0, 9), PLAIN)
    assert (account.shadow_calls, account.shadow_received, account.shadow_sent) == (
        1,
        51_000,
        11_000,
    )
    assert add_turn(ledger, entry).shadow_mark == shadow


# ── properties ────────────────────────────────────────────────────────────────────────────────────

TOKENS = st.integers(0, 10**6)
USAGES = st.builds(Tokens, TOKENS, TOKENS, TOKENS, TOKENS)
PREFIXES = st.sampled_from(((), NOTES, (2.0, 1.0, 9.0, 5.0)))
MARKS = st.builds(PromptMark, st.floats(0, 1_000), TOKENS, TOKENS, PREFIXES, TOKENS, TOKENS)
LEDGERS = st.builds(
    ThreadLedger,
    mark=st.none() | MARKS,
    cached=TOKENS,
    repeated=st.integers(10**6, 10**7),
    shadow_mark=st.none() | MARKS,
)
PROMPTS = st.builds(
    TurnPrompt, MARKS, st.none() | TOKENS, st.booleans(), st.floats(0, 1_000), st.none() | MARKS
)
SOME_PRICES = st.none() | st.builds(TokenPrices, *[st.integers(0, 10**8)] * 4)
ACCOUNTS = st.builds(Account, *[TOKENS] * len(Account.__struct_fields__))


@given(LEDGERS, PROMPTS, st.none() | USAGES, TOKENS, SOME_PRICES)
def test_no_figure_is_negative(
    ledger: ThreadLedger,
    prompt: TurnPrompt,
    reported: Tokens | None,
    output: int,
    prices: TokenPrices | None,
) -> None:
    """Whatever is reported, no token and no cost is negative."""
    entry = assess_turn(ledger, prompt, reported, output, prices)
    assert min(astuple(entry.account)) >= 0
    assert 0 <= entry.cached <= entry.repeated


@given(
    TOKENS,
    TOKENS,
    st.booleans(),
    st.none() | USAGES,
    SOME_PRICES,
    st.none() | TOKENS,
    st.booleans(),
    TOKENS,
)
def test_a_prompt_that_memory_left_alone_is_its_own_baseline(
    before: int,
    now: int,
    is_warm: bool,
    reported: Tokens | None,
    prices: TokenPrices | None,
    kept: int | None,
    is_same_model: bool,
    billed: int,
) -> None:
    """Without memory the baseline is the bill, to the micro-dollar, whatever the cache did. The
    rule says so, with and without its short cut."""
    prompt = TurnPrompt(mark(now, now, 9.0), kept, is_same_model, 10.0 if is_warm else 1.0)
    ledger = after(PromptMark(0.0, before, before, (), billed, billed), (5, 7))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_module, "_is_untouched", lambda *_: False)
        entry = assess_turn(ledger, prompt, reported, 3, prices)
    assert baseline(entry) == astuple(entry.account.tokens)
    assert entry.account.baseline_cost == entry.account.cost
    assert entry == assess_turn(ledger, prompt, reported, 3, prices)


@given(st.integers(1_024, 10**6), st.integers(0, 10**5), st.integers(1, 50), SOME_PRICES)
def test_scaling(repeated: int, new: int, factor: int, prices: TokenPrices | None) -> None:
    """Of a baseline so many times as long as what was sent, so many times the tokens are cached."""
    last = mark(factor * repeated, repeated, 0.0, NOTES)
    now = mark(factor * repeated + new, repeated + new, 9.0, NOTES)
    usage = Tokens(new, repeated, 0, 1)
    entry = assess_turn(after(last), TurnPrompt(now, None, True, 10.0), usage, 1, prices)
    assert baseline(entry) == (new, factor * repeated, 0, 1)


@given(ACCOUNTS, ACCOUNTS, ACCOUNTS)
def test_sums(one: Account, other: Account, third: Account) -> None:
    """Sums do not depend on the order, and nothing is lost."""
    assert one.add(other) == other.add(one)
    assert one.add(other).add(third) == one.add(other.add(third))
    assert one.add(EMPTY_ACCOUNT) == one
    figures = zip(astuple(one), astuple(other), strict=True)
    assert astuple(one.add(other)) == tuple(map(sum, figures))


@given(ACCOUNTS, st.lists(st.integers(0, 10**6), min_size=1, max_size=20))
def test_split(account: Account, weights: list[int]) -> None:
    """The shares of a call sum up to the call, and each is near its weight."""
    shares = split_account(account, weights)
    assert tuple(map(sum, zip(*map(astuple, shares), strict=True))) == astuple(account)
    total = sum(weights)
    for weight, share in zip(weights, shares, strict=True):
        assert min(astuple(share)) >= 0
        if total:
            for figure, whole in zip(astuple(share), astuple(account), strict=True):
                assert abs(figure - Fraction(whole * weight, total)) <= 1


ENTRIES = st.builds(
    TurnEntry,
    ACCOUNTS,
    st.sampled_from(("full", "partial")),
    st.none() | MARKS,
    TOKENS,
    TOKENS,
    st.none() | MARKS,
)


@given(st.lists(ENTRIES, max_size=6), st.integers(0, 6))
def test_parts_of_a_ledger_join_to_the_whole(entries: list[TurnEntry], cut: int) -> None:
    """Turns added in two parts, joined or moved onto another writer's turns, sum up as if they had
    been added one by one."""

    def add_all(ledger: ThreadLedger, some: list[TurnEntry]) -> ThreadLedger:
        for entry in some:
            ledger = add_turn(ledger, entry)
        return ledger

    whole = add_all(EMPTY_LEDGER, entries)
    first, second = (add_all(EMPTY_LEDGER, part) for part in (entries[:cut], entries[cut:]))
    assert join_ledgers(first, second) == whole
    assert rebase_ledger(first, EMPTY_LEDGER, second) == whole
    assert rebase_ledger(first, first, whole) == whole


# ── the recorded coding session ───────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class RecordedCall:
    at: float  # when it was answered
    usage: Tokens
    cost: float  # dollars


def recorded_calls() -> list[RecordedCall]:
    if not SESSION.exists():
        pytest.skip("needs shared/data/coding-session.jsonl beside the repository")
    calls = []
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in SESSION.read_text("utf-8").splitlines()
    ]
    for line in lines:
        if line["role"] == "assistant":
            used = line["usage"]
            usage = Tokens(used["input"], used["cacheRead"], used["cacheWrite"], used["output"])
            at = datetime.fromisoformat(line["created_at"]).timestamp()
            calls.append(RecordedCall(at, usage, used["cost"]["total"]))
    return calls


def play(calls: list[RecordedCall], monkeypatch: pytest.MonkeyPatch) -> Account:
    """Return the sums of the session's ledger. Nothing is rewritten; our counts are a tenth below
    the provider's. The rule is asked for every turn, without its short cut."""
    monkeypatch.setattr(ledger_module, "_is_untouched", lambda *_: False)
    ledger = EMPTY_LEDGER
    for call in calls:
        tokens = call.usage.prompt * 9 // 10
        prompt = TurnPrompt(mark(tokens, tokens, call.at), None, True, LIFETIME_S)
        ledger = add_turn(ledger, assess_turn(ledger, prompt, call.usage, 0, SONNET))
    return ledger.full


def test_the_baseline_of_the_recorded_session_is_its_bill(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """439 calls without memory: cost and baseline are the recorded bill, within 1 %."""
    calls = recorded_calls()
    bill = sum(call.cost for call in calls)
    account = play(calls, monkeypatch)
    assert (account.calls, account.estimated, account.unpriced) == (439, 0, 0)
    assert account.cost == pytest.approx(bill * 1e6, rel=1e-4)
    assert account.baseline_cost == pytest.approx(bill * 1e6, rel=0.01)


@pytest.mark.parametrize(
    ("rule", "share"),
    [("all fresh", (4.5, 5.2)), ("perfect cache", (0.45, 0.6))],
)
def test_simpler_rules_miss_the_bill(
    rule: str, share: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline without a cache is 4.9 times the bill, and one whose cache never loses a warm
    prefix is half of it. Either rule in place of ours misses the bill by far more than 1 %."""

    def project(reported: Tokens, sent: Any, other: Any, tokens: int, share: Any) -> Tokens:
        cached = 0 if rule == "all fresh" else other.repeated * reported.prompt // sent.tokens
        fresh = reported.prompt - cached
        if rule == "all fresh":
            return Tokens(fresh, 0, 0, reported.output)
        return Tokens(0, cached, fresh, reported.output)

    calls = recorded_calls()
    bill = sum(call.cost for call in calls)
    monkeypatch.setattr(ledger_module, "_project", project)
    found = play(calls, monkeypatch).baseline_cost / (bill * 1e6)
    assert share[0] <= found <= share[1]


@pytest.mark.parametrize(
    ("full", "full_memory", "known"),
    [
        (Account(calls=2, cost=7, baseline_cost=7), EMPTY_ACCOUNT, 0),
        (Account(calls=2, cost=7, baseline_cost=9), Account(calls=1, cost=5), -3),
        (Account(calls=2, unpriced=2), EMPTY_ACCOUNT, None),
        # memory's own calls cost something, and nobody knows how much
        (Account(calls=2, cost=7, baseline_cost=9), Account(calls=1, unpriced=1), None),
        # a client that sends only its newest messages has nothing to compare with
        (EMPTY_ACCOUNT, EMPTY_ACCOUNT, None),
    ],
)
def test_a_saving_is_known_where_all_is_priced(
    full: Account, full_memory: Account, known: int | None
) -> None:
    partial = Account(calls=3, unpriced=3)
    ledger = ThreadLedger(full=full, full_memory=full_memory, partial=partial)
    assert ledger.known_net_saving == known


def play_turns(turns: list[tuple[PromptMark, Tokens, int]]) -> ThreadLedger:
    """Return the ledger after turns: each with its mark, its usage and the tokens of its tool."""
    ledger = EMPTY_LEDGER
    for now, reported, tool_tokens in turns:
        prompt = TurnPrompt(now, lifetime_s=LIFETIME_S, tool_tokens=tool_tokens)
        ledger = add_turn(ledger, assess_turn(ledger, prompt, reported, 0, PLAIN))
    return ledger


def fresh(tokens: int) -> Tokens:
    return Tokens(tokens, 0, 0, 0)


def test_the_tool_for_look_ups_is_no_part_of_the_baseline() -> None:
    """It costs what it costs, and without memory there would be none."""
    before = (mark(5_000, 5_000, 1.0), fresh(5_000), 0)
    for prefix, sent in (((), 6_000), (NOTES, 2_000)):
        now = mark(6_000, sent, 2.0, prefix)
        with_tool = play_turns([before, (now, fresh(sent + 700), 700)]).full
        without = play_turns([before, (now, fresh(sent), 0)]).full
        assert with_tool.tokens.prompt == without.tokens.prompt + 700
        assert (with_tool.baseline_input, with_tool.baseline_cached) == (
            without.baseline_input,
            without.baseline_cached,
        )


@pytest.mark.parametrize("tools", [0, 4_000])
@pytest.mark.parametrize("scale", [1.0, 1.25])
def test_the_baseline_goes_on_from_the_prompt_before(tools: int, scale: float) -> None:
    """A client's tools stand once in each prompt, however much longer the one without memory is; a
    provider may count more than we do."""

    def bill(tokens: int) -> Tokens:
        return fresh(tools + round(scale * tokens))

    wholes = range(2_000, 62_000, 2_000)
    turns = []
    for number, whole in enumerate(wholes):
        is_long = whole > 30_000
        sent = 6_000 + whole % 4_000 if is_long else whole
        now = mark(whole, sent, float(number), (*NOTES, whole // 4_000) if is_long else ())
        turns.append((now, bill(sent), 0))
    account = play_turns(turns).full
    true = sum(bill(whole).prompt for whole in wholes)
    assert account.baseline_input + account.baseline_cached == pytest.approx(true, rel=0.001)
