"""Compute every figure of a run from its cases and its calls, and write them as a page."""

from __future__ import annotations

import hashlib
import json
import math
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import orjson

from om_proxy.proof.evaluation.call_log import MEMORY_STEP, CallRecord, sum_dollars
from om_proxy.proof.needed import NOTES_PATTERN
from om_proxy.testing.scripted import message_text

SIGNIFICANT_P = 0.05
NORMAL_QUANTILE_95 = 1.959963984540054
BOOTSTRAP_ROUNDS = 2_000
ACTOR_STEP, ORACLE_STEP = "actor:om", "actor:oracle"
COMPARED_CHARS = 200  # of a message: a long one is shown to the memory model in part
_SESSION_PATTERN = re.compile(r"^Session Content:\n\n(\[.*\])$", re.MULTILINE)
_DAY_PATTERN = re.compile(
    r"^Date: (?:on or before )?(?:[A-Z][a-z]+day, )?([A-Z][a-z]+ \d{1,2}, \d{4})", re.MULTILINE
)

Row = Mapping[str, Any]


def build_report(
    run: Mapping[str, Any], rows: Sequence[Row], records: Iterable[CallRecord]
) -> dict[str, Any]:
    """Return every figure of a run. It depends on its arguments only: whoever has the folder can
    compute it again."""
    answers = [answer | {"case": row["case"]} for row in rows for answer in row.get("answers", ())]
    answered = [answer for answer in answers if not answer["is_unanswerable"]]
    by_system = _group(answered, "system")
    reach = EvidenceReach()
    digest, notes = _sum_calls(records, reach)
    counted = [row["refused_calls"] for row in rows if "refused_calls" in row]
    if counted:  # runs from before they were counted stay valid
        refused: Counter[str] = Counter()
        for calls in counted:
            refused.update(calls)
        notes["refused_calls"] = dict(sorted(refused.items()))
    return {
        "title": render_title(run),
        "run": run,
        "calls_sha256": digest,
        "questions": len({answer["question"] for answer in answered}),
        "systems": {name: _score_system(group) for name, group in by_system.items()},
        "unanswerable": {
            name: _score_share(group)
            for name, group in _group(
                [answer for answer in answers if answer["is_unanswerable"]], "system"
            ).items()
        },
        "differences": [_compare(by_system, *pair) for pair in combinations(by_system, 2)],
        "notes": notes,
        "evidence": _score_evidence(by_system.get("om", ()), reach.by_question),
        "planted": next((row for row in rows if "planted" in row), None),
    }


def render_title(run: Mapping[str, Any]) -> str:
    """Name what every figure depends on."""
    models = ", ".join(f"{step} {name}" for step, name in run["models"].items())
    return (
        f"{run['benchmark']}, {run['questions']} of {run['all_questions']} questions, {models}, "
        f"memory {run['settings']}, om-proxy {run['version']}"
    )


def _score_system(answers: Sequence[Row]) -> dict[str, Any]:
    dollars = sum_dollars(answer["dollars"] for answer in answers)
    right = sum(answer["right"] for answer in answers)
    by_case: dict[str, list[bool]] = defaultdict(list)
    for answer in answers:
        by_case[str(answer["case"])].append(answer["right"])
    scores = [answer["f1"] for answer in answers if "f1" in answer]
    found = _score_share(answers) | {
        "interval_by_case": find_cluster_interval(by_case),
        "kinds": {kind: _score_share(group) for kind, group in _group(answers, "kind").items()},
        "input_tokens": sum(answer["input_tokens"] for answer in answers),
        "output_tokens": sum(answer["output_tokens"] for answer in answers),
        "dollars": dollars,
        "dollars_a_right_answer": dollars / right if dollars is not None and right else None,
        "models": sorted({str(answer["model"]) for answer in answers}),
    }
    return found | ({"f1": sum(scores) / len(scores)} if scores else {})


def _score_share(answers: Sequence[Row]) -> dict[str, Any]:
    right = sum(answer["right"] for answer in answers)
    return {
        "asked": len(answers),
        "right": right,
        "accuracy": right / len(answers),
        "interval": find_wilson_interval(right, len(answers)),
    }


def _compare(by_system: Mapping[str, Sequence[Row]], first: str, second: str) -> dict[str, Any]:
    verdicts = [
        {answer["question"]: answer["right"] for answer in by_system[name]}
        for name in (first, second)
    ]
    only_first = sum(right and not verdicts[1][name] for name, right in verdicts[0].items())
    only_second = sum(right and not verdicts[0][name] for name, right in verdicts[1].items())
    p = find_mcnemar_p(only_first, only_second)
    better = first if only_first > only_second else second
    return {
        "systems": [first, second],
        "only_first": only_first,
        "only_second": only_second,
        "p": p,
        "better": better if p < SIGNIFICANT_P else None,
    }


