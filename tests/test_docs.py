"""What the documents say is true: commands, settings, headers, reasons, the tree; and what no file
of the project may say."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from om_proxy.agents.models.price_list import find_price
from om_proxy.cli.entry import build_parser
from om_proxy.common.errors import OmError
from om_proxy.common.reasons import Reason, Status
from om_proxy.edge.exchange import Exchange, build_receipt
from om_proxy.edge.headers import OWN_HEADER_PREFIX
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.edge.vocabulary import ERROR_CODE_ROWS
from om_proxy.memory.model import Key
from om_proxy.memory.recall.offering import Offer
from om_proxy.memory.transcript.reconcile import Hints, History
from om_proxy.settings.config import (
    Settings,
    UpstreamSettings,
    list_warnings,
    parse,
    render_settings,
)
from om_proxy.settings.config.report import NOT_IN_EFFECT
from om_proxy.settings.config.watching import LIVE_SETTINGS, RESTART_PREFIXES
from om_proxy.settings.identity.callers import Caller, identify
from om_proxy.settings.identity.identity_rules import IdentityRules
from tests.docs import reference
from tests.memory.clients import build_thread, chat, raw

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]  # what users read
PAGES = "\n".join(page.read_text(encoding="utf-8") for page in DOCUMENTS)
LIMITS_PAGE = (DOCS / "concepts" / "limits.md").read_text(encoding="utf-8")
CONFIGURATION_PAGE = (DOCS / "guides" / "configuration.md").read_text(encoding="utf-8")
ARCHITECTURE = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
CONFIG = (ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8")
MARK = "[not in effect yet]"
# says every word for the pages: what is looked for elsewhere is not proven by it
LISTS = "proxy/om_proxy/edge/vocabulary.py"
METRICS_TABLE = "proxy/om_proxy/observability/figures/metrics.py"


@cache
def committed() -> tuple[Path, ...]:
    """Every file that belongs to the project; without git, those in its folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, check=False, text=True,
    )  # fmt: skip
    if listed.returncode == 0:
        files = [ROOT / name for name in listed.stdout.splitlines()]
    else:
        files = [
            file
            for folder in ("proxy", "tests", "config", "examples", "scripts")
            for file in (ROOT / folder).rglob("*")
        ]
        files += [file for file in ROOT.iterdir() if file.suffix in {".md", ".toml", ".lock"}]
    return tuple(file for file in files if file.is_file() and "__pycache__" not in file.parts)


def modules() -> list[Path]:
    return [file for file in committed() if file.suffix == ".py"]


def named(file: Path) -> str:
    return str(file.relative_to(ROOT))


# ── documents ─────────────────────────────────────────────────────────────────────────────────────


def commands() -> set[str]:
    """Return the names of all commands; those of a family also without its second word."""
    return set(reference.list_parsers(build_parser()))


def bench_parts() -> set[str]:
    """Return the first words that `scripts/bench` understands."""
    script = (ROOT / "scripts" / "bench").read_text(encoding="utf-8")
    cases = re.findall(r"^    ([a-z| -]+)\)$", script, flags=re.M)
    return {
        *re.findall(r'^if \[ "\$\{1:-\}" = ([a-z-]+) \]', script, flags=re.M),
        *(word.strip() for case in cases for word in case.split("|")),
    }


OTHERS = [
    ".github/ISSUE_TEMPLATE/bug.yml",
    ".github/PULL_REQUEST_TEMPLATE.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "config/om-proxy.yaml",
    "examples/compose.yaml",
    "Dockerfile",
]


@pytest.mark.parametrize("file", [*DOCUMENTS, *(ROOT / name for name in OTHERS)], ids=named)
def test_commands_exist(file: Path) -> None:
    """Every `om-proxy …` and `scripts/…` a document names can be run."""
    text = file.read_text(encoding="utf-8")
    assert set(re.findall(r"om-proxy (?=[a-z])(serve|check|demo|[a-z]+(?=`))", text)) <= commands()
    in_families = re.findall(r"`om-proxy\s(notes|store)\s([a-z-]+)", text)
    assert set(map(" ".join, in_families)) <= commands()
    for script in re.findall(r"scripts/[\w-]+", text):
        assert (ROOT / script).is_file()
    assert set(re.findall(r"scripts/bench ([a-z][a-z-]*)", text)) <= bench_parts()


