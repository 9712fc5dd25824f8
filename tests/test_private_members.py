"""What we use of libraries beside their promises: named here, with the reason, and held by an upper
bound on the library.

A release may take such a member away without a word. So a new use fails here until somebody says
why there is no public way, and a member that has gone fails here before it fails in a server.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import sys
import textwrap
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "proxy"
DEEP = {"aiohttp", "uvicorn"}  # of these a module below the package's own is no promise either
OF_NAMED_TUPLES = {
    "_replace",
    "_asdict",
    "_make",
    "_fields",
}  # public; the underscore keeps them off the fields' names

_CYCLE = "uvicorn.protocols.http.httptools_impl.RequestResponseCycle"
_ITS_CYCLE = (
    "uvicorn",
    "a request as uvicorn answers it; ASGI has no word for how a reply is framed",
)

# module of ours → member → its library, and why there is no other way
USED: dict[str, dict[str, tuple[str, str]]] = {
    "om_proxy.agents.models.encodings": {
        "_mergeable_ranks": (
            "tiktoken",
            "27 MB of an encoding that only pickling reads; nothing public lets go of them",
        ),
    },
    "om_proxy.cli.workers": {
        "_exit": (
            "os",
            "public in spite of its name: it ends the process without a write to shared memory",
        ),
    },
    "om_proxy.wire.server.graceful_server": {
        "_exit": ("os", "public in spite of its name: it ends the process at once"),
    },
    "om_proxy.wire.server.protocol": {
        _CYCLE: _ITS_CYCLE,
        "_start_asgi_task": (
            "uvicorn",
            "the one place where a request begins to be served, at once or after the one before it",
        ),
    },
    "om_proxy.wire.server.upgrade": {
        "uvicorn.protocols.http.httptools_impl.HttpToolsProtocol": (
            "uvicorn",
            "the protocol that ours is made from",
        ),
        "_unsupported_upgrade_warning": (
            "uvicorn",
            "called when the parser stops at an upgrade; the body must be read on there",
        ),
    },
    "om_proxy.memory.transcript.sent_history": {
        "hashlib._Hash": ("hashlib", "the type of a hash, for the type checker only")
    },
    "om_proxy.storage.sqlite.connection_worker": {
        "_execute": (
            "aiosqlite",
            "several statements in one hop to the connection's thread; its own methods hop for each",
        ),
        "_conn": ("aiosqlite", "the connection of sqlite3 for that work"),
    },
    "om_proxy.wire.upstream.connection": {
        "aiohttp.client_proto.ResponseHandler": (
            "aiohttp",
            "the protocol that ours is made from: whose answer a packet is",
        ),
        "aiohttp.http_exceptions.HttpProcessingError": ("aiohttp", "what its parser raises"),
        "_drop_timeout": (
            "aiohttp",
            "replaced: one deadline that moves, and not a timer for each piece of a stream",
        ),
        "_reschedule_timeout": ("aiohttp", "replaced: as _drop_timeout"),
        "_on_read_timeout": (
            "aiohttp",
            "ends a request whose server is too slow, as aiohttp itself does",
        ),
        "_reading_paused": (
            "aiohttp",
            "whether there is anything to resume: aiohttp parses again after each piece that is read",
        ),
        "_read_timeout": ("aiohttp", "the read timeout of the request that is under way"),
        "_loop": ("aiohttp", "the event loop, for the clock"),
        "_exception": (
            "aiohttp",
            "why the parser failed; aiohttp leaves the body's reader waiting",
        ),
        "_payload": (
            "aiohttp",
            "the body being read: whether it has ended, and whether anybody waits for it",
        ),
        "_waiter": ("aiohttp", "whether a reader waits; without one the server is not late"),
        "_parser": ("aiohttp", "whether a head of an answer that nobody asked for has begun"),
        "_should_close": ("aiohttp", "marks a connection that must serve no other request"),
    },
    "om_proxy.wire.upstream.transport": {
        "aiohttp.client_proto.ResponseHandler": ("aiohttp", "what a connector makes"),
        "_create_connection": ("aiohttp", "makes a new connection: ours goes by running time"),
        "_factory": ("aiohttp", "puts our protocol into its connections"),
        "_loop": ("aiohttp", "the event loop that the connector's protocols get"),
        "aiohttp.http_exceptions.HttpProcessingError": ("aiohttp", "what its parser raises"),
        "_buffer": (
            "aiohttp",
            "whether the next read waits for the server, whose time begins then",
        ),
        "_protocol": ("aiohttp", "the connection that a body is read from"),
        "_read_nowait": (
            "aiohttp",
            "what came before a body broke off belongs to the client; the public way raises ahead of it",
        ),
    },
}


def modules() -> list[str]:
    names = [file.relative_to(SOURCES).with_suffix("") for file in sorted(SOURCES.rglob("*.py"))]
    return [
        ".".join(name.parts).removesuffix(".__init__") for name in names if name.name != "__main__"
    ]


@pytest.mark.parametrize("name", modules())
def test_every_private_member_is_named(name: str) -> None:
    """With its reason, in the table above; and what the table names is used."""
    module = importlib.import_module(name)
    assert set(found_in(inspect.getsource(module), name)) == set(USED.get(name, {}))


def test_the_table_names_modules_of_ours() -> None:
    assert set(USED) <= set(modules())


@pytest.mark.parametrize(
    "library", sorted({library for used in USED.values() for library, _ in used.values()})
)
def test_their_libraries_have_an_upper_bound(library: str) -> None:
    """The next release waits until our tests have run with it."""
    if library in sys.stdlib_module_names:
        return
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (requirement,) = [text for text in project["dependencies"] if re.match(rf"{library}\b", text)]
    assert "<" in requirement


MEMBERS_BY_KIND_OF_USE = {
    "of another's object": ("def f(other): return other._hidden", {"_hidden"}),
    "by its name": ("def f(other): return getattr(other, '_hidden', None)", {"_hidden"}),
    "written": ("def f(other): other._hidden = 1", {"_hidden"}),
    "imported": ("from library import _hidden", {"library._hidden"}),
    "of a private module": ("from library._hidden import shown", {"library._hidden.shown"}),
    "a private module": ("import library._hidden", {"library._hidden"}),
    "a deep module": (
        "from aiohttp.client_proto import ResponseHandler",
        {"aiohttp.client_proto.ResponseHandler"},
    ),
    "inherited": (
        "import asyncio\nclass A(asyncio.Queue):\n def f(self): return self._unfinished_tasks",
        set(),
    ),
    "of its own": ("class A:\n def __init__(self, a): self._x = a._x", set()),
    "of a named tuple": ("def f(other): return other._replace(a=1)", set()),
    "special": ("def f(other): return other.__dict__", set()),
    "public": ("from aiohttp import ClientSession", set()),
}


@pytest.mark.parametrize("case", MEMBERS_BY_KIND_OF_USE)
def test_what_is_found(case: str) -> None:
    """Each kind of use, and none that is none."""
    source, members = MEMBERS_BY_KIND_OF_USE[case]
    assert set(found_in(source, "om_proxy")) == members


def test_what_is_inherited_is_found() -> None:
    """What a class of ours reads, calls or replaces of a library's class."""
    found = found_in(
        inspect.getsource(importlib.import_module("om_proxy.wire.server.protocol")),
        "om_proxy.wire.server.protocol",
    )
    assert "_start_asgi_task" in set(found)


