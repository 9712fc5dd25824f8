"""The contract in docs/contributing: each citation and link resolves to a heading, and the figures
in its tables are the code's."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from om_proxy.agents.reflector import REQUESTED_SHARES
from om_proxy.memory.lifecycle import decisions
from om_proxy.memory.transcript import (
    alignment,
    lone_messages,
    matching,
    placement,
    reconcile,
    verdict,
)
from om_proxy.settings.config import Settings
from om_proxy.settings.config.report import NOT_IN_EFFECT
from om_proxy.settings.identity.identity_rules import CLIENT_SESSIONS
from tests.test_docs import ROOT, committed, named

SPEC = ROOT / "docs" / "contributing"
RECORDS = {"speed.md", "recall-quality.md"}  # of measuring, with wide tables
PAGES = sorted(page for page in SPEC.glob("*.md") if page.name not in RECORDS)
MAX_LINE_CHARACTERS = 100
CITATION = re.compile(r"docs/contributing/[\w.-]+\.md(?:#[\w-]+)?")
PAGE = re.compile(r"(?<![\w/.*-])[\w./-]*[a-z]\.md\b")
POINT = re.compile(r"\b(?:inspection,? [A-Z]\d+|promise \d|issue [A-Z] \d)")
LINK = re.compile(r"\]\(([^)\s]+)\)")


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def slug(heading: str) -> str:
    """The anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(page: Path) -> Counter[str]:
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.MULTILINE | re.DOTALL)
    return Counter(
        slug(heading) for heading in re.findall(r"^#{1,6} +(.+?)\s*$", text, flags=re.MULTILINE)
    )


def resolves(target: str, folder: Path) -> bool:
    """Whether `PATH#anchor` is a file of the project, and the anchor one of its headings."""
    path, _, anchor = target.partition("#")
    file = (folder / path).resolve()
    return file.exists() and (not anchor or anchor in anchors(file))


def texts() -> Iterator[tuple[Path, str]]:
    for file in committed():
        yield file, file.read_text(encoding="utf-8", errors="replace")


def test_every_citation_resolves() -> None:
    broken = [
        f"{named(file)}: {cited}"
        for file, text in texts()
        for cited in CITATION.findall(text)
        if not resolves(cited, ROOT)
    ]
    assert broken == []


def written_beside_code(source: str) -> Iterator[str]:
    """The comments and docstrings of a module."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node) or ""


def elsewhere(text: str) -> list[str]:
    """What a comment or docstring cites that is not in the repository: a page, or a point of
    another text."""
    pages = [page for page in PAGE.findall(text) if not (ROOT / page).is_file()]
    return pages + POINT.findall(text)


def test_no_module_cites_what_is_not_here() -> None:
    """A reader can open whatever a comment names."""
    found = [
        f"{named(file)}: {cited}"
        for file, text in texts()
        if file.suffix == ".py" and elsewhere(text)  # reading it as code takes milliseconds
        for told in written_beside_code(text)
        for cited in elsewhere(told)
    ]
    assert found == []


@pytest.mark.parametrize(
    "text", ["(behaviour" + ".md 5)", "see ../notes/quality" + ".md", "(inspection" + " R13)"]
)
def test_a_citation_of_another_text_is_found(text: str) -> None:
    assert len(elsewhere(text)) == 1


@pytest.mark.parametrize("broken", ["http.md#no-heading", "gone.md"])
def test_a_broken_citation_is_found(broken: str) -> None:
    cited = "docs/contributing/" + broken  # put together here, so that this file does not cite it
    assert CITATION.findall(f"(see {cited}).") == [cited]
    assert not resolves(cited, ROOT)


def test_every_link_of_a_page_resolves() -> None:
    """Links between the project's own files, from any of its Markdown pages."""
    broken = [
        f"{named(file)}: {link}"
        for file, text in texts()
        if file.suffix == ".md" and file.name != "CHANGELOG.md"
        for link in LINK.findall(text)
        if "://" not in link
        and not resolves(link if not link.startswith("#") else file.name + link, file.parent)
    ]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_can_be_cited(page: Path) -> None:
    """No two headings share an anchor, each is short, and no line is too long to read."""
    assert [anchor for anchor, times in anchors(page).items() if times > 1] == []
    assert [anchor for anchor in anchors(page) if len(anchor) > 30] == []
    assert [line for line in read(page).split("\n") if len(line) > MAX_LINE_CHARACTERS] == []


def test_the_index_names_every_page() -> None:
    assert {page.name for page in SPEC.glob("*.md")} - {"README.md"} <= set(
        re.findall(r"\(([\w-]+\.md)\)", read(SPEC / "README.md"))
    )


# ── figures ───────────────────────────────────────────────────────────────────────────────────────