def test_every_command_is_told() -> None:
    """Nobody has to look into the code for what there is; README names the two that set all up."""
    page = (reference.FOLDER / "cli.md").read_text(encoding="utf-8")
    told = set(re.findall(r"^### om-proxy (.+)$", page, flags=re.M))
    assert told | set(re.findall(r"^\*\*om-proxy (\w+)\*\*", page, flags=re.M)) == commands()
    assert "scripts/demo" in README
    assert "scripts/test" in README


def test_no_template_is_left_in_the_commands() -> None:
    """A page says the default itself, as `--help` does."""
    page = reference.pages()["cli.md"]
    assert "%(" not in page
    assert "(default: recent)" in page


def test_readme_is_short() -> None:
    """It wins users; everything else stands in docs/."""
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1200


@pytest.mark.parametrize("document", [*ROOT.glob("*.md"), *DOCUMENTS[1:]], ids=named)
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document is a file, and its anchor a heading there."""
    for link in re.findall(r"\]\((?!https?://)([^)]+)\)", document.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def anchors(page: Path) -> set[str]:
    """The headings of a page as links name them, and anchors written out."""
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.+)$", text, flags=re.M)
    written = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    return written | {
        re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings
    }


def test_every_page_is_linked() -> None:
    """A reader finds each page of docs/ from another one."""
    linked = {
        (page.parent / link).resolve()
        for page in DOCUMENTS
        for link in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text(encoding="utf-8"))
    }
    assert [named(page) for page in DOCUMENTS[1:] if page.resolve() not in linked] == []


def test_variables_are_settings() -> None:
    """Each `OM_PROXY__…` example sets what it names."""
    examples = dict(re.findall(r"\b(OM_PROXY__\w+)=(\w+)", PAGES))
    assert examples
    for name, value in examples.items():
        key = ".".join(name.lower().split("__")[1:])
        assert f"{key} = {value}  (env {name})" in render_settings(parse("", env={name: value}))


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_examples_of_settings_are_accepted(document: Path) -> None:
    """Each block of settings on a page is one that a server starts with."""
    blocks = re.findall(r"^```yaml\n(.*?)^```", document.read_text("utf-8"), flags=re.M | re.S)
    for block in blocks:
        keys = yaml.safe_load(block)
        if isinstance(keys, dict) and set(keys) <= set(Settings.model_fields):
            names = re.findall(r"\$\{(\w+)\}", block)
            parse(
                block, env={name: f"a-secret-of-more-than-32-characters-{name}" for name in names}
            )


def test_costs_of_memory_models_are_list_prices() -> None:
    """The page's table is the demo's tokens at the price list's prices."""
    page = (DOCS / "concepts" / "memory-model-cost.md").read_text(encoding="utf-8")
    words = " ".join(page.split())
    found = re.search(r"made ([\d,]+) tokens .+?, (\d+) % of them .+? ([\d,]+) of output", words)
    assert found
    taken_in, cached_percent, given_out = (int(text.replace(",", "")) for text in found.groups())
    cached = taken_in * cached_percent / 100
    rows = re.findall(r"^\| ([\w.-]+) \| \$(\S+) \|$", page, flags=re.M)
    assert len(rows) > 5
    for model, dollars in rows:
        price = find_price(model)
        assert price
        cost = (taken_in - cached) * price.input + cached * price.cached_input
        assert f"{cost + given_out * price.output:.2f}" == dollars, model


def test_settings_named_in_passing_exist() -> None:
    """A dotted key in a sentence is a key of the file, also where `memory.` is left out."""
    known = keys_of(Settings().model_dump())
    sections = "|".join(Settings.model_fields)
    found = set(re.findall(rf"`((?:{sections})\.[a-z_.]+)[`:]", PAGES))
    assert {"context.tail_limit", "storage.url", "side_requests.models", "memory.mode"} <= found
    known |= {f"upstream.{name}" for name in UpstreamSettings.model_fields}
    below_memory = set(re.findall(r"`((?:observation|reflection|retrieval)\.[a-z_.]+)[`:]", PAGES))
    assert "observation.thread_title" in below_memory
    found |= {f"memory.{key}" for key in below_memory}
    # they begin like a setting
    events_of_log = {
        "memory.uncommitted",
        "memory.bypassed",
        "memory.forgotten_meanwhile",
        "memory.retired",
        "memory.log_retired",
        "memory.put_aside",
        "memory.unknown_header",
        "retention.clock_jumped",
    }
    assert found - events_of_log <= known