def found_in(source: str, name: str) -> Iterator[str]:
    """The private members of others that a module uses."""
    nodes = list(ast.walk(ast.parse(source)))
    yield from list_imported(nodes)
    own = list_defined(nodes)
    for node in nodes:
        member = reached(node)
        if member is not None and is_private(member) and member not in own:
            yield member
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            yield from inherited(node, name)


def list_imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and not node.module.startswith("om_proxy")
        ):
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            is_deep = "." in node.module and node.module.partition(".")[0] in DEEP
            yield from (name for name in whole if is_deep or any(map(is_private, name.split("."))))
        elif isinstance(node, ast.Import):
            yield from (
                alias.name for alias in node.names if any(map(is_private, alias.name.split(".")))
            )


def reached(node: ast.AST) -> str | None:
    """The member of another object that a node means."""
    if isinstance(node, ast.Attribute):
        is_own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        return None if is_own else node.attr
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "setattr")
    ):
        name = node.args[1]
        return (
            name.value if isinstance(name, ast.Constant) and isinstance(name.value, str) else None
        )
    return None


def inherited(node: ast.ClassDef, name: str) -> Iterator[str]:
    """What a class of ours uses or replaces of what a library's class keeps to itself."""
    kind = getattr(importlib.import_module(name), node.name, None)
    if not isinstance(kind, type):  # made within a function
        return
    theirs = {member for base in kind.__mro__ if is_foreign(base) for member in kept_by(base)}
    if theirs:  # seldom
        yield from sorted(theirs & members_of(node))


def is_foreign(kind: type) -> bool:
    package = kind.__module__.partition(".")[0]
    return package != "om_proxy" and package not in sys.stdlib_module_names


@cache
def kept_by(kind: type) -> frozenset[str]:
    """The private members of a library's class, as far as its source can be read."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):  # written in C
        return frozenset(filter(is_private, vars(kind)))
    return frozenset(filter(is_private, members_of(ast.parse(source)) | set(vars(kind))))


def members_of(tree: ast.AST) -> set[str]:
    """What a class defines, or reaches through `self` and `super()`."""
    nodes = list(ast.walk(tree))
    reached = {
        node.attr for node in nodes if isinstance(node, ast.Attribute) and is_of_self(node.value)
    }
    return {member for member in reached | list_defined(nodes) if is_private(member)}


def is_of_self(node: ast.expr) -> bool:
    is_super = (
        isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "super"
    )
    return is_super or (isinstance(node, ast.Name) and node.id in ("self", "cls"))


def list_defined(nodes: Iterable[ast.AST]) -> set[str]:
    """Names of functions, of annotated fields, and of what is assigned to `self`."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and is_of_self(node.value)
        ):
            names.add(node.attr)
    return names


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES
