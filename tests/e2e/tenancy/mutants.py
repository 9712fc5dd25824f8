"""The package with one tenant taken out of it at a time: every time, a test must notice.

A mutant is one change of the text of a copy of `proxy/`. Predicates on the tenant in SQL are found
by their form, so that a new one is among them by itself; what else keeps tenants apart is listed.
Each mutant is judged by the tests of its floor and then, if those let it live, by a small world of
sixteen tenants.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOADED = """aiohttp aiosqlite hypothesis httpx msgspec orjson pydantic pytest pytest_asyncio starlette structlog tiktoken uvicorn uvloop
watchfiles yaml"""  # what takes long to import
PYTEST = ("-x", "-p", "no:cacheprovider", "--assert=plain")
STORE = (
    "-k",
    "tenants or reaches or parked or moved",
    "tests/storage/sqlite/test_store_tenants.py",
    "tests/storage/sqlite/test_store.py",
)
IDENTITY = (
    "tests/identity/test_callers.py",
    "tests/identity/test_thread_names.py",
    "tests/identity/test_tenants.py",
    "tests/identity/test_local_requests.py",
    "tests/identity/test_header_values.py",
    "tests/identity/test_keyed_hashes.py",
    "tests/identity/test_user_token.py",
    "tests/edge/test_edge_config.py",
)
PREDICATE = re.compile(r"tenant = (\?\d?)")
# Kept for the reader and the index: a version is given once in a file, so it names the thread
# alone.
WITHIN = 30  # seconds a mutant may take; one that hangs is noticed too
# A list of resources only says where to look: what is done in each names the tenant again.
SAME_WITHOUT = ("version = ? RETURNING id, version", "SELECT DISTINCT resource")


@dataclass(frozen=True)
class Mutant:
    """`old` stands in `file` at `at`, or anywhere (None); a folder stands for the one file in it
    that holds it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    worlds: tuple[str, ...] = ("credentials",)
    at: int | None = None

    def __str__(self) -> str:
        line = (
            ""
            if self.at is None
            else f":{(ROOT / self.file).read_text().count(chr(10), 0, self.at) + 1}"
        )
        return f"{self.file}{line}: {' '.join(self.old.split())} → {' '.join(self.new.split())}"

    @property
    def path(self) -> str:
        """The file, from the root."""
        if not (ROOT / self.file).is_dir():
            return self.file
        files = [
            f
            for f in (ROOT / self.file).rglob("*.*")
            if f.suffix in {".py", ".sql"} and self.old in f.read_text(encoding="utf-8")
        ]
        if len(files) != 1:
            raise LookupError(
                f"{self}: stands in {len(files)} files; change this mutant as the code was changed"
            )
        return str(files[0].relative_to(ROOT))

    def applied(self, text: str) -> str:
        start = text.find(self.old) if self.at is None else self.at
        if start < 0:
            raise LookupError(
                f"{self}: stands there no more; change this mutant as the code was changed"
            )
        return text[:start] + self.new + text[start + len(self.old) :]


