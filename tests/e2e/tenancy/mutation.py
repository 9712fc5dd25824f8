"""The package with one tenant taken out of it at a time: every time, a test must notice.

The quick form runs for each mutant, or for every so many, the one test that `noticed_by.json` names.
The long form judges a mutant that this test lets live by all tests of its floor, and then by a small world of sixteen
tenants. `--learn` looks for the tests of mutants that the table does not know, or whose test does
not notice them any more, and writes the table.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path

from tests.e2e.tenancy.judging import Judge
from tests.e2e.tenancy.mutants import ROOT, Mutant, list_mutants
from tests.support import postgres_server, redis_server

HOW_TO_START = "start the servers of the tests with `scripts/servers up`"
# by the name of the mutant: the test that notices it soonest; null: only the worlds do
TABLE_FILE = Path(__file__).with_name("noticed_by.json")
HOW_TO_LEARN = (
    "run `scripts/servers up` and `scripts/tenancy --mutants --learn`, and commit noticed_by.json"
)
SERVERS = {"postgres": "Postgres", "redis": "Redis"}  # by the folder: its name in tests
# a test is written into the table when it has noticed the mutant alone so many times
NEEDED_NOTICES = 2
# pytest's exit statuses: a test is not found, or none is selected
NOTHING_RUN = (4, 5)


def load_table() -> dict[str, str | None]:
    return dict(json.loads(TABLE_FILE.read_text(encoding="utf-8"))) if TABLE_FILE.exists() else {}


def save_table(table: Mapping[str, str | None]) -> None:
    text = json.dumps(table, indent=1, sort_keys=True, ensure_ascii=False)
    TABLE_FILE.write_text(f"{text}\n", encoding="utf-8")


def find_differences(
    mutants: Mapping[str, Mutant], table: Mapping[str, str | None]
) -> Iterator[str]:
    """Yield what the table does not know, and what it knows that is no more. A mutant of the list
    whose text stands no more in the code is a LookupError."""
    for name, mutant in mutants.items():
        mutant.apply((ROOT / mutant.path).read_text(encoding="utf-8"))
        if name not in table:
            yield f"not in the table: {name}"
    yield from (f"there no more: {name}" for name in table if name not in mutants)


def find_server(place: str) -> str | None:
    """Return the folder of the backend that a file or test belongs to, if that is a server."""
    return next((folder for folder in SERVERS if f"/{folder}/" in place), None)


def name_for_server(test: str, folder: str) -> str:
    """Return what a test of SQLite is called with this backend: the contract is the same."""
    name = SERVERS[folder]
    test = test.replace("tests/storage/sqlite/", f"tests/storage/{folder}/")
    for sqlite in ("TestSqliteInMemory", "TestSqliteFile"):
        test = test.replace(f"::{sqlite}::", f"::Test{name}::")
    return test.replace("::TestSqliteTenants::", f"::Test{name}Tenants::")


def changes_storage(mutant: Mutant) -> bool:
    return "/storage/" in mutant.file


def is_noticed(judge: Judge, mutant: Mutant, test: str | None) -> bool:
    """Whether the test the table names fails, as a test and not because it is away."""
    if test is None:
        return False
    name = test.partition("[")[0].rpartition("::")[2]
    # to collect all of its class takes longer than to run it
    return judge.run_tests(mutant, ["-o", f"python_functions={name}", test]) == 1


def survives_all(judge: Judge, mutant: Mutant, operations: int) -> bool:
    """Whether neither the tests of its floor nor its worlds notice a mutant."""
    status = judge.run_tests(mutant, ["-x", *mutant.tests]) if mutant.tests else 0
    if status in NOTHING_RUN:
        raise LookupError(f"{mutant}: its tests were not run\n{judge.output}")
    if status:
        return False
    if mutant.worlds and operations:
        return not judge.run_worlds(mutant, mutant.worlds, operations)
    return True


def find_noticing_test(judge: Judge, mutant: Mutant, known: Sequence[str]) -> str | None:
    """Return the test that notices a mutant soonest: of those known, or of all of its floor."""
    for tests in [known, mutant.tests]:
        times = judge.time_failures(mutant, tests) if tests else {}
        for test in sorted(times, key=lambda test: (times[test], test)):
            notices = [is_noticed(judge, mutant, test) for _ in range(NEEDED_NOTICES)]
            if all(notices) and judge.run_tests(None, [test]) == 0:
                return test
    return None


def list_known_tests(mutant: Mutant, table: Mapping[str, str | None]) -> list[str]:
    """Return tests of the storage in the table, in words of the mutant's backend: few notice many.
    They take a fraction of the time that a whole floor takes."""
    if not changes_storage(mutant):
        return []
    found = set()
    server = find_server(mutant.file)
    for test in table.values():
        if test and test.startswith("tests/storage/"):
            found.add(name_for_server(test, server) if server else test)
    backend = f"/{server or 'sqlite'}/"
    return sorted(test for test in found if backend in test)


def learn_tests(judge: Judge, mutants: Mapping[str, Mutant], operations: int) -> list[str]:
    """Write the table. Return the mutants that nothing notices; they are not written."""
    table, survivors = load_table(), []
    # what SQLite's tests notice, those of the servers probably do
    for name, mutant in sorted(mutants.items(), key=lambda one: find_server(one[1].file) or ""):
        if (name in table and table[name] is None) or is_noticed(judge, mutant, table.get(name)):
            continue
        test = find_noticing_test(judge, mutant, list_known_tests(mutant, table))
        if test is None and survives_all(judge, mutant, operations):
            survivors.append(str(mutant))
            table.pop(name, None)
            print(f"SURVIVED  {mutant}", flush=True)
        else:
            table[name] = test
            print(f"{test or 'the worlds'}  {mutant}", flush=True)
        save_table({known: test for known, test in table.items() if known in list_mutants()})
    return survivors


def judge_mutants(judge: Judge, mutants: Mapping[str, Mutant], operations: int | None) -> list[str]:
    """Return the mutants that nothing notices, and tell of each. Without `operations`, nothing is
    asked but the table's tests."""
    table, survivors = load_table(), []
    for name, mutant in mutants.items():
        began = time.perf_counter()
        noticed = is_noticed(judge, mutant, table.get(name))
        if not noticed and operations is not None:
            noticed = not survives_all(judge, mutant, operations)
        if not noticed:
            survivors.append(str(mutant))
            print(f"{table.get(name)}:\n{judge.output}")
        word = "noticed" if noticed else "SURVIVED"
        print(f"{word} in {time.perf_counter() - began:.1f} s  {mutant}", flush=True)
    return survivors