def keys_of(settings: dict[str, Any], above: str = "") -> set[str]:
    found = set()
    for name, value in settings.items():
        found.add(f"{above}{name}")
        found |= keys_of(value, f"{above}{name}.") if isinstance(value, dict) else set()
    return found


def table(first: str) -> dict[str, str]:
    """A table of docs/reference: first column → all other text of the row, a row for each name in
    the first column."""
    pages = "\n".join(reference.pages().values())
    (text,) = re.findall(rf"^\| {first} \|.*\n\|[-| ]+\n((?:\|.*\n)+)", pages, flags=re.M)
    rows = [row.strip("|").split("|", 1) for row in text.splitlines()]
    return {name: rest for names, rest in rows for name in re.findall(r"`([^`]+)`", names)}


@pytest.mark.parametrize("name", reference.pages())
def test_reference_is_up_to_date(name: str) -> None:
    """Each page is what `scripts/reference` makes of the code."""
    assert (reference.FOLDER / name).read_text(encoding="utf-8") == reference.pages()[name]


def test_every_reference_page_is_made() -> None:
    """Every page carries the mark of the script."""
    pages = {page.name: page.read_text("utf-8") for page in reference.FOLDER.iterdir()}
    assert set(pages) == set(reference.pages())
    assert all(reference.MADE_BY in text for text in pages.values())


def test_request_headers() -> None:
    """The table names our request headers and the shipped aliases, with all their values."""
    rows = table("request")
    modules = (ROOT / "proxy/om_proxy/settings/identity").glob("*.py")
    code = "".join(ast.unparse(ast.parse(file.read_text(encoding="utf-8"))) for file in modules)
    assert {name.lower() for name in rows} == set(re.findall(r"x-om-[a-z]+", code))
    aliases = re.findall(r"`(x-[a-z-]+)`", (rows["X-OM-Thread"] + rows["X-OM-Resource"]).lower())
    rules = IdentityRules()
    assert ["x-om-thread", *aliases[:2]] == list(rules.thread_headers)
    assert ["x-om-resource", *aliases[2:]] == list(rules.resource_headers)
    for header in ("X-OM-Mode", "X-OM-History"):
        for value in re.findall(r"`(\w+)`", rows[header]):
            identify([(header.lower().encode(), value.encode())], rules, b"secret")


def test_trouble_is_told_by_symptom() -> None:
    """Each reason and each error code has its line in the guide, and the guide names no other. A
    line has a cause and something to do."""
    guide = (DOCS / "guides" / "troubleshooting.md").read_text(encoding="utf-8")
    first_cells = "\n".join(re.findall(r"^\| ([^|]+) \|", guide, flags=re.M))
    codes = {name for row in ERROR_CODE_ROWS for name in row.names}
    words = set(re.findall(r"`([a-z_]+(?:-[a-z]+)*)`", first_cells))
    assert words == {reason.value for reason in Reason} | codes
    rows = re.findall(r"^\|(.+)\|$", guide, flags=re.M)
    assert len(rows) > 50
    assert all(len(row.split(" | ")) == 3 for row in rows if "---" not in row)


@pytest.mark.parametrize(("header", "values"), [("X-OM-Mode", 4), ("X-OM-History", 4)])
def test_every_value_is_told(header: str, values: int) -> None:
    """None is left out."""
    assert len(re.findall(r"`(\w+)`", table("request")[header])) == values


