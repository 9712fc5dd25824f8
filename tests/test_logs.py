"""Events: flat, one line each, and without texts from outside."""

import logging
from collections.abc import Iterator

import orjson
import pytest
import structlog

from proxy.logs import configure


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """Logging is global: give it back as it was."""
    handlers = {name: logging.getLogger(name).handlers[:] for name in (None, "uvicorn.error", "asyncio")}
    yield
    structlog.reset_defaults()
    for name, kept in handlers.items():
        logging.getLogger(name).handlers = kept


def events(capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    return [orjson.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One event is one JSON line on stderr with its level and time."""
    configure("json")
    structlog.get_logger("x").info("turn", thread="t", new=3, observed=None, parts=("a", 1))
    (event,) = events(capsys)
    assert event.pop("timestamp")
    assert event == {"event": "turn", "level": "info", "thread": "t", "new": 3, "observed": None, "parts": ["a", 1]}


@pytest.mark.parametrize(
    "value", [ValueError("hush"), {"key": "hush"}, b"hush", object(), [ValueError("hush")], "x" * 301 + "hush"]
)
def test_only_scalars_pass(value: object, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an exception only its class, of a container only its type, of a long text only its start is written."""
    configure("json")
    structlog.get_logger("x").warning("failed", what=value)
    (event,) = events(capsys)
    assert "hush" not in str(event)
    assert event["what"]


def test_exception(capsys: pytest.CaptureFixture[str]) -> None:
    """`log.exception` names the class and no more."""
    configure("json")
    try:
        raise ValueError("hush")
    except ValueError:
        structlog.get_logger("x").exception("failed")
    (event,) = events(capsys)
    assert event["error"] == "ValueError"
    assert "hush" not in str(event)


def test_off(capsys: pytest.CaptureFixture[str]) -> None:
    """`off` writes nothing at all, not for errors either."""
    configure("off")
    structlog.get_logger("x").error("failed")
    logging.getLogger("uvicorn.error").error("failed")
    assert capsys.readouterr().err == ""


def test_auto_without_a_terminal_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """In a container, events are for machines."""
    configure("auto")
    structlog.get_logger("x").info("turn")
    assert events(capsys)[0]["event"] == "turn"


def test_console(capsys: pytest.CaptureFixture[str]) -> None:
    """For people: no JSON."""
    configure("console")
    structlog.get_logger("x").info("turn", thread="t")
    text = capsys.readouterr().err
    assert "turn" in text
    assert "{" not in text


def test_libraries(capsys: pytest.CaptureFixture[str]) -> None:
    """The server's warnings are heard as class and place; HTTP clients, who log URLs, are not."""
    configure("json")
    configure("json")
    logging.getLogger("httpx").error("POST https://h/?key=hush")
    logging.getLogger("uvicorn.error").info("Started")
    try:
        raise ValueError("hush")
    except ValueError:
        logging.getLogger("uvicorn.error").exception("Exception for %s", "hush")
    (event,) = events(capsys)
    assert (event["event"], event["logger"], event["error"]) == ("library", "uvicorn.error", "ValueError")
    assert str(event["said"]).startswith("test_logs.py:")
    assert str(event["at"]).startswith("['test_logs.py:")
    assert "hush" not in str(event)
