"""The kinds of rows in the table of commands, and the options that several commands have."""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from om_proxy.cli.completion import (
    Completer,
    complete_resource,
    complete_tenant,
    complete_thread,
)

MAX_LISTED = 1_000  # lines of one answer, as in the admin API
MAX_WAIT_S = 86_400
AGE_UNITS_S = {"s": 1, "m": 60, "h": 3_600, "d": 86_400}


class Option(NamedTuple):
    """An argument of a command, as `add_argument` takes it."""

    name: str
    settings: dict[str, Any]
    completer: Completer | None = None


class OneOf(tuple[Option, ...]):
    """Options of which a command takes at most one."""


class Command(NamedTuple):
    """A command: a row of the table.

    `run` takes the options, and returns the exit status. A coroutine function takes the admin API's
    handlers on the opened store before them. Where a row `asks` a route, its options have the
    names of the query's and the body's fields, and `run` prints the answer.
    """

    name: str
    help: str
    run: str  # module.function of commands/: see below
    options: tuple[Option | OneOf, ...]
    description: str | None = None  # in the command's own help, in place of `help`
    epilog: str | None = None
    asks: str | None = None  # a route of the admin API, as in `GET /threads`


class Family(NamedTuple):
    """Commands that share their first word: `om-proxy store backup`."""

    name: str
    help: str
    commands: tuple[Command, ...]


class Group(NamedTuple):
    """Commands that are together on the first help screen."""

    title: str
    commands: tuple[Command | Family, ...]


def option(usage: str, help: str, completer: Completer | None = None, **settings: Any) -> Option:
    """Return an option. `usage`: as a help shows it: `--after N`, `THREAD`, or `[THREAD]` for an
    argument that may be left out."""
    name, _, metavar = usage.partition(" ")
    if not name.startswith("-"):
        metavar = name.strip("[]")
        if name != metavar:
            settings["nargs"] = "?"
        name = settings.pop("dest", metavar.lower())
    if metavar:
        settings["metavar"] = metavar
    return Option(name, {"help": help, **settings}, completer)


def flag(name: str, help: str) -> Option:
    return Option(name, {"action": "store_true", "help": help})


def resource_option(help: str) -> Option:
    return option("--resource", help, complete_resource)


def thread_option(usage: str, help: str = "the thread, as the client names it") -> Option:
    return option(usage, help, complete_thread)


def limit_option(
    default: int | None, *, most: int = MAX_LISTED, default_help: str = "%(default)s"
) -> Option:
    """Return the option that says how many lines a list has."""

    help = f"how many to print, 1 to {most} (default: {default_help})"
    return option("--limit N", help, type=partial(read_count, most=most), default=default)


def read_count(text: str, most: int = MAX_LISTED) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be 1 to {most}")
    return int(text)


def read_day(text: str) -> float:
    """Return the beginning of a day, in UTC."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise argparse.ArgumentTypeError("must be a day, as in 2026-05-31") from None


def read_sample(text: str) -> int | None:
    """Read a number of questions; `all` is None."""
    if text == "all":
        return None
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError("must be a number of questions, or all")
    return int(text)


def read_age(text: str) -> float:
    """Return the seconds of `<n>s`, `m`, `h` or `d`."""
    if not (text[:-1].isdecimal() and text[-1:] in AGE_UNITS_S):
        raise argparse.ArgumentTypeError("must be a number with its unit, as in 30d or 12h")
    return float(text[:-1]) * AGE_UNITS_S[text[-1]]


def read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a number of seconds") from None
    if not 0 < seconds <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"must be above 0, and at most {MAX_WAIT_S}")
    return seconds


CONFIG = option("--config", "the YAML file (default: OM_PROXY_CONFIG, else ./config/om-proxy.yaml)")
TENANT = option(
    "--tenant", "whose memory, or the beginning of that name; default: all tenants", complete_tenant
)
RESOURCE = resource_option("the thread's resource; needed if several have such a thread")
JSON = flag("--json", "print the JSON that the admin API answers")
MEMORY = (CONFIG, TENANT, RESOURCE, JSON)
ABOUT_THREAD = (*MEMORY, thread_option("THREAD"))
YES = flag("--yes", "do not ask for confirmation")
CURSOR = option("--cursor", "read on where an earlier list ended; it says how")
PAGE = (limit_option(100), CURSOR)
IF_VERSION = option(
    "--if-version N",
    "change nothing if the thread has changed since this version (`threads THREAD --json` has it)",
    type=int,
)
CHUNK = flag("--chunk", "ID is a chunk's: notes that wait to become active")
ABOUT_NOTE = (
    *ABOUT_THREAD,
    option("ID", "the note, as `om-proxy notes show` shows it", type=int),
    CHUNK,
    IF_VERSION,
)
