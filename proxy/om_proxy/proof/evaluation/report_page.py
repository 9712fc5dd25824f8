"""Write a report as a Markdown page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]


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