def rows(page: str, heading: str) -> list[list[str]]:
    """The cells of the first table below a heading, without its own head."""
    _, _, below = read(SPEC / page).partition(f" {heading}\n")
    lines = re.search(r"(?:^\|.*\n)+", below, flags=re.MULTILINE)
    assert lines is not None
    return [
        [cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()[2:]
    ]


def figure(text: str) -> float:
    return float(re.sub(r"[^\d.−]", "", text).replace("−", "-"))


def test_thresholds() -> None:
    settings = Settings()
    limits = settings.effective(None).limits
    assert [figure(default) for *_, default in rows("config.md", "Thresholds")] == [
        limits.observe_from_tokens,
        limits.interval_tokens,
        limits.keep_tokens,
        limits.block_from_tokens,
        limits.block_timeout_s,
        limits.log_excerpt_tokens,
        limits.reflect_from_tokens,
        limits.reflect_ahead_from_tokens,
        limits.reflect_from_tokens * decisions.LATER_REFLECTION_SHARE,
        limits.reflect_block_from_tokens,
        settings.background.call_timeout,
        settings.retention.generations,
    ]


def test_weights_of_the_alignment() -> None:
    assert [figure(weight) * 100 for _, weight in rows("reconcile.md", "Alignment")] == [
        matching.SAME_BY_ID_SCORE,
        matching.ALTERED_BY_ID_SCORE,
        matching.UNIQUE_TEXT_SCORE,
        matching.REPEATED_TEXT_SCORE,
        matching.NEW_ASSISTANT_TEXT_SCORE,
        matching.NEW_USER_TEXT_SCORE,
        alignment.ANCHORED_RUN_SCORE,
        alignment.SKIP_SENT_USER_SCORE,
        alignment.SKIP_SENT_SCORE,
        alignment.SKIP_STORED_USER_SCORE,
        alignment.SKIP_STORED_SCORE,
        alignment.SKIP_TOOL_STEP_SCORE,
        alignment.SKIP_SUPERSEDED_USER_SCORE,
        alignment.SUPERSEDE_USER_SCORE,
    ]


def test_guidance_of_the_reflector() -> None:
    text = " ".join(read(SPEC / "behaviour.md").split())
    *first, last = map(str, REQUESTED_SHARES.values())
    assert f"{', '.join(first)} or {last} of" in text


def told_cases() -> set[str]:
    """The words that reconciling may return as `case`."""
    found: set[str] = set()
    for module in (lone_messages, placement, reconcile, verdict):
        for node in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(node, ast.FunctionDef) and node.name in (
                "_name_case",
                "_find_irregular_case",
            ):
                returned = [
                    part.value
                    for part in ast.walk(node)
                    if isinstance(part, ast.Return) and part.value
                ]
                found |= {word for value in returned for word in words_of(value)}
            elif isinstance(node, ast.keyword) and node.arg == "case":
                found |= set(words_of(node.value))
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "Verdict.at_end":
                found |= set(words_of(node.args[1]))
    return found


def words_of(node: ast.expr) -> Iterator[str]:
    """The texts that an expression may come to."""
    match node:
        case ast.Constant(value=str(word)):
            yield word
        case ast.IfExp(body=first, orelse=second):
            yield from (*words_of(first), *words_of(second))
        case ast.BoolOp(values=parts) | ast.Dict(values=parts):
            yield from (word for part in parts for word in words_of(part))
        case ast.Call(func=ast.Attribute(value=table), args=[*_, default]):
            yield from (*words_of(table), *words_of(default))


def test_cases() -> None:
    """The table names each case that reconciling tells, and no other."""
    assert {case.strip("`") for _, case, _ in rows("reconcile.md", "Cases")} == told_cases()


def test_cells() -> None:
    """The kinds of cells are those that the module's head names."""
    kinds = re.findall(r"^    (\w+) +\S", verdict.__doc__ or "", flags=re.MULTILINE)
    assert [kind.strip("`") for kind, _ in rows("reconcile.md", "Cells")] == kinds


def test_sessions() -> None:
    """The table names each header by which a client tells its session."""
    told = {name: " ".join(cells) for name, *cells in rows("behaviour.md", "Sessions")}
    assert len(told) == len(CLIENT_SESSIONS)
    for cells, headers in zip(told.values(), CLIENT_SESSIONS.values(), strict=True):
        assert set(re.findall(r"`([\w-]+)`", cells)) == {*headers.ids, *headers.users}


def test_what_is_not_in_effect() -> None:
    """The page names the sections or keys of all that has no effect."""
    text = " ".join(read(SPEC / "config.md").split())
    for key in NOT_IN_EFFECT:
        section = next(part for part in ("retrieval", "retention", "telemetry", key) if part in key)
        assert f"`{section}`" in text, key
