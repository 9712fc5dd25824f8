"""Events: one flat line each, without text from outside."""

import asyncio
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import orjson
import pytest
import structlog

from om_proxy.memory.model import Key
from om_proxy.observability.logs import (
    FLUSH_DELAY_S,
    MAX_CACHED_LABELS,
    BufferedLineWriter,
    ConsoleLine,
    configure_log,
    flush_log,
    get_shown_thread_name,
    get_thread_label,
    redact_model_name,
)
from om_proxy.settings.identity.keyed_hashes import label_thread

KEY = Key("tenant", "alice@example.com", "divorce-lawyer")


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Restore logging, which is global."""
    handlers = {
        name: logging.getLogger(name).handlers[:] for name in (None, "uvicorn.error", "asyncio")
    }
    yield
    structlog.reset_defaults()
    configure_log("off")
    structlog.reset_defaults()
    for name, kept in handlers.items():
        logging.getLogger(name).handlers = kept


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One event is one JSON line on stderr with its level and time."""
    configure_log("json")
    structlog.get_logger("x").info("turn", thread="t", new=3, observed=None, parts=("a", 1))
    (event,) = events(capsys)
    assert event.pop("timestamp")
    assert event == {
        "event": "turn",
        "level": "info",
        "thread": "t",
        "new": 3,
        "observed": None,
        "parts": ["a", 1],
    }


