"""Write the pages of docs/reference that are made from the code.

Run by `scripts/reference`. tests/test_docs.py makes them again and compares.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import msgspec
import yaml

from om_proxy.cli import exit_status
from om_proxy.cli.command_table import GROUPS
from om_proxy.cli.entry import build_parser
from om_proxy.cli.options import Family, Group
from om_proxy.edge.vocabulary import (
    ERROR_CODE_ROWS,
    REASON_ROWS,
    REQUEST_HEADER_ROWS,
    RESPONSE_HEADER_ROWS,
    Row,
)
from om_proxy.management.api.openapi import build_openapi
from om_proxy.memory.events.parts import StoredPart
from om_proxy.memory.events.status import MemoryStatus
from om_proxy.observability.figures.metrics import FAILURE_CAUSES, LABEL_VALUES, METRICS
from om_proxy.settings.config.annotations import list_words
from om_proxy.settings.config.watching import needs_a_restart

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "reference"
CONFIG = (ROOT / "config" / "om-proxy.yaml").read_text(encoding="utf-8")
WORDS_BY_KEY = list_words(CONFIG)
MADE_BY = "<!-- made by scripts/reference: do not edit -->"


def pages() -> dict[str, str]:
    """File name → text, for each page that is made."""
    return {
        "settings.md": settings_page(),
        "headers.md": headers_page(),
        "reasons.md": reasons_page(),
        "errors.md": errors_page(),
        "cli.md": cli_page(),
        "admin-api.md": admin_api_page(),
        "metrics.md": metrics_page(),
        "events.md": events_page(),
    }


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; what Markdown would read as its own in a cell is escaped."""
    escaped = ([cell.replace("|", "\\|").replace("<n>", "\\<n>") for cell in row] for row in rows)
    lines = [columns, ["---"] * len(columns), *escaped]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def joined(*parts: str) -> str:
    return "\n\n".join(part.strip("\n") for part in parts if part) + "\n"


def sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:].removesuffix('.')}." if text else ""


def code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


# ── settings ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of the configuration file: its default as the file writes it, and its comment."""

    section: str
    name: str
    default: str
    comment: str

    @property
    def key(self) -> str:
        return f"{self.section}.{self.name}" if self.section else self.name