def test_response_headers() -> None:
    """The table names exactly the headers of a receipt."""
    upstream = UpstreamSettings(base_url="http://h")
    exchange = Exchange(
        {}, b"", None, Caller(Key("t", "r", "t"), "t"), upstream, 0.0, reason=Reason.STORAGE
    )
    exchange.recall = RecallRecord(Offer.OFFERED, "recall", is_whole=True)
    fixed = {name.decode() for name, _ in build_receipt(exchange)}
    source = ast.parse(
        (ROOT / "proxy/om_proxy/engine/turns/prompt_builder.py").read_text(encoding="utf-8")
    )
    counted = {
        f"x-om-{key.value}"
        for node in ast.walk(source)
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Dict)
        for key in node.value.keys
        if isinstance(key, ast.Constant)
    }
    assert len(counted) == 6
    assert all(name.startswith(OWN_HEADER_PREFIX.decode()) for name in fixed)
    # the one that comes only where it is ready in time (tests/e2e/test_shadow.py)
    assert set(table("response")) == fixed | counted | {"x-om-tokens-shadow"}


def test_reasons() -> None:
    """The table of reasons is the closed list."""
    assert set(table("reason")) == set(Reason)


def test_picture_is_plain() -> None:
    """README's picture is one file of text: it loads nothing and runs nothing."""
    picture = (DOCS / "demo.svg").read_text(encoding="utf-8")
    assert "om-proxy demo" in picture.replace("&#160;", " ")
    assert len(picture) < 40_000
    assert not re.search(r"<script|<image|url\((?!#)|href", picture)


# Raised where no client can see them: the tree's root, and what a memory model did.
UNSEEN = {
    "om_internal",
    "om_model",
    "om_model_busy",
    "om_model_timeout",
    "om_prompt_too_long",
    "om_unusable",
    "om_broken_answer",
    "om_cut_off",
    "om_outdated",
    "om_stopped",
    "om_oversized",
}
NO_CODES = {
    "om_error",
    "om_recall",
    "om_rules",
}  # what all of them have as `type`, a name of the tool, and a name within the settings' own checks


def test_errors() -> None:
    """The table of errors is the closed list, each with the status of its class."""
    files = [
        file
        for file in modules()
        if named(file).startswith("proxy/") and named(file) not in (LISTS, METRICS_TABLE)
    ]
    texts = [file.read_text(encoding="utf-8") for file in files]
    codes = {code for text in texts for code in re.findall(r'"(om_[a-z_]+)"', text)}
    rows = table("code")
    assert set(rows) == codes - UNSEEN - NO_CODES
    for kind in raised_classes():
        if kind.code in rows:
            assert str(kind.status) in re.findall(r"\d{3}", rows[kind.code].split("|")[0]), kind


def raised_classes(kind: type[OmError] = OmError) -> Iterator[type[OmError]]:
    yield kind
    for one in kind.__subclasses__():
        yield from raised_classes(one)


def test_what_needs_a_restart() -> None:
    """Both pages and the file name every setting that is read at the start only, and every one
    below those that is read at each request, and no other."""
    spec = (DOCS / "contributing" / "config.md").read_text(encoding="utf-8")
    for text in (CONFIGURATION_PAGE, CONFIG, spec):
        words = " ".join(re.sub(r"[#`]", "", text).split())
        ((at_start, live),) = re.findall(
            r"\. (\w+(?:[^.]|\.\w)*) need a restart, and the log says so\. Not so (.*?)\. ", words
        )
        assert split_names(at_start) == {key.rstrip(".") for key in RESTART_PREFIXES}
        assert split_names(live) == set(LIVE_SETTINGS)


def split_names(text: str) -> set[str]:
    return set(re.split(r", | and ", text.lower()))


def test_statuses() -> None:
    """The page names every status, and each reason with some of them."""
    told_with = {
        status
        for rest in table("reason").values()
        for status in re.findall(r"`(\w+)`", rest.split("|")[0])
    }
    assert set(re.findall(r"`(\w+)`", table("response")["x-om-status"])) == set(Status)
    assert told_with == set(Status)


def test_figures_are_the_defaults() -> None:
    """The thresholds that README and the page on how it works speak of."""
    limits = Settings().effective(None).limits
    for figure in (
        limits.observe_from_tokens,
        limits.interval_tokens,
        limits.reflect_ahead_from_tokens,
        limits.reflect_from_tokens,
    ):
        for text in (README, (DOCS / "concepts" / "how-it-works.md").read_text(encoding="utf-8")):
            assert f"{figure:,}".replace(",", " ") in " ".join(text.split())