@pytest.mark.parametrize(
    "value",
    [
        ValueError("hush"),
        {"key": "hush"},
        b"hush",
        object(),
        [ValueError("hush")],
        "x" * 301 + "hush",
    ],
)
def test_only_scalars_pass(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """An exception is written as its class, a container as its type, a long text as its
    beginning."""
    configure_log("json")
    structlog.get_logger("x").warning("failed", what=value)
    (event,) = events(capsys)
    assert "hush" not in str(event)
    assert event["what"]


def test_exception(capsys: pytest.CaptureFixture[str]) -> None:
    """`log.exception` writes only the class."""
    configure_log("json")
    try:
        raise ValueError("hush")
    except ValueError:
        structlog.get_logger("x").exception("failed")
    (event,) = events(capsys)
    assert event["error"] == "ValueError"
    assert "hush" not in str(event)


async def test_a_quiet_line_waits_for_its_neighbours(
    capsysbinary: pytest.CaptureFixture[bytes],
) -> None:
    """Lines at level info are written together. A warning is written at once, with the lines before
    it."""
    lines = BufferedLineWriter(sys.stderr.buffer)
    lines.info(b"1")
    lines.info(b"2")
    assert capsysbinary.readouterr().err == b""
    lines.warning(b"3")
    assert capsysbinary.readouterr().err == b"1\n2\n3\n"
    lines.info(b"4")
    written = b""
    async with asyncio.timeout(30):
        while not written:
            await asyncio.sleep(FLUSH_DELAY_S / 5)
            written = capsysbinary.readouterr().err
    assert written == b"4\n"


def test_a_second_loop_writes_too(capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    """A line left by a closed loop does not delay later ones."""
    lines = BufferedLineWriter(sys.stderr.buffer)

    async def say(line: bytes, seconds: float) -> None:
        lines.info(line)
        await asyncio.sleep(seconds)

    asyncio.run(say(b"1", 0))
    asyncio.run(say(b"2", 4 * FLUSH_DELAY_S))
    assert capsysbinary.readouterr().err == b"1\n2\n"


@pytest.mark.parametrize("log", ["json", "off"])
async def test_what_waits_is_written_before_a_fork(
    log: Literal["json", "off"], capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is left to be written twice. A log that is off has nothing."""
    configure_log(log)
    structlog.get_logger("x").info("turn")
    assert not events(capsys)
    flush_log()
    assert len(events(capsys)) == (log == "json")


@pytest.mark.parametrize("log", ["json", "console"])
def test_a_full_disk_fails_nobody(log: str, tmp_path: Path) -> None:
    """A program that logs goes on when its log cannot be written."""
    code = f"import structlog; from om_proxy.observability.logs import configure_log; configure_log('{log}')\n"
    code += "structlog.get_logger('x').error('failed'); structlog.get_logger('x').info('turn'); print('on')"
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
            cwd=tmp_path,
        )
    assert ended.stdout == b"on\n"


def test_the_last_lines_are_written_at_the_end(tmp_path: Path) -> None:
    """A program's end flushes the waiting lines."""
    code = "import asyncio, structlog; from om_proxy.observability.logs import configure_log; configure_log('json')\n"
    code += "async def main(): structlog.get_logger('x').info('turn', n=1)\n"
    code += "asyncio.run(main())"
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, cwd=tmp_path
    )
    assert orjson.loads(ended.stderr)["n"] == 1


def test_off(capsys: pytest.CaptureFixture[str]) -> None:
    """`off` writes nothing, not even errors."""
    configure_log("off")
    structlog.get_logger("x").error("failed")
    logging.getLogger("uvicorn.error").error("failed")
    assert capsys.readouterr().err == ""


def test_auto_without_a_terminal_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, `auto` writes JSON."""
    configure_log("auto")
    structlog.get_logger("x").info("turn")
    assert events(capsys)[0]["event"] == "turn"


def test_console(capsys: pytest.CaptureFixture[str]) -> None:
    """A console line has the time of day, and no colours without a terminal."""
    configure_log("console")
    structlog.get_logger("x").warning("observe.failed", thread="t", failures=2)
    text = capsys.readouterr().err
    assert re.fullmatch(r"\d\d:\d\d:\d\d  warning  observe.failed  thread=t  failures=2\n", text)


@pytest.mark.parametrize(
    ("log", "show_thread_names", "name"),
    [
        ("console", True, "divorce-lawyer"),
        ("console", False, None),
        ("json", True, None),
        ("auto", True, None),
    ],
)
def test_a_thread_s_own_name(
    log: Literal["console", "json", "auto"], show_thread_names: bool, name: str | None
) -> None:
    """Only a console with `show_thread_names` shows the name: JSON lines are collected."""
    configure_log(log, show_thread_names=show_thread_names)
    assert get_shown_thread_name(KEY) == name
    assert get_shown_thread_name(None) is None


def test_all_lines_of_a_thread_call_it_alike(capsys: pytest.CaptureFixture[str]) -> None:
    """On a console, an observation's line names the thread as its turn's line did; without a name,
    both show the label."""
    configure_log("console", show_thread_names=True)
    log = structlog.get_logger()
    log.info("turn", status=200, thread="9d4d", name="kitchen")
    log.info("observed", thread="9d4d")
    log.info("observed", thread="c0ff")
    assert [line.split("  ")[1:] for line in capsys.readouterr().err.splitlines()] == [
        ["200", "kitchen"],
        ["info", "observed", "thread=kitchen"],
        ["info", "observed", "thread=c0ff"],
    ]


def test_names_at_hand_are_bounded() -> None:
    """The number of remembered names is bounded."""
    line = ConsoleLine()
    for number in range(MAX_CACHED_LABELS + 2):
        line(None, "info", {"event": "turn", "thread": f"{number:04x}", "name": "kitchen"})
    assert "thread=0001" in line(None, "info", {"event": "observed", "thread": "0001"})
    assert "thread=kitchen" in line(None, "info", {"event": "observed", "thread": "0002"})


def test_a_model_s_name() -> None:
    """A key in place of a model's name is not repeated, and a long name is cut."""
    assert redact_model_name("sk-proj-0hush1hush2hush3hush4hush5hush6") is not None
    assert "hush" not in str(redact_model_name("sk-proj-0hush1hush2hush3hush4hush5hush6"))
    assert len(str(redact_model_name("m" * 10_000))) == 300
    assert redact_model_name(None) is None


def test_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's warnings are logged as class and place. Those of HTTP clients, which log URLs,
    are not."""
    configure_log("json")
    configure_log("json")
    logging.getLogger("httpx").error("POST https://h/?key=hush")
    logging.getLogger("uvicorn.error").info("Started")
    try:
        raise ValueError("hush")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception for %s", "hush")
    (event,) = events(capsys)
    assert (event["event"], event["logger"], event["error"]) == (
        "library",
        "uvicorn.error",
        "ValueError",
    )
    assert str(event["said"]).startswith("test_logs.py:")
    assert str(event["at"]).startswith("test_logs.py:")
    assert "hush" not in str(event)


def test_a_library_s_warning_is_limited(capsys: pytest.CaptureFixture[str]) -> None:
    """A client that sends garbage causes the same warning each time. One a minute is logged of each
    place."""
    configure_log("json")
    logger = logging.getLogger("uvicorn.error")
    for _ in range(50):
        logger.warning("Invalid HTTP request received.")
    logger.warning("another")
    assert [event["said"] for event in events(capsys)] == [
        "Invalid HTTP request received.",
        "another",
    ]


NOISE = """
import sys, threading, warnings
from om_proxy.observability.logs import configure_log, capture_python_warnings

configure_log("json")
capture_python_warnings()
warnings.simplefilter("always")
warnings.warn("input_value='hush'", UserWarning, stacklevel=1)

class Finalised:
    def __del__(self):
        raise ValueError("hush")

def broken():
    raise KeyError("hush")

Finalised()
for work in (broken, sys.exit):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""


def test_python_s_own_words(tmp_path: Path) -> None:
    """A warning, an error in a finaliser and an error that ends a thread are logged as class and
    place."""
    ended = subprocess.run(
        [sys.executable, "-c", NOISE], capture_output=True, check=True, cwd=tmp_path
    )
    assert b"hush" not in ended.stderr
    said = [orjson.loads(line) for line in ended.stderr.splitlines()]
    assert [event["error"] for event in said] == ["UserWarning", "ValueError", "KeyError"]
    assert all(event["at"].startswith("<string>:") for event in said)


def test_a_thread_s_label() -> None:
    """The label is the one that the rest of the program uses; None without a thread."""
    assert get_thread_label(b"secret", KEY) == label_thread(b"secret", KEY)
    assert get_thread_label(b"secret", None) is None


def test_labels_differ() -> None:
    """The label depends on each part of the key and on the server's secret, so nobody can guess
    names by trying."""
    others = [
        KEY._replace(tenant="other"),
        KEY._replace(resource="other"),
        KEY._replace(thread="other"),
    ]
    found = {get_thread_label(b"secret", key) for key in (KEY, *others)} | {
        get_thread_label(b"another", KEY)
    }
    assert len(found) == 5


def test_labels_at_hand_are_bounded() -> None:
    """The number of cached labels is bounded, because clients choose the names."""
    for number in range(MAX_CACHED_LABELS + 10):
        get_thread_label(b"secret", KEY._replace(thread=str(number)))
    assert get_thread_label.cache_info().currsize == MAX_CACHED_LABELS