def _score_evidence(answers: Sequence[Row], reach: Mapping[str, Reach]) -> dict[str, Any] | None:
    """Return how many answers are right where all evidence reached the prompt, and where some did
    not. None if the run has no oracle, whose prompts show what is evidence."""
    known = [
        (answer, reach[answer["question"]]) for answer in answers if answer["question"] in reach
    ]
    if not known:
        return None
    whole = [answer for answer, (sessions, reached) in known if reached == sessions]
    others = [answer for answer, (sessions, reached) in known if reached < sessions]
    return {
        "sessions": sum(sessions for _, (sessions, _) in known),
        "reached": sum(reached for _, (_, reached) in known),
        "all_reached": _score_share(whole) if whole else None,
        "some_missing": _score_share(others) if others else None,
    }


def _sum_calls(records: Iterable[CallRecord], reach: EvidenceReach) -> tuple[str, dict[str, Any]]:
    """Return the digest of all calls in whatever order, and what notes took; show each call to
    `reach`."""
    digests: list[bytes] = []
    notes: list[CallRecord] = []
    for record in records:
        digests.append(hash_record(record))
        reach.add(record)
        if record.key.step == MEMORY_STEP:
            notes.append(record)
    return hashlib.sha256(b"".join(sorted(digests))).hexdigest(), {
        "calls": len(notes),
        "input_tokens": sum(record.input_tokens for record in notes),
        "output_tokens": sum(record.output_tokens for record in notes),
        "dollars": sum_dollars(record.dollars for record in notes),
    }


def hash_record(record: CallRecord) -> bytes:
    parts = [*record.key, record.model, record.request, record.answer, record.dollars]
    return hashlib.sha256(orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)).digest()


def _group(answers: Iterable[Row], key: str) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for answer in answers:
        groups[answer[key]].append(answer)
    return dict(groups)


# ── intervals ─────────────────────────────────────────────────────────────────────────────────────


def find_wilson_interval(right: int, asked: int) -> tuple[float, float]:
    """Return the 95 % score interval of a share (Wilson 1927, without continuity correction)."""
    if not asked:
        return 0.0, 1.0
    z2 = NORMAL_QUANTILE_95**2
    centre = (right + z2 / 2) / (asked + z2)
    share = right / asked
    half = (
        NORMAL_QUANTILE_95
        * math.sqrt(share * (1 - share) / asked + z2 / (4 * asked**2))
        / (1 + z2 / asked)
    )
    return max(0.0, centre - half), min(1.0, centre + half)


def find_mcnemar_p(only_first: int, only_second: int) -> float:
    """Return the two-sided p-value of McNemar's exact test: that of a fair coin, for the questions
    that only one of two systems answered."""
    discordant = only_first + only_second
    tail = sum(math.comb(discordant, k) for k in range(min(only_first, only_second) + 1))
    p: float = 2 * tail / 2**discordant
    return min(1.0, p)


def find_cluster_interval(right_by_cluster: Mapping[str, Sequence[bool]]) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of a share whose questions come in clusters: whole clusters
    are drawn again. With one cluster nothing is known: 0 to 1."""
    clusters = [verdicts for verdicts in right_by_cluster.values() if verdicts]
    if len(clusters) < 2:
        return 0.0, 1.0
    dice = random.Random(0)  # noqa: S311  # the same interval in each run; no secret
    shares = sorted(
        _find_share(dice.choices(clusters, k=len(clusters))) for _ in range(BOOTSTRAP_ROUNDS)
    )
    outside = round(BOOTSTRAP_ROUNDS * 0.025)
    return shares[outside], shares[-outside - 1]


def _find_share(clusters: Sequence[Sequence[bool]]) -> float:
    return sum(map(sum, clusters)) / sum(map(len, clusters))


# ── evidence ──────────────────────────────────────────────────────────────────────────────────────


class Reach(NamedTuple):
    """Of one question: the sessions that hold its answer, and how many reached its prompt."""

    sessions: int
    reached: int


class EvidenceReach:
    """Finds out from the log whether the sessions that hold a question's answer reached its prompt.

    A session is one of the oracle's prompt. It reached the prompt of `om` if each of its messages
    stands there raw, or was shown to the memory model under a day whose notes stand there. What the
    notes say of it is another question: correctness is reported beside.

    It takes the records of a run in order. `by_question` has those that both systems were asked.
    """

    def __init__(self) -> None:
        self.by_question: dict[str, Reach] = {}
        self._case = ""
        self._shown: list[tuple[str, str]] = []  # of the case: day, and what was shown under it
        self._prompts: dict[str, str] = {}  # of the case, by question

    def add(self, record: CallRecord) -> None:
        step, case = record.key.step, record.key.case
        prompt = "\n".join(map(message_text, record.request["messages"]))
        if step == MEMORY_STEP:
            if case != self._case:
                self._case, self._shown, self._prompts = case, [], {}
            self._shown += split_days(prompt.partition("# New messages")[2])
        elif step == ACTOR_STEP:
            self._prompts[case] = prompt
        elif step == ORACLE_STEP and case in self._prompts:
            sessions = list(read_sessions(prompt))
            reached = sum(self._has_reached(messages, case) for messages in sessions)
            self.by_question[case] = Reach(len(sessions), reached)

    def _has_reached(self, messages: list[str], question: str) -> bool:
        prompt = self._prompts[question]
        days = set(_DAY_PATTERN.findall("".join(NOTES_PATTERN.findall(prompt))))
        noted = [text for day, text in self._shown if day in days]
        raw = join_words(NOTES_PATTERN.sub("", prompt))
        return all(any(m in text for text in (raw, *noted)) for m in messages)


def split_days(transcript: str) -> Iterator[tuple[str, str]]:
    """Yield each day of a transcript with what was said on it."""
    _, *parts = _DAY_PATTERN.split(transcript)
    yield from zip(parts[::2], map(join_words, parts[1::2]), strict=True)


def read_sessions(prompt: str) -> Iterator[list[str]]:
    """Yield the messages of each session of the oracle's prompt, as they are compared."""
    for session in _SESSION_PATTERN.findall(prompt):
        yield [join_words(message["content"])[:COMPARED_CHARS] for message in json.loads(session)]


def join_words(text: str) -> str:
    return " ".join(text.split())


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def render_page(report: Mapping[str, Any]) -> str:
    run = report["run"]
    lines = [f"# {report['title']}", ""]
    if run["ceiling"]:
        lines += [f"No system can be right in more than {run['ceiling']:.1%}: keys are wrong.", ""]
    if run["is_played"]:
        lines += ["A played run: no model of a provider answered.", ""]
    lines += _render_systems(report["systems"])
    lines += _render_kinds(report["systems"])
    lines += _render_differences(report["differences"])
    notes = report["notes"]
    lines += [
        f"Notes: {notes['calls']} calls, {notes['input_tokens']} tokens read, "
        f"{notes['output_tokens']} written, {_render_dollars(notes['dollars'])}. They are not in the "
        "dollars above: a log is written once, however many questions follow."
        + _render_refused(notes.get("refused_calls", {})),
        "",
    ]
    if evidence := report["evidence"]:
        lines += [*_render_evidence(evidence), ""]
    for name, share in report["unanswerable"].items():
        lines += [f"Unanswerable questions, {name}: {_render_share(share)}.", ""]
    if planted := report["planted"]:
        found, asked = planted["planted"], planted["asked"]
        lines += [
            f"The judge was shown planted answers to {asked} questions, and was right about "
            f"{found['right']} right, {found['wrong']} wrong and {found['unsure']} missing ones.",
            "",
        ]
    lines += [f"Calls: SHA-256 {report['calls_sha256']}. Check: `om-proxy eval verify RUN`.", ""]
    return "\n".join(lines)


def _render_systems(systems: Mapping[str, Row]) -> Iterator[str]:
    titles = "right", "95 %", "by conversation", "F1", "tokens", "dollars", "dollars a right answer"
    yield f"| system | {' | '.join(titles)} |"
    yield "|---" * (len(titles) + 1) + "|"
    for name, row in systems.items():
        asked = row["asked"]
        cells = (
            name,
            f"{row['right']} of {asked}, {row['accuracy']:.1%}",
            _render_interval(row["interval"]),
            _render_interval(row["interval_by_case"]),
            f"{row['f1']:.3f}" if "f1" in row else "–",
            f"{(row['input_tokens'] + row['output_tokens']) / asked:.0f}",
            _render_dollars(None if row["dollars"] is None else row["dollars"] / asked),
            _render_dollars(row["dollars_a_right_answer"]),
        )
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield "Tokens and dollars are those of a question."
    yield ""


def _render_kinds(systems: Mapping[str, Row]) -> Iterator[str]:
    yield f"| kind | {' | '.join(systems)} |"
    yield "|---" * (len(systems) + 1) + "|"
    for kind in sorted({kind for row in systems.values() for kind in row["kinds"]}):
        shares = (_render_share(row["kinds"][kind]) for row in systems.values())
        yield f"| {kind} | {' | '.join(shares)} |"
    yield ""


def _render_differences(differences: Sequence[Row]) -> Iterator[str]:
    for row in differences:
        first, second = row["systems"]
        verdict = f"{row['better']} is better" if row["better"] else "no significant difference"
        yield (
            f"- {first} against {second}: only {first} right {row['only_first']}, only {second} "
            f"{row['only_second']}, p = {row['p']:.3f} (McNemar, exact): {verdict}."
        )
    yield ""


def _render_evidence(evidence: Row) -> Iterator[str]:
    yield (
        f"Evidence: {evidence['reached']} of {evidence['sessions']} sessions that hold an answer "
        "reached the prompt of om, raw or noted under their day."
    )
    for key, words in (("all_reached", "all of them did"), ("some_missing", "one did not")):
        if share := evidence[key]:
            yield f"Where {words}, om was right in {_render_share(share)}."


def _render_refused(calls: Mapping[str, int]) -> str:
    kinds = ", ".join(f"{count} to {work}" for work, count in calls.items())
    return kinds and f" Refused, because their answers were not usable: {kinds}."


def _render_share(share: Row) -> str:
    return f"{share['right']} of {share['asked']}, {_render_interval(share['interval'])}"


def _render_interval(bounds: Sequence[float]) -> str:
    return f"{bounds[0]:.0%}–{bounds[1]:.0%}"


def _render_dollars(dollars: float | None) -> str:
    return "price not known" if dollars is None else f"${dollars:.4f}"