def test_readme_tells_the_ranges_of_what_it_costs() -> None:
    """README has the models of the page's table, and what they save by its memory models."""
    page = (DOCS / "concepts" / "what-it-costs.md").read_text(encoding="utf-8")
    (table_text,) = re.findall(r"^\| \| notes(?:.+\n)+", page, re.MULTILINE)
    head, _, *lines = table_text.splitlines()
    names = [cell.strip() for cell in head.split("|")[2:-1]]
    models, saved = [], dict[str, list[int]]()
    for line in lines:
        _, model, *cells, _ = (cell.strip() for cell in line.split("|"))
        models.append(model)
        for name, cell in zip(names, cells, strict=True):
            setting = name.split("`")[1]
            saved.setdefault(setting, []).append(100 - int(cell.removesuffix(" %")))
    ranges = {setting: (min(shares), max(shares)) for setting, shares in saved.items()}
    told = " ".join(README.split())
    assert f"with {', '.join(models[:-1])} or {models[-1]} costs " in told
    assert (
        "{} to {} % less if a small model makes the notes (`auto`".format(*ranges["auto"]) in told
    )
    assert "{} to {} % if its own does (`inherit`)".format(*ranges["inherit"]) in told


# The limits of reconciling, as docs/concepts/limits.md tells them:
# what was stored, what is sent, and what the transcript is without and with
# the header that settles it.
LIMITS: list[tuple[str, str, str, str, History, str]] = [
    ("An edit with nothing known before it", "u1 a1", "uX", "u1 a1 uX aR", "full", "uX aR"),
    ("An edit with nothing known before it", "u1 a1 u2 a2", "uX a9 u3", "u1 a1 u2 a2 uX a9 u3 aR", "full", "uX a9 u3 aR"),
    ("A fork whose reply only the client got", "u1 a1 u2 a2", "uE aE u3", "u1 a1 u2 a2 uE aE u3 aR", "full", "uE aE u3 aR"),
    ("A deleted exchange in the middle", "u1 a1 u2 a2 u3 a3", "u1 a1 u3 a3 u4", "u1 a1 u2 a2 u3 a3 u4 aR", "full", "u1 a1 u3 a3 u4 aR"),
    ("The same text twice in the first two turns", "uok a1", "uok", "uok aR", "new", "uok a1 uok aR"),
]  # fmt: skip


@pytest.mark.parametrize(("limit", "before", "sent", "guessed", "header", "settled"), LIMITS)
def test_limits(
    limit: str, before: str, sent: str, guessed: str, header: History, settled: str
) -> None:
    """Each limit is as told, and so is the header that settles it."""
    (told_of,) = re.findall(rf"^- \*\*{limit}.*\n(?:  .*\n)*", LIMITS_PAGE, flags=re.M)
    assert f"X-OM-History: {header}`" in told_of
    assert transcript(before, sent, "auto") == guessed
    assert transcript(before, sent, header) == settled


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        ("u1 cx rx a1 u2 cy ry", "u1 a1 u2 aL u3"),
        ("u1 cx rx a1 u2 cy ry a2 u3 a3", "u1 aA uE aF u4"),
    ],
    ids=[
        "a folding client whose reply was lost",
        "an altering and folding client on an old branch",
    ],
)
def test_full_is_what_was_sent(before: str, sent: str) -> None:
    """Of clients that fold and alter, `full` makes what they show the transcript."""
    assert transcript(before, sent, "full") == f"{sent} aR"


def test_a_fork_is_recognised_by_what_stands_before_it() -> None:
    """Also when its reply was lost to us."""
    assert transcript("u1 a1 u2 a2 u3 a3", "u1 a1 uE aE u4", "auto") == "u1 a1 uE aE u4 aR"


def transcript(before: str, sent: str, history: History) -> str:
    thread = build_thread(before)
    thread.turn(chat(sent), raw("assistant", "R"), Hints(history))
    return " ".join(f"{m.item.role[0]}{orjson.loads(m.item.raw)['content']}" for m in thread.live())


# ── the configuration file ────────────────────────────────────────────────────────────────────────