def predicates() -> Iterator[Mutant]:
    """Every predicate on the tenant in the storage's SQL."""
    for file in sorted((ROOT / "proxy/om_proxy/storage").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for found in PREDICATE.finditer(text):
            line = text[text.rfind("\n", 0, found.start()) : text.find("\n", found.start())]
            if not any(same in line for same in SAME_WITHOUT):
                name, new = str(file.relative_to(ROOT)), f"{found[1]} IS NOT NULL"
                yield Mutant(
                    name, found[0], new, STORE, ("credentials", "shared"), at=found.start()
                )


_STORAGE = "proxy/om_proxy/storage"
_IDENTITY, _TOKEN, _SITE = (
    "proxy/om_proxy/identity",
    "proxy/om_proxy/identity/user_token.py",
    "proxy/om_proxy/edge/edge_config.py",
)
_MEMORIES, _DUE_WORK = "proxy/om_proxy/memory_cache.py", "proxy/om_proxy/background/due_work.py"
_POLICY = "proxy/om_proxy/policy/policy.py"
_HMAC = '.encode("latin-1"), hashlib.sha256).hexdigest()'
_CACHED = "cached = self._cached.get(key)\n        "
_STANDS = "if cached and await self.store.version(key) == cached.version:"
_ANYBODY_S = (
    "cached = next((c for k, c in self._cached.items() if k[1:] == key[1:]), None)\n        "
)
OTHERS = (
    Mutant(
        _STORAGE,
        "(lease.tenant, lease.resource, lease.thread)",
        "('', lease.resource, lease.thread)",
        STORE,
    ),
    Mutant(
        _STORAGE,
        "(thread.tenant, thread.resource, thread.thread)",
        "(lease.tenant, thread.resource, thread.thread)",
        STORE,
    ),
    Mutant(_STORAGE, "UNIQUE (tenant, resource, thread)", "UNIQUE (resource, thread)", STORE),
    Mutant(
        _STORAGE, "PRIMARY KEY (tenant, resource, thread)", "PRIMARY KEY (resource, thread)", STORE
    ),
    # who the tenant is
    Mutant(_IDENTITY, f"credential{_HMAC}", f"credential[:4]{_HMAC}", IDENTITY),
    Mutant(_IDENTITY, "key = Key(tenant, ", 'key = Key("", ', IDENTITY),
    Mutant(
        _IDENTITY,
        "return LOCAL_TENANT if rules.loopback_only and is_local_request(values_by_name) else None",
        "return LOCAL_TENANT",
        IDENTITY,
    ),
    Mutant(_IDENTITY, "[*CREDENTIAL_HEADERS, MODE_HEADER", "[MODE_HEADER", IDENTITY),
    Mutant(_IDENTITY, "if len(credentials) > 1:", "if len(credentials) > 9:", IDENTITY),
    Mutant(
        _IDENTITY,
        "if hmac.compare_digest(sent_hash, key_hash):",
        "if sent_hash:",
        IDENTITY,
        ("keys",),
    ),
    Mutant(
        _IDENTITY,
        "return _read_credential(values_by_name, GATEWAY_KEY_HEADERS) or credential",
        "return credential",
        IDENTITY,
        ("keys",),
    ),
    Mutant(_IDENTITY, "and _match_key(credential, rules) is None", "", IDENTITY, ("keys",)),
    Mutant(_IDENTITY, "if len(values) > 1:\n", "if len(values) > 9:\n", IDENTITY),
    Mutant(_IDENTITY, 'b"fingerprint\\0" + tenant.encode()', 'b"fingerprint\\0"', IDENTITY),
    Mutant(_TOKEN, "if claims.tenant != tenant:", "if False:", IDENTITY, ("keys",)),
    Mutant(
        _SITE, "if own else self.own_headers", "if True else self.own_headers", IDENTITY, ("keys",)
    ),
    Mutant(
        "proxy/om_proxy/edge/admin/access.py",
        "own = find_tenant(",
        'own = query.get("tenant") or find_tenant(',
    ),
    # what is remembered by tenant
    Mutant(
        _POLICY,
        "key = (model, resource, upstream.name, credential)",
        "key = (model, resource, upstream.name)",
    ),
    Mutant(
        "proxy", "fingerprint_key(self.secret, key.tenant)", 'fingerprint_key(self._secret, "")'
    ),
    Mutant(
        _DUE_WORK,
        "self._contexts.get(key)",
        "next((c for k, c in self._contexts.items() if k[1:] == key[1:]), None)",
    ),
    Mutant(_MEMORIES, f"{_CACHED}{_STANDS}", f"{_ANYBODY_S}if cached:"),
    Mutant(_MEMORIES, f"{_CACHED}return", f"{_ANYBODY_S}return"),
)


def copied(folder: Path) -> None:
    """The package and its tests, as a tree of their own."""
    for name in ("proxy", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)


def noticed(folder: Path, mutant: Mutant | None, operations: int) -> bool:
    """Whether a test of this mutant fails, in a process of its own; of no mutant at all: whether
    any of them does."""
    file = folder / mutant.path if mutant else None
    text = file.read_text(encoding="utf-8") if file else ""
    if file and mutant:
        file.write_text(mutant.applied(text), encoding="utf-8")
    try:
        child = os.fork()
        if not child:
            os._exit(_failing(folder, mutant, operations))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0
    finally:
        if file:
            file.write_text(text, encoding="utf-8")


def _failing(folder: Path, mutant: Mutant | None, operations: int) -> int:
    """In the child, which has imported nothing of ours: 0 if all is as it should be."""
    pytest = importlib.import_module("pytest")
    sys.dont_write_bytecode = (
        mutant is not None
    )  # what was compiled of the mutant must not outlive it
    signal.alarm(WITHIN)  # which ends the process
    os.chdir(folder)
    ours = {ROOT, ROOT / "proxy"}
    others = [path for path in sys.path if Path(path or ".").resolve() not in ours]
    sys.path[:] = [str(folder), str(folder / "proxy"), *others]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]
    said = os.open("said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    tests, worlds = (
        (mutant.tests, mutant.worlds) if mutant else ((), ("credentials", "keys", "shared"))
    )
    try:
        selections = [tests] if mutant else [STORE, IDENTITY]
        if any(tests and pytest.main([*PYTEST, *tests]) for tests in selections):
            return 1
        run = importlib.import_module("tests.e2e.tenancy.__main__")
        return 1 if operations and run.judged(worlds, operations * len(worlds), 0) else 0
    except BaseException:  # whatever a mutant dies of is noticed
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()


def survivors(mutants: Sequence[Mutant], operations: int) -> list[str]:
    """The mutants that nothing notices; tells of each."""
    for name in LOADED.split():  # once for all children
        importlib.import_module(name)
    living = []
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        copied(folder)
        if noticed(folder, None, operations):
            print((folder / "said").read_text(errors="replace")[-3_000:])
            return ["the package as it is: its own tests fail"]
        for mutant in mutants:
            began = time.perf_counter()
            seen = noticed(folder, mutant, operations)
            living += [] if seen else [str(mutant)]
            print(
                f"{'noticed' if seen else 'SURVIVED'} in {time.perf_counter() - began:.1f} s  {mutant}",
                flush=True,
            )
    return living


def main() -> int:
    asked = argparse.ArgumentParser(prog="scripts/tenancy --mutants", description=__doc__)
    asked.add_argument(
        "--operations", type=int, default=320, help="in each world that judges a mutant"
    )
    asked.add_argument(
        "--quick",
        action="store_true",
        help="every predicate and some of the others, judged by the tests of their floor",
    )
    given = asked.parse_args()
    mutants = [*predicates(), *([m for m in OTHERS if m.tests][::4] if given.quick else OTHERS)]
    living = survivors(mutants, 0 if given.quick else given.operations)
    print(f"{len(mutants)} mutants, {len(living)} survived")
    return 1 if living else 0


if __name__ == "__main__":
    sys.exit(main())
