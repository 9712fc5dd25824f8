"""Measure the words a reader of the code meets, beside those of seven projects to learn from.

Run by `scripts/words`. The measures are pure functions of texts. Nothing fails on a figure: it
shows where to look. The other projects' figures are recorded in `words.json`. To record them anew,
put their wheels into a folder with `pip download --no-deps --dest FOLDER h11 httpcore stamina
mitmproxy starlette procrastinate datasette` and run `scripts/words --record FOLDER`.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import sys
import textwrap
import zipfile
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
RECORD_FILE = Path(__file__).with_name("words.json")
PAGE = ROOT / "CONTRIBUTING.md"
MAX_LINE_CHARS = 100
BEGIN_MARK, END_MARK = "<!-- scripts/words --write -->", "<!-- end -->"
SKIPPED_PARTS = ("/test/", "/tests/", "/_sync/", "/contrib/")  # _sync is generated, contrib bundled
IMPERATIVES_IN_ED = "embed exceed feed need proceed seed speed succeed"
# left out where the same form is an imperative, or another word: cut, found, left, put, read, set
IRREGULAR_PARTICIPLES = """
    begun born borne bound broken brought built caught chosen done driven fallen forgotten frozen
    given gone grown heard held hidden kept known laid led lost made meant met seen sent shown sold
    sought spent spoken stolen stood sworn taken taught thought thrown told torn understood won
    written"""
PREPOSITIONS = """
    about above across after against along among around as at before behind below beside between
    beyond by down during for from in inside into of off on onto out over per since through to
    toward towards under until up upon with within without"""


@dataclass(frozen=True, slots=True)
class Word:
    """A name, a docstring's first word or a line, and where it stands: `path:line`."""

    place: str
    text: str


@dataclass(frozen=True, slots=True)
class Figures:
    """A project's figures. Shares are percentages; None where there is nothing to take a share
    of."""

    bare_constants: int | None
    participle_functions: int | None
    unshared_functions: int | None
    long_lines: int | None
    preposition_docstrings: int | None
    most_files: int
    readme_words: int


SHARES = {
    "bare_constants": "constants of one word",
    "participle_functions": "functions named by a participle",
    "unshared_functions": "functions whose first word no other project uses",
    "long_lines": f"lines over {MAX_LINE_CHARS} characters",
    "preposition_docstrings": "docstrings that begin with a preposition",
}
TITLES = {
    **{field: f"{title}, %" for field, title in SHARES.items()},
    "most_files": "most files in a folder",
    "readme_words": "README, words",
}


# ── what is measured ────────────────────────────────────────────────────────────────────────────


def constants(path: str, text: str) -> Iterator[Word]:
    """The upper-case names that a module assigns at its top, without leading underscores."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            if isinstance(target, ast.Name) and re.fullmatch("_*[A-Z][A-Z0-9_]+", target.id):
                yield Word(f"{path}:{node.lineno}", target.id.strip("_"))


def functions(path: str, text: str) -> Iterator[Word]:
    """The names of functions and methods, without leading underscores; no `__dunder__`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:2] != "__":
            yield Word(f"{path}:{node.lineno}", node.name.strip("_"))


def docstrings(path: str, text: str) -> Iterator[Word]:
    """The first lines of all docstrings."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Module):
            lines = (ast.get_docstring(node) or "").strip().splitlines()
            if lines:
                yield Word(f"{path}:{node.body[0].lineno}", lines[0])


def lines(path: str, text: str) -> Iterator[Word]:
    """The lines that are not blank."""
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip():
            yield Word(f"{path}:{number}", line)


def first_word(name: str) -> str:
    return name.split("_", maxsplit=1)[0].lower()


def is_participle(word: str) -> bool:
    regular = word.endswith("ed") and word not in IMPERATIVES_IN_ED.split()
    return regular or word in IRREGULAR_PARTICIPLES.split()


def begins_with_preposition(sentence: str) -> bool:
    return sentence.split(maxsplit=1)[0].lower() in PREPOSITIONS.split()


def find_words(
    files: Mapping[str, str], shared: Collection[str]
) -> dict[str, tuple[list[Word], int]]:
    """Field of `Figures` → the words that count, and of how many. *files*: path → text of a module;
    *shared*: the first words of the functions of all other projects."""
    measures: dict[str, tuple[Callable[[str, str], Iterator[Word]], Callable[[str], bool]]] = {
        "bare_constants": (constants, lambda name: "_" not in name),
        "participle_functions": (functions, lambda name: is_participle(first_word(name))),
        "unshared_functions": (functions, lambda name: first_word(name) not in shared),
        "long_lines": (lines, lambda line: len(line) > MAX_LINE_CHARS),
        "preposition_docstrings": (docstrings, begins_with_preposition),
    }
    found = {}
    for field, (collect, counts) in measures.items():
        words = [word for path, text in sorted(files.items()) for word in collect(path, text)]
        found[field] = [word for word in words if counts(word.text)], len(words)
    return found


def measure(files: Mapping[str, str], readme: str, shared: Collection[str]) -> Figures:
    """One project's figures; see `find_words` for *files* and *shared*."""
    shares = {
        field: round(100 * len(words) / total) if total else None
        for field, (words, total) in find_words(files, shared).items()
    }
    folders = Counter(path.rpartition("/")[0] for path in files)
    return Figures(**shares, most_files=max(folders.values()), readme_words=len(readme.split()))