def leaves() -> dict[str, str]:
    """Each key of the file that holds a value → its comment, with the lines that continue it."""
    return {setting.key: setting.comment for setting in reference.settings() if setting.default}


def test_settings_page_has_every_setting() -> None:
    """A setting of the model that the file leaves out would be missing from the page, too."""
    known = keys_of(Settings().model_dump())
    listed = {setting.key for setting in reference.settings()}
    upstream = {key for key in listed if key.startswith("upstream.")}
    assert listed - upstream == known
    assert {key.removeprefix("upstream.") for key in upstream} == set(UpstreamSettings.model_fields)


def test_what_is_not_in_effect_is_marked() -> None:
    """The marks in the file, and what `check` warns of, are the same."""
    assert {key for key, comment in leaves().items() if MARK in comment} == set(NOT_IN_EFFECT)
    assert f"# {MARK}" in CONFIG, "the mark itself is explained"


def test_what_is_not_marked_is_read() -> None:
    """A setting that nothing in the program reads carries the mark."""
    settings = ROOT / "proxy/om_proxy/settings/config"
    sources = [
        file
        for file in modules()
        if "proxy" in file.parts and file.parent not in {settings, settings / "sections"}
    ]
    sources.remove(ROOT / LISTS)
    sources += [
        ROOT / "proxy/om_proxy/settings/config/effective.py",
        ROOT / "proxy/om_proxy/settings/config/snapshot.py",
        ROOT / "proxy/om_proxy/settings/config/sections/service.py",
    ]
    program = "\n".join(file.read_text(encoding="utf-8") for file in sources)
    unread = {key for key in leaves() if not is_read(key, program)}
    assert unread <= set(NOT_IN_EFFECT) | {"upstream"}


# Settings that the program reads in another way than as an attribute of their section.
READ_AS = {
    "upstream.api_key_header": "self.api_key_header",
    "retention.max_reflections": "apply_retention(self.retention, matching).max_reflections",
    "identity.thread_headers": "headers.thread_headers",
    "identity.resource_headers": "headers.resource_headers",
    "identity.sessions": "headers.sessions",
    "identity.scope_override": "headers.scope_override",
    "storage.prepared": "settings.prepared",
    "storage.timeout": "settings.timeout",
    "memory.observation.model": 'choose_model(levels, "observation")',
    "memory.observation.model_settings.temperature": "settings.temperature",
    "memory.observation.model_settings.extra_body": "settings.extra_body",
    "memory.observation.model_settings.reasoning_effort": "settings.reasoning_effort",
    "memory.reflection.model": 'choose_model(levels, "reflection")',
    "memory.reflection.model_settings.temperature": "settings.temperature",
    "memory.reflection.model_settings.extra_body": "settings.extra_body",
    "memory.reflection.model_settings.reasoning_effort": "settings.reasoning_effort",
    "memory.reflection.instruction": "config.instruction",
}


def is_read(key: str, program: str) -> bool:
    """Whether the program reads the setting as an attribute of its section, or as the table has
    it."""
    expression = READ_AS.get(key) or ".".join(key.split(".")[-2:])
    escaped = re.escape(expression)  # first, so that the search leaps from one to the next
    return bool(re.search(rf"{escaped}(?<!\w{escaped})(?!\w)", program))


def test_a_setting_that_nothing_reads_is_found() -> None:
    """A last word that other things have too proves nothing."""
    program = "logger.log(1); figures.metrics.add(1); settings.telemetry.log"
    assert is_read("telemetry.log", program)
    assert not is_read("telemetry.metrics", program)


