"""Print what makes a shell complete commands, options and names, and answer what it asks.

argcomplete writes the shell's part. At each TAB the shell runs the program with `_ARGCOMPLETE` set,
and the program answers what may be next (entry.py). Names of threads, resources and tenants are
looked up in the store. The table of commands refers to these functions, so nothing that takes time
is imported before a shell asks.
"""

from __future__ import annotations

import argparse
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote, unquote

from om_proxy.cli.exit_status import DONE
from om_proxy.common.errors import OmError

if TYPE_CHECKING:
    from om_proxy.settings.config import Settings
    from om_proxy.storage.base import Store
    from om_proxy.storage.values.listing import ThreadInfo

PROGRAM = "om-proxy"
MAX_COMPLETIONS = 100
Completer = Callable[..., list[str]]
_Found = TypeVar("_Found")


def print_script(shell: str) -> int:
    """Print the script for the shell."""
    from argcomplete.shell_integration import shellcode  # noqa: PLC0415 - as below

    print(shellcode([PROGRAM], shell=shell))
    return DONE


def answer_shell(parser: argparse.ArgumentParser) -> None:
    """Answer what may be next, and end the process."""
    import argcomplete  # noqa: PLC0415 - only a shell needs it

    # options are shown once a dash is typed: names and commands are what people look for
    argcomplete.autocomplete(parser, always_complete_options=False)


def complete_thread(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the threads whose names begin with the prefix."""
    return _sort_names(info.key.thread for info in _find_threads(prefix, parsed_args))


def complete_resource(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the resources whose names begin with the prefix."""
    return _sort_names(info.key.resource for info in _find_threads(prefix, parsed_args))


def complete_tenant(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the tenants of the store."""
    from om_proxy.cli.thread_choice import read_tenants  # noqa: PLC0415 - takes 0.4 s

    async def list_names(store: Store) -> Sequence[str]:
        return [tenant async for tenant in read_tenants(store, MAX_COMPLETIONS)]

    return _sort_names(_read_store(parsed_args, list_names))


def complete_path(prefix: str, parsed_args: argparse.Namespace, **_: object) -> list[str]:
    """Return the paths of the admin API's routes that begin so, up to the next name in them."""
    from om_proxy.management.api.route_table import ADMIN_ROUTES  # noqa: PLC0415 - takes 0.4 s

    *typed, begun = prefix.split("/")
    offers = set()
    for route in ADMIN_ROUTES:
        words = route.path.split("/")
        is_begun = len(words) > len(typed) and all(
            word == part or word.startswith("{") for word, part in zip(words, typed, strict=False)
        )
        if is_begun and route.method == (parsed_args.method or route.method):
            word = words[len(typed)]
            names = complete_thread(unquote(begun), parsed_args) if word == "{thread}" else [word]
            end = "/" if len(words) > len(typed) + 1 else ""
            offers |= {"/".join([*typed, quote(name, safe="{}")]) + end for name in names}
    return sorted(offers)


def _sort_names(names: Iterable[str]) -> list[str]:
    """Return the names that can be shown: a shell prints them as they are."""
    return sorted({name for name in names if name.isprintable()})


def _find_threads(prefix: str, parsed_args: argparse.Namespace) -> Sequence[ThreadInfo]:
    """Return the first threads that have a name or a title with this prefix."""
    from om_proxy.storage.values.listing import ThreadSelection  # noqa: PLC0415 - takes 0.1 s

    selection = ThreadSelection(getattr(parsed_args, "tenant", None), prefix=prefix or None)

    async def list_threads(store: Store) -> Sequence[ThreadInfo]:
        return (await store.find_threads(selection, None, MAX_COMPLETIONS)).threads

    return _read_store(parsed_args, list_threads)


def _read_store(
    parsed_args: argparse.Namespace, read: Callable[[Store], Awaitable[Sequence[_Found]]]
) -> Sequence[_Found]:
    """Return what `read` finds in the store; without a store that can be read, nothing."""
    from om_proxy.cli.store_command import run_with_store  # noqa: PLC0415 - takes 0.4 s

    found: list[_Found] = []

    async def collect(options: argparse.Namespace, settings: Settings, store: Store) -> int:
        found.extend(await read(store))
        return DONE

    with suppress(OmError):  # a shell can show no error at this place
        run_with_store(argparse.Namespace(config=getattr(parsed_args, "config", None)), collect)
    return found
