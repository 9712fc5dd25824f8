"""Run a proxy in front of a scripted model, for any client to try: no key, no network."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from om_proxy.app.app import create_app
from om_proxy.cli.demo.stage import CONFIG_FILE, ServedDemo, create_scripted_settings
from om_proxy.testing.loopback import serve_on_loopback
from om_proxy.testing.scripted import ScriptedServer

# so low that memory applies in a client's second turn
TRIAL_MESSAGE_TOKENS = 100
TRIAL_OBSERVATION_TOKENS = 2_000

INTRODUCTION = """\
I am a scripted model, so I know only what stands in the prompt that I receive. Tell me facts with \
a number, one sentence each, for example: Our boat lies at pier 14. The notes keep such sentences, \
word for word. Go on with other things for a few turns. Then ask for the fact in its own words: At \
which pier lies our boat? I search the prompt for a sentence that shares the rare words of your \
question, and I repeat that sentence. If the prompt does not hold it, I look it up in the original \
messages, with the tool that om-proxy adds; if they do not hold it, I say that I do not know.

This first answer is so long for a reason: with your next message, the conversation has more than \
a hundred tokens. From then on om-proxy sends notes in place of the old messages, and the \
response header x-om-status changes from raw to applied. So an answer of mine to a question about \
an old message shows that the notes hold it. A real model writes better notes than I do, and it \
starts at thirty thousand tokens unless you set another threshold."""


@asynccontextmanager
async def serve_trial(port: int, *, log: str = "console") -> AsyncIterator[ServedDemo]:
    """Run the proxy until the block ends. At the end, remove what it stored.

    Raises OmError if the port is in use."""
    models = ScriptedServer(introduction=INTRODUCTION)
    with tempfile.TemporaryDirectory(prefix="om-proxy-trial-") as folder:
        async with serve_on_loopback(models) as models_url:
            config = Path(folder) / CONFIG_FILE
            settings = create_scripted_settings(
                models_url,
                folder,
                TRIAL_MESSAGE_TOKENS,
                TRIAL_OBSERVATION_TOKENS,
                log=log,
                config=config,
            )
            async with serve_on_loopback(create_app(settings), port=port, lifespan="on") as url:
                yield ServedDemo(url, config)