# each key that storage and retention are set by → a test that shows what the page says of it
SHOWN_BY = {
    "storage.url": ("e2e/test_postgres.py", "test_a_command_line_that_cannot_start"),
    "storage.required": ("cli/commands/test_serve.py", "test_serve_without_a_usable_store"),
    "storage.prefix": ("storage/redis/test_pool.py", "test_two_prefixes_share_nothing"),
    "storage.connections": (
        "storage/postgres/test_pool.py",
        "test_a_pool_without_a_connection_left",
    ),
    "storage.prepared": (
        "storage/postgres/test_store_behind_pooler.py",
        "TestPostgresBehindPooler",
    ),
    "storage.timeout": ("storage/postgres/test_pool.py", "test_a_statement_that_takes_too_long"),
    "storage.on_down": ("e2e/test_missed_turns.py", "test_refused_where_settings_ask_for_it"),
    "storage.durable": (
        "storage/postgres/test_store_promise.py",
        "test_a_power_cut_may_lose_the_turns_of_the_last_second",
    ),
    "storage.search": ("app/test_look_ups.py", "test_a_search_right_after_an_import"),
    "storage.encryption_key": (
        "storage/sqlite/test_store_sealed_texts.py",
        "test_another_key_or_none_is_refused",
    ),
    "storage.keys_url": ("e2e/test_separate_keys.py", "test_a_key_store_goes_away_and_comes_back"),
    "background.external": ("e2e/test_external_work.py", "test_a_worker_does_the_work"),
    "retention.ttl_days": ("engine/background/test_retention.py", "test_threads_go_by_their_age"),
    "retention.max_observations": (
        "engine/memory_cache/test_memories.py",
        "test_log_is_kept_within_its_limit",
    ),
    "retention.max_reflections": (
        "engine/background/test_retention.py",
        "test_older_generations_go",
    ),
    "retention.generations": ("storage/sqlite/test_store.py", "test_older_generations_go"),
}


def test_each_key_of_storage_has_a_test() -> None:
    sections = ("storage.", "retention.", "background.external")
    assert set(SHOWN_BY) == {key for key in leaves() if key.startswith(sections)}
    for file, name in SHOWN_BY.values():
        text = (ROOT / "tests" / file).read_text(encoding="utf-8")
        assert re.search(rf"^(async def|def|class) {name}\(", text, flags=re.M), name


def test_profiles_do_what_they_say() -> None:
    """No profile sets what is not in effect."""
    text = re.findall(r"(?:^#\| .*\n?)+", CONFIG, flags=re.M)
    assert len(text) == 3
    for profile in text:
        assert list_warnings(parse(re.sub(r"^#\| ", "", profile, flags=re.M))) == []


@pytest.mark.parametrize("key", NOT_IN_EFFECT)
def test_check_knows_every_one(key: str) -> None:
    """Set to something else than its default, each is warned of by name."""
    assert key in keys_of(Settings().model_dump())


# ── ARCHITECTURE ──────────────────────────────────────────────────────────────────────────────────


def rooms() -> set[str]:
    """What stands at the top of the package."""
    entries = (ROOT / "proxy/om_proxy").iterdir()
    return {
        entry.name + "/" if entry.is_dir() else entry.stem
        for entry in entries
        if not entry.name.startswith("__")
        and ((entry / "__init__.py").is_file() or entry.suffix == ".py")
    }


def test_rooms() -> None:
    """The table of rooms is the tree."""
    section = ARCHITECTURE.partition("## Rooms")[2].partition("Imports go down")[0]
    rows = re.findall(r"^\| ((?:`[\w/]+`(?: · )?)+) \|", section, flags=re.M)
    names = [name for row in rows for name in re.findall(r"`([\w/]+)`", row)]
    assert {name.partition("/")[0] + "/" for name in names} == rooms()
    for name in names:
        place = ROOT / "proxy/om_proxy" / name
        assert place.is_dir() or place.with_suffix(".py").is_file(), name


