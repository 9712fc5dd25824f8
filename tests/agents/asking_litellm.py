"""Asks models through litellm as the proxy does, so that a test can read what a process of its own
writes meanwhile.

Each argument is a place: a model, and the address it is asked at. On stdout goes one JSON object
that quotes nobody.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator

import orjson

from om_proxy.agents.model_access.credentials import KEY_VARIABLES
from om_proxy.agents.model_access.litellm_adapter import LiteLLM, import_litellm
from om_proxy.agents.model_access.llm import Image, Prompt, Target
from om_proxy.common.errors import ModelError
from om_proxy.observability import logs

PROMPT = Prompt(
    "CANARY-SYSTEM",
    (
        "CANARY-TEXT",
        Image("http://127.0.0.1:9/x.png?k=CANARY-ADDRESS"),
        Image("data:image/png;base64,CANARYINLINE"),
    ),
    0.3,
    1_000,
)


async def outcome(litellm: LiteLLM, model: str, base: str) -> str:
    """Return the class of the outcome."""
    target = Target(
        model, "litellm", base, headers=(("x-h", "CANARY-HEADER"),), api_key="sk-CANARY-KEY"
    )
    try:
        return type(await litellm.complete(target, PROMPT)).__name__
    except ModelError as exc:
        return type(exc).__name__


def heard() -> Iterator[str]:
    """List the loggers whose records are written somewhere, other than those the proxy logs."""
    for name in sorted(logging.root.manager.loggerDict):
        logger: logging.Logger | None = logging.getLogger(name)
        while logger and name not in logs.LOGGED_LIBRARIES:
            if not all(isinstance(handler, logging.NullHandler) for handler in logger.handlers):
                yield name
            logger = logger.parent if logger.propagate else None


def loud() -> Iterator[str]:
    """List litellm's loggers that would write a record at all."""
    for name in sorted(logging.root.manager.loggerDict):
        if name.lower().startswith("litellm") and logging.getLogger(name).isEnabledFor(
            logging.CRITICAL
        ):
            yield name


async def main(places: list[str]) -> None:
    logs.configure_log("json")
    litellm = LiteLLM()
    outcomes = [await outcome(litellm, *place.split("@", 1)) for place in places]
    litellm.close()
    from litellm.constants import (
        MAX_IMAGE_URL_DOWNLOAD_SIZE_MB as LARGEST,
    )  # not before the adapter's

    asking_keys = import_litellm().validate_environment
    said = {
        "outcomes": outcomes,
        "missing": {p: asking_keys(model=f"{p}/x")["missing_keys"] for p in KEY_VARIABLES},
        "heard": [*heard()],
        "loud": [*loud()],
        "largest_download": LARGEST,
    }
    print(orjson.dumps(said).decode())


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