# ── what is shown ───────────────────────────────────────────────────────────────────────────────


def render_table(projects: Mapping[str, Figures]) -> str:
    """A Markdown table: a row a figure, a column a project."""
    rows = [["", *projects], ["---", *["---:"] * len(projects)]]
    for field, title in TITLES.items():
        values = [getattr(figures, field) for figures in projects.values()]
        rows.append([title, *("–" if value is None else f"{value:,}" for value in values)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def render_list(files: Mapping[str, str], shared: Collection[str]) -> str:
    """Every word that counts, under its measure, with its place."""
    parts = []
    for field, (words, total) in find_words(files, shared).items():
        parts.append(f"── {SHARES[field]}: {len(words)} of {total}")
        parts += [f"{word.place}  {word.text.strip()}" for word in words]
    return "\n".join(parts) + "\n"


def replace_table(page: str, table: str) -> str:
    """The page with this table between its two marks. ValueError where they are missing."""
    before, begin, rest = page.partition(BEGIN_MARK)
    _, end, after = rest.partition(END_MARK)
    if not (begin and end):
        raise ValueError(f"the page has no {BEGIN_MARK} … {END_MARK}")
    return f"{before}{begin}\n\n{table}\n{end}{after}"


# ── files ───────────────────────────────────────────────────────────────────────────────────────


def read_folder(folder: Path) -> dict[str, str]:
    """Path → text of the modules in a folder."""
    return {str(file): file.read_text(encoding="utf-8") for file in sorted(folder.rglob("*.py"))}


def read_wheel(wheel: Path) -> tuple[dict[str, str], str]:
    """Path → text of a wheel's modules, and its README without the changes appended to it."""
    with zipfile.ZipFile(wheel) as archive:
        texts = {
            name: archive.read(name).decode()
            for name in archive.namelist()
            if name.endswith((".py", ".dist-info/METADATA"))
        }
    metadata = next(texts.pop(name) for name in list(texts) if name.endswith("METADATA"))
    readme = re.split("(?m)^#+ (?:Changelog|Release Information)$", metadata.partition("\n\n")[2])
    modules = {
        path: text
        for path, text in texts.items()
        if not any(part in f"/{path}" for part in SKIPPED_PARTS)
    }
    return modules, readme[0]


def record_projects(wheels: Collection[Path], today: str) -> dict[str, Any]:
    """What `words.json` holds: the date, the figures of each wheel, and all first words of
    functions."""
    projects = {" ".join(wheel.name.split("-")[:2]): read_wheel(wheel) for wheel in wheels}
    first_words = {
        name: {first_word(word.text) for file in files.items() for word in functions(*file)}
        for name, (files, _) in projects.items()
    }
    figures = {}
    for name, (files, readme) in projects.items():
        others = (words for other, words in first_words.items() if other != name)
        figures[name] = asdict(measure(files, readme, set().union(*others)))
    union = " ".join(sorted(set().union(*first_words.values())))
    return {"measured": today, "projects": figures, "first_words": textwrap.wrap(union, 96)}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/words", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    modes = parser.add_mutually_exclusive_group()
    modes.add_argument("--list", type=Path, metavar="FOLDER", help="list a folder's words")
    modes.add_argument("--write", action="store_true", help=f"write the table into {PAGE.name}")
    modes.add_argument("--record", type=Path, metavar="WHEELS", help="measure the other projects")
    options = parser.parse_args()
    if options.record:
        wheels = sorted(options.record.glob("*.whl"))
        record = record_projects(wheels, datetime.now(UTC).date().isoformat())
        RECORD_FILE.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    record = json.loads(RECORD_FILE.read_text(encoding="utf-8"))
    shared = set(" ".join(record["first_words"]).split())
    if options.list:
        sys.stdout.write(render_list(read_folder(options.list), shared))
        return
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    projects = {"om-proxy": measure(read_folder(ROOT / "proxy"), readme, shared)}
    projects |= {name: Figures(**figures) for name, figures in record["projects"].items()}
    table = render_table(projects)
    if options.write:
        PAGE.write_text(replace_table(PAGE.read_text(encoding="utf-8"), table), encoding="utf-8")
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
