"""Honest answers that repeat themselves: true logs of what happened again and again.

Nothing here is chosen for being accepted. Most of it is what an observer writes that follows its
prompt badly, line for line; all of it would be lost if it were taken for a loop.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date, timedelta
from random import Random

from tests.agents.corpus.entry import Entry, sections, usable
from tests.agents.corpus.wordlist import WORDS, sentence

Lines = Iterator[str]
START = date(2026, 3, 1)


def entries() -> Iterator[Entry]:
    yield from (usable(f"honest/{name}", notes) for name, notes in sections("honest.txt"))
    for made in LOGS:
        notes = "\n".join(made()).rstrip()
        yield usable(f"honest/{made.__name__.replace('_', '-')}", notes)


def at(minute: int) -> str:
    return f"({minute // 60 % 24:02}:{minute % 60:02})"


def heading(day: int) -> str:
    when = START + timedelta(days=day)
    return f"Date: {when:%b} {when.day}, {when.year}"


# ── waiting and trying again ──────────────────────────────────────────────────────────────────────


def polling_every_minute() -> Lines:
    yield heading(0)
    for n in range(180):
        yield f"* 🟢 {at(540 + n)} Assistant polled deployment d-7741: status pending"
    yield f"* ✅ {at(720)} Deployment d-7741 is live"


def polling_three_jobs_in_turn() -> Lines:
    for n in range(120):
        yield f"* 🟢 {at(540 + n // 3)} Job {'abc'[n % 3]} polled: queued"


def polling_every_twenty_seconds() -> Lines:
    """Three equal lines a minute: the notes carry no seconds."""
    for n in range(60):
        yield f"* 🟢 {at(540 + n // 3)} Assistant polled the build: still queued"


def polling_every_five_seconds() -> Lines:
    for n in range(120):
        yield f"* 🟢 {at(540 + n // 12)} Assistant polled the build: still queued"


def polling_two_builds_every_five_seconds() -> Lines:
    for n in range(120):
        yield f"* 🟢 {at(540 + n // 12)} Assistant polled the build of {('core', 'site')[n % 2]}: still queued"


def polling_with_growing_percentages() -> Lines:
    for n in range(101):
        yield f"* 🟢 {at(600 + n // 2)} Download of `ranks.bin` at {n} %"


def retries_with_backoff() -> Lines:
    for n in range(1, 41):
        yield f"* 🟢 {at(600 + n)} Attempt {n} of 40 to upload `dump.tar`: HTTP 503, next in {min(2**n, 60)} s"
    yield f"* 🔴 {at(650)} User: give up after 40"


def retries_without_numbers() -> Lines:
    for n in range(40):
        yield f"* 🟢 {at(600 + 2 * n)} Upload of `dump.tar` tried again: connection reset by peer"


def heartbeats() -> Lines:
    for n in range(300):
        yield f"* 🟢 {at(n)} Heartbeat ok"


def no_new_mail() -> Lines:
    for n in range(96):
        yield f"* 🟢 {at(15 * n)} Inbox checked, no new mail"


def pings() -> Lines:
    yield f"* 🟢 {at(600)} Assistant pinged the gateway:"
    for n in range(1, 61):
        yield f"  64 bytes from 10.0.0.1: icmp_seq={n} ttl=64 time={0.3 + n % 7 / 100:.2f} ms"
    yield f"* ✅ {at(602)} No packet lost"


# ── tests and tools ───────────────────────────────────────────────────────────────────────────────


def test_runs() -> Lines:
    rng = Random(1)
    for n in range(70):
        yield f"* 🟢 {at(540 + 3 * n)} Assistant ran `pytest -q`: {212 - rng.randint(0, 3)} passed, {rng.randint(0, 3)} failed"


def test_runs_with_equal_results() -> Lines:
    for n in range(40):
        yield f"* 🟢 {at(540 + 4 * n)} Assistant ran `pytest -q tests/test_upload.py`"
        yield "  * 1 failed: test_resume expected 206, got 200"


def failing_tests_by_name() -> Lines:
    yield f"* 🟢 {at(700)} Failing after the merge:"
    for n in range(80):
        yield f"  * tests/test_{WORDS[n % 50]}.py::test_{WORDS[(3 * n) % 50]}: AssertionError: expected 200, got 500"


def type_errors() -> Lines:
    rng = Random(2)
    for _ in range(70):
        path = f"src/{rng.choice(WORDS)}.ts({rng.randint(1, 400)},5)"
        yield f"* 🟢 {at(660)} {path}: error TS2345: Argument of type 'string' is not assignable to parameter of type 'Id'"


def files_read_in_pieces() -> Lines:
    for n in range(60):
        yield f"* 🟢 {at(600 + n // 4)} Assistant read `src/engine.py` lines {200 * n + 1}-{200 * n + 200}: nothing of note"


def the_same_tool_call_again() -> Lines:
    """An agent that is stuck, told truly."""
    for n in range(45):
        yield f'* 🟢 {at(600 + n)} Assistant called search_docs(query="retry budget"): no results'
    yield f"* 🔴 {at(650)} User: stop searching, read docs/limits.md"


def tool_calls_and_results() -> Lines:
    for n in range(40):
        yield f'* 🟢 {at(600 + 2 * n)} Assistant called get_status(order="A-{4400 + n}")'
        yield '  * result: {"status": "shipped", "carrier": "north", "delayed": false}'


def clicks_through_pages() -> Lines:
    for n in range(1, 61):
        yield f"* 🟢 {at(800 + n // 5)} Assistant opened page {n} of 60 of the catalogue: 24 items, none in stock"


def commits_called_wip() -> Lines:
    rng = Random(3)
    for n in range(50):
        yield f'* ✅ {at(480 + 7 * n)} Assistant committed {rng.randrange(16**7):07x} "wip"'


def steps_of_a_migration() -> Lines:
    for n in range(1, 81):
        yield f"* ✅ {at(900 + n // 8)} Step {n} of 80 done"


def renamed_photos() -> Lines:
    for n in range(1, 121):
        yield f"* ✅ {at(1_000)} Renamed IMG_{n:04}.jpg to 2026-03-{n % 28 + 1:02}_{n:04}.jpg"


# ── days that are alike ───────────────────────────────────────────────────────────────────────────


def nightly_backup() -> Lines:
    for day in range(60):
        yield heading(day)
        yield "* ✅ (02:00) Nightly backup finished, 0 errors"


def daily_medicine() -> Lines:
    for day in range(45):
        yield heading(day)
        yield "* 🔴 (08:00) User took 5 mg of the blue pills with breakfast"
        yield "* 🔴 (20:00) User took 5 mg of the blue pills with dinner"
        yield ""


def workouts() -> Lines:
    for day in range(0, 90, 2):
        yield heading(day)
        yield f"* 🔴 (07:10) User did 3 sets of 12 squats with {40 + day // 10} kg"
        yield "  * felt good, no pain in the left knee"


def office_hours() -> Lines:
    yield "* 🔴 (17:00) User's timesheet for March:"
    for day in range(31):
        when = START + timedelta(days=day)
        yield f"  | {when:%a} {when.day} | 09:00-17:00 | office | 8.0 h |"


def stand_ups() -> Lines:
    for week in range(30):
        yield heading(7 * week)
        yield "* 🟢 (09:00) Stand-up: nothing blocked, release train unchanged"


def sensor_readings() -> Lines:
    yield heading(0)
    for n in range(200):
        yield f"* 🟢 {at(5 * n)} Greenhouse 21.5 °C, 64 % humidity"


# ── tables, lists and figures ─────────────────────────────────────────────────────────────────────


def table_of_prices() -> Lines:
    rng = Random(4)
    yield f"* 🔴 {at(600)} Price list the user pasted:"
    yield "  | article | net | gross |"
    yield "  |---|---|---|"
    for n in range(90):
        net = rng.randint(100, 9_999)
        yield f"  | A-{1000 + n} | {net / 100:.2f} | {net * 1.19 / 100:.2f} |"


def table_of_zeros() -> Lines:
    yield f"* 🔴 {at(600)} Export without sales:"
    for n in range(40):
        when = START + timedelta(days=n)
        yield f"  {when:%Y-%m-%d},0,0,0,0,0.00,0.00,none"


def matrix() -> Lines:
    yield f"* 🔴 {at(600)} User's adjacency matrix:"
    rng = Random(5)
    for _ in range(24):
        yield "  " + " ".join(rng.choices("01", weights=(9, 1), k=24))
    yield f"* 🟡 {at(601)} User asked for its components"


def zero_matrix_in_a_log() -> Lines:
    yield from (f"* 🟢 {at(560 + n)} {sentence(Random(n), 14)}" for n in range(20))
    yield f"* 🔴 {at(600)} The initial state is all zero:"
    yield from ("  0 0 0 0 0 0 0 0 0 0 0 0" for _ in range(12))
    yield f"* 🟡 {at(601)} User asked for the state after 100 steps"


def primes() -> Lines:
    found = [n for n in range(2, 1_500) if all(n % d for d in range(2, int(n**0.5) + 1))]
    yield f"* 🔴 {at(600)} User's list of primes: {', '.join(map(str, found))}"


def addresses() -> Lines:
    yield f"* 🔴 {at(600)} Hosts to be moved:"
    for n in range(1, 151):
        yield f"  * 10.20.{n // 50}.{n} -> 10.30.{n // 50}.{n}"


def hexdump() -> Lines:
    yield f"* 🔴 {at(600)} First bytes of the broken image:"
    yield "  00000000  89 50 4e 47 0d 0a 1a 0a  00 00 00 0d 49 48 44 52"
    for n in range(1, 40):
        yield f"  {16 * n:08x}  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00"


def bit_string() -> Lines:
    rng = Random(6)
    yield f"* 🔴 {at(600)} User's key, bit for bit: {''.join(rng.choices('01', k=1_024))}"
    yield f"* 🟡 {at(601)} User asked for it in base 16"


def gene() -> Lines:
    rng = Random(7)
    yield f"* 🔴 {at(600)} Sequence: {''.join(rng.choices('ACGT', k=900))}{'CAG' * 44}{''.join(rng.choices('ACGT', k=900))}"
    yield f"* 🟢 {at(602)} 44 repeats of CAG, above the limit of 39"


def dice() -> Lines:
    rng = Random(8)
    for n in range(90):
        yield f"* 🟢 {at(1_200 + n // 6)} Rolled 3d6: {' '.join(str(rng.randint(1, 6)) for _ in range(3))}"


def votes() -> Lines:
    rng = Random(9)
    for n in range(80):
        yield f"* 🔴 {at(1_140)} {WORDS[n % 50].title()} {WORDS[(7 * n) % 50].title()} voted {rng.choice(['yes', 'no'])}"


def exam_answers() -> Lines:
    rng = Random(10)
    yield f"* 🟢 {at(600)} User's answers:"
    yield from (f"  * question {n}: {rng.choice('ABCD')}" for n in range(1, 121))


def inserts() -> Lines:
    yield f"* ✅ {at(600)} Assistant wrote the seed data:"
    for n in range(1, 71):
        yield f"  INSERT INTO plots (id, owner, rented, rent) VALUES ({n}, NULL, false, 0.00);"  # noqa: S608 — notes that quote it


def branches_of_code() -> Lines:
    yield f"* 🔴 {at(600)} User insists on this style in `dispatch.c`:"
    for n in range(40):
        yield f"  case {n}:"
        yield f"      return handle_{n}(state, buffer, length);"


def list_of_markup() -> Lines:
    yield f"* 🟢 {at(600)} Menu as it stands in `menu.html`:"
    yield from (
        f'  <li class="item item--plain"><a href="/{word}">{word.title()}</a></li>'
        for word in WORDS
    )


def knitting() -> Lines:
    yield f"* 🔴 {at(600)} User's pattern:"
    for n in range(1, 61):
        yield f"  * row {n}: {'k2, p2 to the end' if n % 2 else 'p2, k2 to the end'}"


def doses_by_weight() -> Lines:
    yield f"* 🟢 {at(600)} Table from the leaflet:"
    yield from (
        f"  * {kilos} kg: {kilos * 15} mg every 6 hours, at most 4 times a day"
        for kilos in range(5, 60)
    )


def counting_song() -> Lines:
    yield f"* 🔴 {at(600)} User's bus song, all verses wanted:"
    for n in range(30, 0, -1):
        yield f"  {n} jars stand up on the wall, {n} jars stand tall, the cat walks by and one must fall,"


def game_of_corridors() -> Lines:
    rng = Random(12)
    for n in range(80):
        way = rng.choice(["north", "south", "east", "west"])
        yield f"* 🟢 {at(1_250 + n // 4)} User went {way}: a dark corridor, nothing here"


LOGS: tuple[Callable[[], Lines], ...] = (
    polling_every_minute,
    polling_three_jobs_in_turn,
    polling_every_twenty_seconds,
    polling_every_five_seconds,
    polling_two_builds_every_five_seconds,
    polling_with_growing_percentages,
    retries_with_backoff,
    retries_without_numbers,
    heartbeats,
    no_new_mail,
    pings,
    test_runs,
    test_runs_with_equal_results,
    failing_tests_by_name,
    type_errors,
    files_read_in_pieces,
    the_same_tool_call_again,
    tool_calls_and_results,
    clicks_through_pages,
    commits_called_wip,
    steps_of_a_migration,
    renamed_photos,
    nightly_backup,
    daily_medicine,
    workouts,
    office_hours,
    stand_ups,
    sensor_readings,
    table_of_prices,
    table_of_zeros,
    matrix,
    zero_matrix_in_a_log,
    primes,
    addresses,
    hexdump,
    bit_string,
    gene,
    dice,
    votes,
    exam_answers,
    inserts,
    branches_of_code,
    list_of_markup,
    knitting,
    doses_by_weight,
    counting_song,
    game_of_corridors,
)