def test_floors() -> None:
    """The order it tells is the order that is enforced."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "importlinter"
    ]["contracts"]
    (layers,) = [
        contract["layers"]
        for contract in contracts
        if contract["type"] == "layers" and contract["containers"] == ["om_proxy"]
    ]
    (sentence,) = re.findall(r"Imports go down: (.*?)\. The import", ARCHITECTURE, flags=re.S)
    order = [floor.strip("` ").split(" | ") for floor in " ".join(sentence.split()).split(" → ")]
    assert order == [re.split(r" [:|] ", layer) for layer in layers]


@pytest.mark.parametrize(
    "text",
    [ARCHITECTURE, (ROOT / "proxy/om_proxy/__init__.py").read_text(encoding="utf-8")],
    ids=["page", "package"],
)
def test_the_path_of_a_request(text: str) -> None:
    """Every file and function on the map is there."""
    (drawn,) = re.findall(r"client ── POST.*?(?=\n```|\n\"\"\")", text, flags=re.S)
    files = set(re.findall(r"[\w/]+\.py\b", drawn))
    assert len(files) >= 10
    for file in files:
        assert (ROOT / "proxy/om_proxy" / file).is_file(), file
    for function in re.findall(r"\bengine\.(?!py\b)(\w+)", drawn):
        source = ROOT / "proxy/om_proxy/engine/turns/engine.py"
        assert f"def {function}(" in source.read_text(encoding="utf-8")


def test_files_named_elsewhere() -> None:
    """Any path with a folder that a document names exists."""
    for text in (PAGES, ARCHITECTURE, (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")):
        for path in re.findall(r"`((?:tests|proxy|config|examples|scripts)/[\w./-]+)`", text):
            if "x/" not in path:
                assert (ROOT / path).exists(), path
        for path in re.findall(r"`([\w/]+\.py)`", text):
            if path.partition("/")[0] + "/" in rooms():
                assert (ROOT / "proxy/om_proxy" / path).is_file(), path


# ── every file ────────────────────────────────────────────────────────────────────────────────────


MODULE_DOCSTRING = re.compile(r'(?:#.*\n|\s)*r?"""\s*[^\s"]')


def test_every_module_says_what_it_is() -> None:
    """Each begins with its one sentence; the empty ones of packages are no exception."""
    silent = [
        named(file)
        for file in modules()
        if not MODULE_DOCSTRING.match(file.read_text(encoding="utf-8"))
    ]
    assert silent == []


# Put together here, so that this file does not hold what it looks for.
ELSEWHERE = [
    "/" + "work/",
    "/" + "root/",
    "/" + "tmp/w",
    "python" + "hosted.org",
    "pypi" + ".org",
    "index" + "-url=",
]
ABOUT = [
    "co-" + "authored-by", "ai-" + "generated", "generated with " + "ai", "written by an " + "ai", "claude" + " code",
    "by chat" + "gpt", "with chat" + "gpt",
    "copi" + "lot", "my coll" + "eague", "this brief" + " says", "in this sess" + "ion,", "sub" + "agent", "my hel" + "per",
]  # fmt: skip


@pytest.mark.parametrize("word", [*ELSEWHERE, *ABOUT])
def test_no_file_says(word: str) -> None:
    """No path of one machine, no package index, nothing about how or by whom the code was
    written."""
    found = [
        named(file)
        for file in committed()
        if word in file.read_text(encoding="utf-8", errors="replace").lower()
    ]
    assert found == []


REASONED = re.compile(
    r"# (?:noqa: [A-Z]+\d+(?:, ?[A-Z]+\d+)*|type: ignore\[[a-z-]+(?:, ?[a-z-]+)*\])\s+(?:-|—|#) \S.{4,}"
)
SWITCHED_OFF = re.compile(r"# (noqa|type: ignore)")


def exceptions(file: Path) -> Iterator[tuple[int, str]]:
    source = file.read_text(encoding="utf-8")
    if not SWITCHED_OFF.search(source):
        return  # reading it as code takes milliseconds
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT and SWITCHED_OFF.search(token.string):
            yield token.start[0], token.string


def test_every_exception_has_its_reason() -> None:
    """A check that is switched off says which, and on the same line why."""
    bare = [
        f"{named(file)}:{line}"
        for file in modules()
        for line, comment in exceptions(file)
        if not REASONED.search(comment)
    ]
    assert bare == []


def test_every_error_is_drawn() -> None:
    """The tree in `common/errors.py` holds every class of ours, with the status the edge
    answers."""
    drawn = (ROOT / "proxy/om_proxy/common/errors.py").read_text(encoding="utf-8").split('"""')[1]

    def below(kind: type[OmError]) -> Iterator[type[OmError]]:
        yield kind
        for one in kind.__subclasses__():
            yield from below(one)

    for kind in {kind for kind in below(OmError) if kind.__module__ == "om_proxy.common.errors"}:
        (status,) = re.findall(rf"\b{kind.__name__}\b +(\d+|–)", drawn) or [None]
        assert status in (str(kind.status), "–", None if kind is OmError else ""), kind