def list_servers() -> set[str]:
    """Name the servers of the tests to the children, whose tree is a copy. Return the folders of
    those that are there."""
    for variable, file in (
        ("OM_TEST_POSTGRES_URL", postgres_server.ADDRESS_FILE),
        ("OM_TEST_PGBOUNCER_URL", postgres_server.POOLER_ADDRESS_FILE),
        ("OM_TEST_REDIS_URL", redis_server.ADDRESS_FILE),
    ):
        if not os.environ.get(variable) and file.exists():
            os.environ[variable] = file.read_text(encoding="utf-8").strip()
    return {one for one in SERVERS if os.environ.get(f"OM_TEST_{one.upper()}_URL")}


def check_unchanged_package(
    judge: Judge, table: Mapping[str, str | None], servers: Collection[str]
) -> int:
    """Return 0 if the table's tests pass on the package as it is."""
    there = {None, *servers}
    tests = {test for test in table.values() if test and find_server(test) in there}
    return judge.run_tests(None, sorted(tests)) if tests else 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/tenancy --mutants", description=__doc__)
    parser.add_argument(
        "--operations", type=int, default=320, help="in each world that judges a mutant"
    )
    parser.add_argument("--quick", action="store_true", help="only the tests of the table")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="judge every N-th mutant")
    parser.add_argument("--learn", action="store_true", help="write the table")
    options = parser.parse_args()
    mutants, table = list_mutants(), load_table()
    differences = list(find_differences(mutants, table))
    if differences and not options.learn:
        print(*differences, HOW_TO_LEARN, sep="\n")
        return 1
    servers = list_servers()
    if missing := SERVERS.keys() - servers:
        if options.learn or os.environ.get("OM_TEST_SERVERS") == "required":
            raise SystemExit(HOW_TO_START)
        print(f"NOT LOOKED AT ARE THE MUTANTS OF {sorted(missing)}: {HOW_TO_START}")
        mutants = {n: m for n, m in mutants.items() if find_server(m.file) not in missing}
    if options.quick:  # what only the worlds notice takes the long form
        mutants = {name: mutant for name, mutant in mutants.items() if table[name]}
    mutants = dict(islice(mutants.items(), None, None, options.every))
    with tempfile.TemporaryDirectory() as folder:
        judge = Judge(Path(folder))
        asked = {name: test for name, test in table.items() if name in mutants}
        if not options.learn and check_unchanged_package(judge, asked, servers) != 0:
            print(judge.output, "the package as it is: tests of the table fail", sep="\n")
            return 1
        survivors = []
        # in this order: afterwards, more of the package is imported for good
        of_servers = {name: mutant for name, mutant in mutants.items() if find_server(mutant.file)}
        of_storage = {name: mutant for name, mutant in mutants.items() if changes_storage(mutant)}
        kinds = (
            mutants.keys() - of_storage.keys(),
            of_storage.keys() - of_servers.keys(),
            of_servers,
        )
        preloads = (judge.preload_below_storage, judge.preload_below_servers, None)
        for kind, preload_for_next in zip(kinds, preloads, strict=True):
            mutants_of_a_kind = {name: mutant for name, mutant in mutants.items() if name in kind}
            if options.learn:
                survivors += learn_tests(judge, mutants_of_a_kind, options.operations)
            else:
                operations = None if options.quick else options.operations
                survivors += judge_mutants(judge, mutants_of_a_kind, operations)
            if preload_for_next:
                preload_for_next()
    print(f"{len(mutants)} mutants, {len(survivors)} survived", *survivors, sep="\n")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
