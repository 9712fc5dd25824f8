"""Define the commands that read and change stored memories, and the options that they share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Protocol

from om_proxy.cli.name_completion import complete_resource, complete_tenant, complete_thread

MAX_LISTED = 1_000  # lines of one answer, as in the admin API
MAX_FOUND = 100  # messages of one search, as in the admin API
MAX_WAIT_S = 86_400
JSON_HELP = "print the JSON that the admin API answers"
RESOURCE_HELP = "the thread's resource; needed if several have such a thread"


class CommandList(Protocol):
    """What `add_subparsers` returns."""

    def add_parser(
        self, name: str, *, help: str | None = ..., description: str | None = ...
    ) -> argparse.ArgumentParser: ...


def add_config_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config",
        help="the YAML file (default: OM_PROXY_CONFIG, else ./config/om-proxy.yaml)",
    )


def add_memory_commands(commands: CommandList) -> None:
    """Add the commands in the order in which a reader meets them."""
    _add_reading_commands(commands)
    _add_changing_commands(commands)


def _add_reading_commands(commands: CommandList) -> None:
    threads = _add_command(commands, "threads", "list the threads that have a memory")
    threads.add_argument(
        "prefix",
        nargs="?",
        metavar="PREFIX",
        help="only threads whose name, resource or title begins with this",
    )
    threads.add_argument(
        "--state",
        choices=["active", "failing", "parked", "observed"],
        help="only threads whose memory work goes on, fails or was given up, or that have notes",
    )
    threads.add_argument(
        "--order",
        choices=["recent", "name"],
        default="recent",
        help="the most recent turn first, or by name (default: %(default)s)",
    )
    _add_page_options(threads)

    _add_thread_command(
        commands, "show", "show the state of a thread's memory: its windows and failures"
    )

    notes = _add_thread_command(commands, "notes", "show what memory has noted about a thread")
    notes.add_argument(
        "id",
        nargs="?",
        type=int,
        metavar="ID",
        help="only this entry, with the notes that it was made from",
    )
    notes.add_argument(
        "--chunk", action="store_true", help="ID is a chunk's: notes that wait to become active"
    )
    notes.add_argument(
        "--messages", action="store_true", help="also show the messages that the entry covers"
    )
    notes.add_argument(
        "--generation", type=int, metavar="N", help="show the notes of an older generation"
    )
    notes.add_argument("--generations", action="store_true", help="list the stored generations")

    messages = _add_thread_command(
        commands, "messages", "show the messages of a thread, and what became of each"
    )
    messages.add_argument(
        "--after", type=int, default=0, metavar="N", help="only messages behind number N"
    )
    messages.add_argument("--through", type=int, metavar="N", help="only messages up to number N")
    messages.add_argument(
        "--all",
        action="store_true",
        help="also messages that were taken back, and replies that broke off",
    )
    messages.add_argument(
        "--excerpt", action="store_true", help="only the beginning of each message"
    )
    _add_page_options(messages)

    search = _add_command(
        commands,
        "search",
        "search the messages of threads, or their notes, by words",
        resource_help="only this resource",
    )
    search.add_argument("words", metavar="WORDS", help="the words to look for")
    thread = search.add_argument(
        "--thread", metavar="THREAD", help="only this thread, as the client names it"
    )
    _set_completer(thread, complete_thread)
    search.add_argument(
        "--in",
        dest="searched",
        choices=("messages", "notes"),
        default="messages",
        help="what to search (default: %(default)s)",
    )
    search.add_argument(
        "--limit",
        type=_read_found_limit,
        default=20,
        metavar="N",
        help=f"how many messages or lines to print, 1 to {MAX_FOUND} (default: %(default)s)",
    )

    read = _add_thread_command(
        commands, "read", "read the messages of a thread as the model's tool shows them"
    )
    read.add_argument(
        "cursor",
        nargs="?",
        metavar="ID",
        help="begin with this message, such as m12 (default: the first)",
    )
    read.add_argument(
        "--page",
        type=int,
        default=1,
        metavar="N",
        help="1 reads on from ID, -1 back to it, 2 the page after that (default: %(default)s)",
    )

    context = _add_thread_command(
        commands,
        "context",
        "show what would go upstream now; nothing is stored, and no model is called",
    )
    context.add_argument("--text", help="the next message; without it, three dots stand for it")
    context.add_argument(
        "--request",
        metavar="FILE",
        help="a chat request in JSON, as a client would send it; `-` reads it from stdin",
    )

    events = _add_command(
        commands,
        "events",
        "list what happened to memories, and follow what happens",
        description="List what happened to memories, the oldest first: notes made, activated, "
        "condensed, edited or forgotten, and failures.",
    )
    thread = events.add_argument(
        "thread", nargs="?", metavar="THREAD", help="only of this thread, as the client names it"
    )
    _set_completer(thread, complete_thread)
    events.add_argument("--follow", action="store_true", help="go on with new events until Ctrl-C")
    events.add_argument("--type", help="only events of these types, with commas between them")
    _add_page_options(events, None, "all that are kept; with --json and without --follow, 100")

    stats = _add_command(commands, "stats", "show what memory saves and costs", resource_help=None)
    stats.add_argument(
        "--by",
        choices=["day", "model", "resource", "thread"],
        default="day",
        help="what the figures are summed up by (default: %(default)s)",
    )
    stats.add_argument("--from", dest="first_day", metavar="DAY", help="the first day, in UTC")
    stats.add_argument("--to", dest="last_day", metavar="DAY", help="the last day, in UTC")
    _add_page_options(stats)

    export = _add_command(
        commands,
        "export",
        "write everything stored, one JSON record a line",
        description="Write everything stored of a thread, of a resource (--resource without "
        "THREAD), or of a tenant. Without --output it is written to standard output.",
        json_help=None,
    )
    thread = export.add_argument(
        "thread", nargs="?", metavar="THREAD", help="only this thread, as the client names it"
    )
    _set_completer(thread, complete_thread)
    export.add_argument(
        "--output", metavar="FILE", help="a new file, which only its owner will be able to read"
    )
    export.add_argument("--all", action="store_true", help="all tenants, one behind the other")
    export.add_argument(
        "--with-secret",
        action="store_true",
        help="with the store's secret, so that a new store can go on with every thread; whoever "
        "has it can forge tenants and fingerprints",
    )
    export.add_argument("--yes", action="store_true", help="print the secret without --output")


def _add_changing_commands(commands: CommandList) -> None:
    edit = _add_entry_command(
        commands,
        "edit",
        "give a note other words",
        description="Give a note other words. Without --text, they are read from standard input "
        "or, on a terminal, from the editor that EDITOR names.",
    )
    edit.add_argument("--text", help="the new words, 1 to 20 000 characters")

    withdraw = _add_entry_command(
        commands,
        "withdraw",
        "take a note away from the model",
        description="Take a note away from the model. The messages of an entry stay covered: the "
        "model reads neither the note nor them. A dropped chunk's messages are read again.",
    )
    withdraw.add_argument(
        "--forget",
        action="store_true",
        help="erase its words in older generations too; nothing brings them back",
    )

    pin = _add_thread_command(
        commands,
        "pin",
        "pin a note that every later prompt begins with; without words, list them",
        description="Pin a note of your own. It stands before all other notes and is never "
        "condensed. Without TEXT and --remove, list the pinned notes.",
    )
    pin.add_argument("text", nargs="?", metavar="TEXT", help="the words of the note")
    pin.add_argument("--edit", type=int, metavar="ID", help="give this pinned note the words TEXT")
    pin.add_argument("--remove", type=int, metavar="ID", help="take this pinned note away")
    _add_version_option(pin)

    observe = _add_thread_command(
        commands,
        "observe",
        "have messages observed now, below the thresholds too",
        description="Have the memory model observe messages now, below the thresholds too, and "
        "wait for its notes. They wait as chunks until they become active.",
    )
    observe.add_argument(
        "--all", action="store_true", help="the whole backlog, batch by batch; else one batch"
    )
    _add_version_option(observe)

    reflect = _add_thread_command(
        commands,
        "reflect",
        "have all notes condensed now",
        description="Have the memory model condense all notes now, and wait for the result. It "
        "takes their place if it is shorter.",
    )
    reflect.add_argument("--instruction", help="what the memory model should heed, in your words")
    _add_version_option(reflect)

    activate = _add_thread_command(
        commands, "activate", "make the chunks that wait active, for the next prompt"
    )
    _add_version_option(activate)

    undo = _add_thread_command(
        commands, "undo", "take back the newest reflection, edit or withdrawal of notes"
    )
    undo.add_argument(
        "--yes", action="store_true", help="do not ask before a reflection is taken back"
    )
    _add_version_option(undo)

    forget = _add_command(
        commands,
        "forget",
        "remove a thread and all notes about it, a resource or a tenant",
        description="Remove a thread's messages and all notes about it. The server may be running: "
        "the thread is gone for it at once. With --all and without THREAD, remove the resource of "
        "--resource, or else the whole tenant of --tenant.",
    )
    thread = forget.add_argument(
        "thread", nargs="?", metavar="THREAD", help="the thread, as the client names it"
    )
    _set_completer(thread, complete_thread)
    forget.add_argument(
        "--all", action="store_true", help="all threads of the resource, or of the tenant"
    )
    forget.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    erase = commands.add_parser(
        "erase",
        help="get the bytes of what was forgotten out of the database",
        description="Wait until the bytes of what was forgotten have left the database. In PostgreSQL "
        "they stay in the tables' files: with --rewrite, rewrite table by table (VACUUM FULL). Each is "
        "locked meanwhile: chat goes on without memory, and turns wait. If that is interrupted, run "
        "the command again: it goes on.",
    )
    add_config_option(erase)
    erase.add_argument("--rewrite", action="store_true", help="rewrite the tables of PostgreSQL")
    erase.add_argument(
        "--lock-timeout",
        type=_read_seconds,
        default=2.0,
        metavar="SECONDS",
        help="how long to wait for a table that is in use; turns wait as long (default: 2)",
    )
    erase.add_argument(
        "--wait",
        type=_read_seconds,
        default=60.0,
        metavar="SECONDS",
        help="how long to wait for readers, such as a backup, to end (default: 60)",
    )
    erase.add_argument("--yes", action="store_true", help="do not ask for confirmation")

    receipt = commands.add_parser(
        "receipt",
        help="show what was forgotten, or check the signature of a receipt",
        description="Show the receipt of what was forgotten, for 30 days. With --verify, say whether "
        "this store signed the receipt in a file, at any time; with --thread or --resource, whether "
        "it is about that.",
    )
    receipt.add_argument("id", nargs="?", metavar="ID", help="the receipt, as `forget` named it")
    receipt.add_argument(
        "--verify", metavar="FILE", help="check the receipt in this file; `-` for standard input"
    )
    receipt.add_argument("--thread", metavar="THREAD", help="the thread that it should be about")
    add_memory_options(receipt, resource_help="the resource that it should be about")


def _add_entry_command(
    commands: CommandList, name: str, summary: str, description: str
) -> argparse.ArgumentParser:
    command = _add_thread_command(commands, name, summary, description)
    command.add_argument(
        "id", type=int, metavar="ID", help="the note, as `om-proxy notes` shows it"
    )
    command.add_argument(
        "--chunk", action="store_true", help="ID is a chunk's: notes that wait to become active"
    )
    _add_version_option(command)
    return command


def _add_thread_command(
    commands: CommandList,
    name: str,
    summary: str,
    description: str | None = None,
) -> argparse.ArgumentParser:
    command = _add_command(commands, name, summary, description)
    thread = command.add_argument(
        "thread", metavar="THREAD", help="the thread, as the client names it"
    )
    _set_completer(thread, complete_thread)
    return command


def _add_command(
    commands: CommandList,
    name: str,
    summary: str,
    description: str | None = None,
    resource_help: str | None = RESOURCE_HELP,
    json_help: str | None = JSON_HELP,
) -> argparse.ArgumentParser:
    """Add a command with the options that all commands on memories have."""
    command = commands.add_parser(name, help=summary, description=description)
    add_memory_options(command, json_help, resource_help)
    return command


def add_memory_options(
    command: argparse.ArgumentParser,
    json_help: str | None = JSON_HELP,
    resource_help: str | None = RESOURCE_HELP,
) -> None:
    """Add the options that all commands on memories have. `resource_help`: None where a resource
    chooses nothing; `json_help`: None where JSON is all that is printed."""
    add_config_option(command)
    tenant = command.add_argument(
        "--tenant", help="whose memory; needed if the store has several tenants"
    )
    _set_completer(tenant, complete_tenant)
    if resource_help is not None:
        resource = command.add_argument("--resource", help=resource_help)
        _set_completer(resource, complete_resource)
    if json_help is not None:
        command.add_argument("--json", action="store_true", help=json_help)


def _set_completer(argument: argparse.Action, completer: Callable[..., list[str]]) -> None:
    """Let a shell complete the argument by this function."""
    argument.completer = completer  # type: ignore[attr-defined] # argcomplete reads it


def _add_page_options(
    command: argparse.ArgumentParser,
    default: int | None = 100,
    default_help: str = "%(default)s",
) -> None:
    """Add the options of a list. `default`: None where the command chooses how many it prints."""
    command.add_argument(
        "--limit",
        type=_read_limit,
        default=default,
        metavar="N",
        help=f"how many lines to print, 1 to {MAX_LISTED} (default: {default_help})",
    )
    command.add_argument("--cursor", help="read on where an earlier list ended; it says how")


def _add_version_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--if-version",
        type=int,
        metavar="N",
        help="change nothing if the thread has changed since this version (`show --json` has it)",
    )


def _read_seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError("must be a number of seconds") from None
    if not 0 < seconds <= MAX_WAIT_S:
        raise argparse.ArgumentTypeError(f"must be above 0, and at most {MAX_WAIT_S}")
    return seconds


def _read_found_limit(text: str) -> int:
    return _read_count(text, MAX_FOUND)


def _read_limit(text: str) -> int:
    return _read_count(text, MAX_LISTED)


def _read_count(text: str, most: int) -> int:
    """Return a number from 1 to `most`. Another value is told by that rule, not by our function."""
    if not text.isdecimal() or not 1 <= int(text) <= most:
        raise argparse.ArgumentTypeError(f"must be 1 to {most}")
    return int(text)