def settings() -> Iterator[Setting]:
    """Every key of the file, a section's before those within it. A section has no default."""
    root = yaml.compose(CONFIG, Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    yield from _settings_of(root, "")


def _settings_of(node: yaml.MappingNode, section: str) -> Iterator[Setting]:
    inner = []
    for key, value in node.value:
        holder = value.value[0] if isinstance(value, yaml.SequenceNode) and value.value else value
        nested = isinstance(holder, yaml.MappingNode) and bool(holder.value)
        name = f"{section}.{key.value}" if section else key.value
        found = Setting(section, key.value, "" if nested else _written(value), WORDS_BY_KEY[name])
        if nested:
            inner.append((found, holder))
        else:
            yield found
    for found, holder in inner:
        yield found
        yield from _settings_of(holder, found.key)


def _written(node: yaml.Node) -> str:
    """The value as the file writes it; a list over several lines becomes one line."""
    if isinstance(node, yaml.SequenceNode) and not node.flow_style:
        return f"[{', '.join(_written(item) for item in node.value)}]"
    return CONFIG[node.start_mark.index : node.end_mark.index]


def settings_page() -> str:
    parts = []
    rows: list[Setting] = []
    overlays = [found for found in settings() if found.default and not found.section]
    for found in [
        *(found for found in settings() if found not in overlays),
        Setting("", "", "", ""),
    ]:
        if found.default:
            rows.append(found)
            continue
        parts += [_settings_table(rows)] if rows else []
        rows = []
        parts += [f"## {found.key}", sentence(found.comment)] if found.key else []
    return joined(
        "# Settings",
        MADE_BY,
        "Every key of `config/om-proxy.yaml` with its default. [Configuration](../guides/configuration.md) says how "
        "the file is found and changed. A key with ↻ needs a restart. `[not in effect yet]` marks what this version "
        "reads and checks, and then does nothing with.",
        *parts,
        "## By model and by resource",
        _settings_table(overlays),
    )


def _settings_table(rows: Iterable[Setting]) -> str:
    return table(
        ("key", "default", "meaning"),
        ((f"`{row.key}`{_restart(row.key)}", f"`{row.default}`", row.comment) for row in rows),
    )


def _restart(key: str) -> str:
    return " ↻" if needs_a_restart(key) else ""


# ── headers, reasons, errors ─────────────────────────────────────────────────────────────────────


def two_columns(first: str, rows: Iterable[Row]) -> str:
    return table((first, "meaning"), ((code(row.names), row.meaning) for row in rows))


def headers_page() -> str:
    return joined(
        "# Headers",
        MADE_BY,
        "## Requests",
        two_columns("request", REQUEST_HEADER_ROWS),
        """\
A name of a thread or a resource is 1 to 256 bytes. Letters, digits and `. _ : @ / + = -` stand for
themselves. Percent-encode everything else, as UTF-8 (`Kitchen%20plans`). om-proxy decodes the name
once, also in the path.""",
        "## Without a header of ours",
        """\
**The base URL names thread and resource**, for clients that can set nothing else:
`http://127.0.0.1:8400/t/<thread>/v1`, or `…/r/<resource>/t/<thread>/v1`. Headers win over the path.
The prefix is not passed on.""",
        """\
**The client's own session is the thread**, where nothing else names one (`identity.sessions`):
opencode's, `x-litellm-session-id`, `helicone-session-id`. These headers are passed on. Each sub-agent
of opencode has a thread of its own. The resource is the user in `x-litellm-end-user-id`,
`x-litellm-customer-id` or `helicone-user-id`. Sessions that group unrelated prompts are no threads:
take them out of the list.""",
        "## Responses",
        two_columns("response", RESPONSE_HEADER_ROWS),
    )


def reasons_page() -> str:
    return joined(
        "# Statuses and reasons",
        MADE_BY,
        "A response says in `x-om-status` what memory did with the request, and in `x-om-reason` why, where there is "
        "something to explain.",
        table(
            ("reason", "with", "meaning"),
            (
                (code(row.names), code(row.sent_with.split()) or "(log)", row.meaning)
                for row in REASON_ROWS
            ),
        ),
    )


def errors_page() -> str:
    return joined(
        "# Errors",
        MADE_BY,
        """\
An error of om-proxy's own has OpenAI's shape. Its type is `om_error`, its code is one of these, and its
message says what to do. The header `x-should-retry` says whether the same request may succeed later.
All other errors are the model server's own.""",
        table(
            ("code", "status", "meaning, and what to do"),
            ((code(row.names), row.sent_with, row.meaning) for row in ERROR_CODE_ROWS),
        ),
    )


# ── admin API ────────────────────────────────────────────────────────────────────────────────────


def metrics_page() -> str:
    return joined(
        "# Metrics",
        MADE_BY,
        """\
`GET /metrics` answers Prometheus. It needs `telemetry.metrics_token` or the admin token as
`Authorization: Bearer …`, and no token on loopback. [Figures](../contributing/seeing.md#figures)
says what the numbers promise.

```yaml
scrape_configs:
  - job_name: om-proxy
    authorization: {credentials_file: /etc/prometheus/om-proxy-token}
    static_configs: [{targets: ["om-proxy:8400"]}]
```

With `telemetry.resource_labels` or `thread_labels`, the metrics marked † also have the label
`resource` or `thread`.""",
        table(
            ("name", "type", "labels", "what it counts"),
            (
                (
                    f"`{metric.name}`{' †' if metric.names_thread else ''}",
                    metric.kind,
                    code(metric.labels),
                    metric.help,
                )
                for metric in METRICS
            ),
        ),
        "## Label values",
        table(("label", "values"), LABEL_VALUES.items()),
        "## Causes of failures",
        table(("cause", "what happened"), ((f"`{c}`", t) for c, t in FAILURE_CAUSES.items())),
        """\
## Savings

`om_cost_savings_total` is a gauge: a turn whose memory costs more than it saves lowers it. For
rates and for sums over restarts, record the counters that it is made of:

```yaml
groups:
  - name: om-proxy
    rules:
      - record: om:cost_savings:increase1d
        expr: >-
          sum(increase(om_cost_baseline_total{history="full"}[1d]))
          - sum(increase(om_cost_actual_total{history="full"}[1d]))
          - (sum(increase(om_observer_cost_total{history="full"}[1d])) or vector(0))
          - (sum(increase(om_reflector_cost_total{history="full"}[1d])) or vector(0))
```""",
    )


# Parameters of so many routes that their meaning stands once.
SHARED_PARAMETERS = ("tenant", "resource", "name", "If-Match", "limit", "cursor")
MIN_ROUTES_TO_SHARE = 4


def admin_api_page(with_answers: bool = False) -> str:
    """The routes with what they take. The site's page also has the fields of the answers."""
    document = build_openapi()
    schemas = document["components"]["schemas"]
    operations = [
        (method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    shared = _shared_parameters(operations)
    bodies = {name for *_, operation in operations if (name := _body_name(operation))}
    return joined(
        "# Admin API",
        MADE_BY,
        """\
The API is below `/om/v1` and speaks JSON. Times are Unix seconds. `GET /om/v1/openapi.json` answers
its OpenAPI document, from which this page is made; `om-proxy api GET /openapi.json` prints it without
a server. It has the fields of each answer, too, and so has this page in the site that `scripts/site`
makes.

- Your own credential reaches your own threads. With `auth.token_required` it reaches nothing: then
  only the admin token counts.
- The admin token (`server.admin_token`, sent as `X-OM-Admin`) reaches all threads, with `?tenant=`.
- Add `?resource=` where the thread has a resource. Percent-encode names, slashes too.
- Pages of other sites are refused and, on a loopback bind, any public `Host`.
- A change has a JSON body, with the header `Content-Type: application/json`, or the method `DELETE`.
  With `If-Match: <ETag>` it is refused with 409 if the thread has changed since; without it, it is
  made on what is stored. `If-None-Match` answers 304 where nothing has changed.
- Unknown names in a query or a body are refused with 400. [Errors](errors.md) lists the codes.

[Erase](../guides/erase.md) says what forgetting removes, and when.""",
        "## Parameters of many routes",
        _bullets(shared),
        *(
            part
            for method, path, operation in operations
            for part in _route_section(method, path, operation, set(shared), with_answers)
        ),
        "## Bodies",
        *(part for name in schemas if name in bodies for part in _schema_section(name, schemas)),
        *(
            part
            for name in schemas
            if with_answers and name not in bodies
            for part in (
                "## Answers" if name == "ErrorBody" else "",
                *_schema_section(name, schemas),
            )
        ),
    )


def _shared_parameters(
    operations: Iterable[tuple[str, str, dict[str, Any]]],
) -> list[tuple[str, str]]:
    """Name and meaning of each parameter that several routes have with the same meaning."""
    routes = Counter(
        (parameter["name"], parameter["description"])
        for *_, operation in operations
        for parameter in operation.get("parameters", ())
        if parameter["name"] in SHARED_PARAMETERS and parameter["in"] != "path"
    )
    return [row for row, times in routes.items() if times >= MIN_ROUTES_TO_SHARE]


def _bullets(rows: Iterable[tuple[str, str]]) -> str:
    lines = (f"- `{name}`: {text}" if text else f"- `{name}`" for name, text in rows)
    return "\n".join(lines).replace("<n>", "\\<n>")


def _route_section(
    method: str,
    path: str,
    operation: dict[str, Any],
    shared: set[tuple[str, str]],
    with_answers: bool,
) -> Iterator[str]:
    yield f"### {method} {path}"
    parameters = [
        (parameter["name"], parameter["description"])
        for parameter in operation.get("parameters", ())
        if parameter["in"] != "path"
    ]
    body, answer = _body_name(operation), _answer_name(operation)
    yield " ".join(
        [
            operation["summary"],
            *([f"Body: [{body}](#{body.lower()})."] if body else []),
            *([f"Answer: [{answer}](#{answer.lower()})."] if answer and with_answers else []),
        ]
    )
    yield _bullets(row for row in parameters if row not in shared)
    if also := [name for name, text in parameters if (name, text) in shared]:
        yield f"Takes {code(also)}."


def _body_name(operation: dict[str, Any]) -> str:
    content = operation.get("requestBody", {}).get("content", {})
    return _schema_name(content)


def _answer_name(operation: dict[str, Any]) -> str:
    return _schema_name(operation["responses"]["200"].get("content", {}))


def _schema_name(content: dict[str, Any]) -> str:
    schema = content.get("application/json", {}).get("schema", {})
    return str(schema.get("$ref", "")).rpartition("/")[2]


def _schema_section(name: str, schemas: dict[str, Any]) -> Iterator[str]:
    schema = schemas[name]
    yield f"### {name}"
    yield " ".join(schema.get("description", "").split())
    yield "\n".join(
        f"- `{field}` ({_type_of(part)})"
        + (f": {text}" if (text := part.get("description")) else "")
        for field, part in schema.get("properties", {}).items()
    )


def _type_of(schema: dict[str, Any]) -> str:
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if choices := schema.get("anyOf"):
        return " or ".join(map(_type_of, choices))
    if values := schema.get("enum"):
        return code(f'"{value}"' for value in values)
    if schema.get("type") == "array":
        return f"list of {_type_of(schema.get('items', {}))}"
    return str(schema.get("type", "any"))


# ── events ───────────────────────────────────────────────────────────────────────────────────────


def events_page() -> str:
    parts = (*get_args(StoredPart), MemoryStatus)
    references, schemas = msgspec.json.schema_components(parts, ref_template="#/{name}")
    names = [reference["$ref"].rpartition("/")[2] for reference in references]
    inner = [name for name in schemas if name not in names]
    return joined(
        "# Events",
        MADE_BY,
        """\
[Seeing and steering](../contributing/seeing.md#events) says when an event is told and how long it
is kept. It comes by `GET /om/v1/events`, as a list or a stream, by a
[webhook](../contributing/seeing.md#webhooks), or before a reply (`X-OM-Events: inline`,
[headers](headers.md)). The tables are of `data`.

A field that is not required is left out where nothing is to be said. A field marked † holds words
of a conversation: it is null for a reader who may see no text. Times are ISO 8601 in UTC. `recordId`
is the thread's label, `.g` and the generation of its log. An empty `threadId` is the shared log of
a resource. `error` is a code of ours. Call ids in `cycleId` pair a start with its end.""",
        table(
            ("type", "what happened"),
            (
                (f"[`{part.TYPE}`](#{part.TYPE})", (part.__doc__ or "").split("\n\n")[0])
                for part in parts
            ),
        ),
        *(
            block
            for part, name in zip(parts, names, strict=True)
            for block in (
                f"## {part.TYPE}",
                _event_fields(schemas[name], getattr(part, "TEXT_FIELDS", ())),
            )
        ),
        *(block for name in inner for block in (f"## {name}", _event_fields(schemas[name], ()))),
    )


def _event_fields(schema: dict[str, Any], text_fields: Sequence[str]) -> str:
    required = schema.get("required", ())
    return table(
        ("field", "type", "required"),
        (
            (
                f"`{field}`{' †' if field in text_fields else ''}",
                _type_of(part),
                "yes" if field in required else "no",
            )
            for field, part in schema["properties"].items()
        ),
    )


# ── commands ─────────────────────────────────────────────────────────────────────────────────────


# Commands that have an argument with the same meaning before it is told once.
MIN_COMMANDS_TO_SHARE = 4


def cli_page() -> str:
    exit_statuses = " ".join((exit_status.__doc__ or "").partition("\n\n")[2].split())
    top = build_parser()
    parsers = list_parsers(top)
    times = Counter(row for parser in parsers.values() for row in _option_rows(parser))
    shared = [row for row, count in times.items() if count >= MIN_COMMANDS_TO_SHARE]
    sections = [part for group in GROUPS for part in _group_sections(group, parsers, shared)]
    return joined(
        "# Commands",
        MADE_BY,
        exit_statuses,
        _bullets(_option_rows(top)),
        "## Arguments of many commands",
        _bullets(shared),
        *sections,
    )


def list_parsers(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of all commands, by their names of one or two words."""
    return {
        name: inner
        for action in parser._actions
        if isinstance(action, argparse._SubParsersAction)
        for word, choice in action.choices.items()
        for name, inner in [
            (word, choice),
            *((f"{word} {rest}", deeper) for rest, deeper in list_parsers(choice).items()),
        ]
    }


def _group_sections(
    group: Group, parsers: dict[str, argparse.ArgumentParser], shared: Sequence[tuple[str, str]]
) -> Iterator[str]:
    """Yield the sections of a group. A family has one for each of its commands."""
    yield f"## {group.title[0].upper()}{group.title[1:]}"
    for row in group.commands:
        if isinstance(row, Family):
            yield f"**om-proxy {row.name}**: {sentence(row.help)}"
            for member in row.commands:
                name = f"{row.name} {member.name}"
                yield from command_section(name, parsers[name], member.help, shared)
        else:
            yield from command_section(row.name, parsers[row.name], row.help, shared)


def command_section(
    name: str,
    parser: argparse.ArgumentParser,
    summary: str,
    shared: Sequence[tuple[str, str]] = (),
) -> Iterator[str]:
    yield f"### om-proxy {name}"
    yield parser.description or sentence(summary)
    rows = _option_rows(parser)
    yield _bullets(row for row in rows if row not in shared)
    if also := [name for name, text in rows if (name, text) in shared]:
        yield f"Takes {code(also)}."
    yield parser.epilog or ""


def _option_rows(parser: argparse.ArgumentParser) -> list[tuple[str, str]]:
    return [
        (_option(action), _help(parser, action))
        for action in parser._actions
        if action.dest != "help" and not isinstance(action, argparse._SubParsersAction)
    ]


def _option(action: argparse.Action) -> str:
    if not action.option_strings:
        return str(action.metavar or action.dest.upper())
    value = "" if action.nargs == 0 else f" {action.metavar or action.dest.upper()}"
    return f"{action.option_strings[-1]}{value}"


def _help(parser: argparse.ArgumentParser, action: argparse.Action) -> str:
    """The help as `--help` prints it, with its `%(default)s` filled in."""
    text = parser._get_formatter()._expand_help(action)
    return f"{text}{' (required)' if action.required and action.option_strings else ''}"


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
