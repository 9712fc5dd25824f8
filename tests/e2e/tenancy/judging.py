"""Judges mutants: each is written into a copy of the package, and its tests run in a child process.

A child is forked after everything was imported that no mutant changes, so that it takes a third of
a second. Only a test that fails notices a mutant; a test that is not found does not.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.e2e.tenancy.mutants import ROOT, Mutant

THIRD_PARTY_MODULES = """aiohttp aiosqlite asyncpg cryptography.hazmat.primitives.ciphers.aead hypothesis
hypothesis.stateful httpx msgspec opentelemetry orjson pdb pydantic pytest pytest_asyncio redis.asyncio starlette Stemmer
structlog tiktoken tomllib unittest.mock uvicorn uvicorn.protocols.http.httptools_impl uvloop xml.etree.ElementTree
yaml"""
# what `tests/storage` imports and the import contracts keep from importing the storage; all that is in a package
MODULES_BELOW_STORAGE = """agents common engine.memory_cache.held_memories
management.moving.value_decoding memory observability.facts observability.logs settings wire"""
# what the tests of each server import, and no server
MODULES_BELOW_SERVERS = """om_proxy.storage.sqlite.store tests.conftest tests.storage.contract tests.storage.key_rotation_contract
tests.storage.tenant_contract"""
# Plugins are named, for to look for them takes longer than most tests; a seed makes a property's
# examples the same in each run.
PYTEST = (
    *("-p", "pytest_asyncio.plugin", "-p", "_hypothesis_pytestplugin", "--hypothesis-seed=0"),
    # pytest's own way to show a failure reads all modules
    *("-p", "no:cacheprovider", "--assert=plain", "--tb=native"),
)
# A mutant may wait or turn for ever: the system ends it, and it is noticed. Nothing else comes near
# these limits: the first is of the processor's time, and a busy machine takes long for anything.
MAX_CHILD_CPU_S = 300
CHILD_TIMEOUT_S = 1_800
MAX_TIMED_FAILURES = 5


@dataclass
class FailureTimes:
    """A pytest plugin that writes how long each failing test took, in seconds, at once: a later test
    may turn for ever."""

    file: Path
    seconds: dict[str, float] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.seconds[report.nodeid] = report.duration
            self.file.write_text(json.dumps(self.seconds), encoding="utf-8")


class Judge:
    """Runs tests of a copy of the package, which stands in `folder`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.changed_packages: tuple[str, ...] = ("om_proxy",)
        for name in ("proxy", "tests"):
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, folder / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", folder)
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        for name in THIRD_PARTY_MODULES.split():
            importlib.import_module(name)

    @property
    def output(self) -> str:
        """The end of what the last child printed."""
        return (self.folder / "output").read_text(errors="replace")[-3_000:]

    def preload_below_storage(self) -> None:
        """Import from the copy what stands below the storage. From now on only mutants of the
        storage can be judged."""
        _import_from(self.folder)
        for name in MODULES_BELOW_STORAGE.split():
            module = importlib.import_module(f"om_proxy.{name}")
            for below in pkgutil.walk_packages(
                getattr(module, "__path__", ()), f"om_proxy.{name}."
            ):
                importlib.import_module(below.name)
        self._keep_unloaded("om_proxy.storage")

    def preload_below_servers(self) -> None:
        """Import from the copy what the storage on servers stands on, and what its tests share. From
        now on only mutants of that storage can be judged."""
        for name in MODULES_BELOW_SERVERS.split():
            importlib.import_module(name)
        self._keep_unloaded("om_proxy.storage.postgres", "om_proxy.storage.redis")

    def _keep_unloaded(self, *packages: str) -> None:
        """Judge only mutants of these packages from now on: the children import nothing else anew."""
        self.changed_packages = packages
        loaded = [name for name in sys.modules if name.startswith(packages)]
        if loaded:
            raise LookupError(f"{loaded} would not be imported again: change what is preloaded")

    def run_tests(self, mutant: Mutant | None, arguments: Sequence[str]) -> int:
        """Return pytest's exit status: 0 passed, 1 failed, 2 to 5 were not run; below 0 the signal
        that ended the child."""
        return self._run(mutant, lambda: _run_pytest(arguments, None))

    def time_failures(self, mutant: Mutant, arguments: Sequence[str]) -> dict[str, float]:
        """Return the first tests that fail, and how long each takes."""
        file = self.folder / "failures.json"
        file.unlink(missing_ok=True)
        enough = f"--maxfail={MAX_TIMED_FAILURES}"
        self._run(mutant, lambda: _run_pytest([enough, *arguments], FailureTimes(file)))
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.exists() else {}

    def run_worlds(self, mutant: Mutant | None, worlds: Sequence[str], operations: int) -> int:
        """Return 0 if no tenants met in these worlds, with so many operations each."""

        def run() -> int:
            judged = importlib.import_module("tests.e2e.tenancy.__main__").judged
            return 1 if judged(worlds, operations * len(worlds), 0) else 0

        return self._run(mutant, run)

    def _run(self, mutant: Mutant | None, run: Callable[[], int]) -> int:
        shutil.rmtree(self.folder / ".hypothesis", ignore_errors=True)
        if mutant is None:
            return self._fork(run, write_bytecode=True)
        folders = tuple(f"proxy/{package.replace('.', '/')}/" for package in self.changed_packages)
        if not mutant.path.startswith(folders):
            raise LookupError(f"{mutant}: its module may be imported already")
        file = self.folder / mutant.path
        text = file.read_text(encoding="utf-8")
        made = file.stat()
        file.write_text(mutant.apply(text), encoding="utf-8")
        try:
            return self._fork(run, write_bytecode=False)
        finally:
            file.write_text(text, encoding="utf-8")
            # so that what was compiled of it counts again
            os.utime(file, ns=(made.st_atime_ns, made.st_mtime_ns))

    def _fork(self, run: Callable[[], int], *, write_bytecode: bool) -> int:
        child = os.fork()
        if not child:
            os._exit(self._run_in_child(run, write_bytecode))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])

    def _run_in_child(self, run: Callable[[], int], write_bytecode: bool) -> int:
        # what is compiled of a mutant must not outlive it
        sys.dont_write_bytecode = not write_bytecode
        resource.setrlimit(resource.RLIMIT_CPU, (MAX_CHILD_CPU_S, MAX_CHILD_CPU_S))
        signal.alarm(CHILD_TIMEOUT_S)
        os.chdir(self.folder)
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        try:
            _import_from(self.folder)
            return run()
        except BaseException:  # whatever a mutant dies of is noticed
            traceback.print_exc()
            return 1
        finally:
            sys.stdout.flush()


def _import_from(folder: Path) -> None:
    """Import the package and its tests from this tree. What is imported from it already stays."""
    if sys.path[0] == str(folder):
        return
    ours = {ROOT, ROOT / "proxy", folder, folder / "proxy"}
    others = [path for path in sys.path if Path(path or ".").resolve() not in ours]
    sys.path[:] = [str(folder), str(folder / "proxy"), *others]
    for name in [name for name in sys.modules if name.partition(".")[0] == "tests"]:
        del sys.modules[name]


def _run_pytest(arguments: Sequence[str], plugin: object | None) -> int:
    pytest = importlib.import_module("pytest")
    return int(pytest.main([*PYTEST, *arguments], plugins=[plugin] if plugin else []))
