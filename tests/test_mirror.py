"""The tests mirror the tree: what holds of a module stands in the file of its name, and a file's
name says its module.

A folder of `om_proxy` is a room; the tests of proxy/om_proxy/<room>/<module>.py are
tests/<room>/test_<module>.py, and tests/<room>/test_<module>_<aspect>.py where one file would be
too long. Where a name says it otherwise, a table says why.
"""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "proxy" / "om_proxy"
TESTS = ROOT / "tests"
# every decision is made in these, by value: each module can be tested alone
PURE_ROOMS = ("memory", "settings/identity", "wire/apis")
ROOMS = (
    ".",
    *sorted(
        path.parent.relative_to(PACKAGE).as_posix() for path in PACKAGE.glob("*/**/__init__.py")
    ),
)

# test file → what it is about, where that is no module of its room
TESTS_OF_SEVERAL_MODULES = {
    "agents/test_several_threads.py": "observer and reflector, with the messages of several threads in one call",
    "memory/test_behaviour_tables.py": "the tables of docs/contributing/behaviour.md, whichever module holds a row",
    "memory/test_clients_simulation.py": "turns after turns of made-up clients, through all of reconciling",
    "edge/test_carried.py": "what of a request goes along with memory's own calls: code and page agree",
    "wire/upstream/test_tls.py": "all of the room, behind TLS",
    "management/moving/test_round_trips.py": "exports of any threads, between stores of all kinds",
    "storage/sqlite/test_ended_process.py": "what stands in a file after a process ended anywhere",
    "storage/postgres/test_ended_process.py": "what stands in a schema after a process ended anywhere",
    "storage/redis/test_ended_process.py": "what stands in a server after a process ended anywhere",
    "storage/redis/test_races.py": "what several processes do at once on one server",
    "storage/postgres/test_failover.py": "what stands of a server that lost its newest commits",
    "storage/postgres/test_starts.py": "processes that start together, or while another one migrates",
    "storage/postgres/test_races.py": "what several processes do at once on one server",
    "storage/sqlite/test_totals.py": "how sums over a file are read page by page",
    "storage/sqlite/test_listing.py": "how many rows of a file a page of a list looks at",
    "storage/sqlite/test_key_rows.py": "the master key of a file is changed while it is used",
    "storage/postgres/test_key_rows.py": "the master key of a schema is changed while it is used",
    "testing/test_examples.py": "the example in the docstring of om_proxy.testing",
    "proof/test_planted.py": "planted facts, from the messages to the prompt of a question",
    "proof/test_import.py": "the command import --from, from each reader to the client that goes on",
    "cli/demo/test_one_ledger.py": "the demo's sums in five places, beside what was sent",
    "wire/apis/test_bounds.py": "how much a body may make any module of the room do",
    "wire/apis/test_invariants.py": "what holds of the prompts of each API, with messages that came by any",
    "test_citations.py": "what code and tests cite of docs/contributing",
    "test_cut_off_answers.py": "what becomes of a cut-off memory answer, from the agents to the store",
    "test_examples.py": "examples/",
    "test_forgetting.py": "forgetting beside turns, observations and reflections under way",
    "test_long_forms.py": "which cases of a test run by default",
    "test_mirror.py": "this rule",
    "test_private_members.py": "what the code uses of libraries beyond their public names",
    "test_profiles.py": "docs/guides/profiles.md",
    "test_project.py": "locks, scripts, image",
    "test_rooms.py": "how many rooms there are, and how many know each other",
    "test_small_models.py": "the list of small models, from its file to what a server is asked",
    "test_spooled_threads.py": "observing, while the store is away",
    "test_supply.py": "scripts/audit",
    "test_wheel.py": "the wheel and the sdist",
    "test_words.py": "scripts/words",
}

# module of a pure room → where its rules are tested
MODULES_TESTED_ELSEWHERE = {
    "wire/apis/chat/reply_frame.py": "wire/apis/chat/test_reply.py",
    "settings/identity/identity_rules.py": "settings/identity/test_callers.py",
    "memory/transcript/stored_transcript.py": "memory/transcript/test_reconcile.py",
    "memory/model.py": "memory/lifecycle/test_decisions.py",
    "memory/transcript/sent_history.py": "memory/prompt/test_prompt_cost.py",
    "wire/apis/registry.py": "wire/apis/test_message_parts.py",
    "wire/apis/chat/look_ups/rounds.py": "wire/apis/chat/look_ups/test_splice.py",
}


def find_modules(room: str) -> set[str]:
    return {file.stem for file in (PACKAGE / room).glob("*.py") if not file.stem.startswith("__")}


def find_subjects(room: str) -> set[str]:
    """The names that a test file of the room may begin with."""
    places = [*(PACKAGE / room).iterdir(), *(TESTS.iterdir() if room == "." else ())]
    # a whole room in one file, or the tests of a folder of helpers, such as bench
    return find_modules(room) | {path.name for path in places if path.is_dir()}


def is_about(test: str, subject: str) -> bool:
    return test == f"test_{subject}" or test.startswith(f"test_{subject}_")


@pytest.mark.parametrize("room", ROOMS)
def test_a_test_file_is_named_after_a_module_of_its_room(room: str) -> None:
    """Or stands in the table; and no name stands there that would say it by itself."""
    subjects = find_subjects(room)
    unlike = {
        file.relative_to(TESTS).as_posix()
        for file in (TESTS / room).glob("test_*.py")
        if not any(is_about(file.stem, subject) for subject in subjects)
    }
    assert unlike == {name for name in TESTS_OF_SEVERAL_MODULES if Path(name).parent == Path(room)}


@pytest.mark.parametrize(
    "room",
    [room for room in ROOMS if f"{room}/".startswith(tuple(f"{pure}/" for pure in PURE_ROOMS))],
)
def test_each_pure_module_has_a_test_file_of_its_name(room: str) -> None:
    """Or stands in the table, with the file that tests its rules."""
    tests = {file.stem for file in (TESTS / room).glob("test_*.py")}
    without = {
        (Path(room) / f"{module}.py").as_posix()
        for module in find_modules(room)
        if not any(is_about(test, module) for test in tests)
    }
    assert without == {name for name in MODULES_TESTED_ELSEWHERE if Path(name).parent == Path(room)}


def test_the_tables_name_files_that_exist() -> None:
    """So a file that was moved takes its row with it."""
    assert [name for name in TESTS_OF_SEVERAL_MODULES if not (TESTS / name).is_file()] == []
    for module, test in MODULES_TESTED_ELSEWHERE.items():
        assert (PACKAGE / module).is_file(), module
        assert (TESTS / test).is_file(), test
