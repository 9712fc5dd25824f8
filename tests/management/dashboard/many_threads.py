"""A store as one has it after some weeks: 200 conversations of twelve people with three keys."""

from __future__ import annotations

import asyncio
import random
import time

from om_proxy.settings.identity.naming import encode_name
from tests.e2e.running import Running

PEOPLE = (
    "ada", "ben.okoro@harbour.example", "carla", "Dmitri", "support-desk", "night-agent",
    "user-7f2a91c4", "joão", "line-3/planner", "mira", "yusuf", "zoë.lindqvist@harbour.example",
)  # fmt: skip
KEYS = ("sk-harbour-desk", "sk-harbour-agents", "sk-harbour-school")
MODELS = ("gpt-4o", "gpt-5.4-mini", "claude-sonnet-5-5", "qwen3-8b")
SUBJECTS = (
    "Why does the crane at berth {n} stop at noon?",
    "Draft a letter to the harbour master about invoice {n}",
    "Plan three days in Porto with two children and a dog, on a budget of {n} euros",
    "The build fails with exit code {n} since Tuesday; here is the log",
    "Translate the safety notice for pier {n} into Portuguese, Polish and Arabic, and keep it short",
    "Recipe for {n} people, without nuts",
    "Compare the tide tables of 2025 and 2026",
    "hi",
    "Summarise the meeting of team {n}: who does what by when, and what is still open?",
    "SELECT count(*) FROM berths WHERE draught > {n} — why is it slow?",
)
TOLD = "Berth {n} takes {m} containers an hour, and its crane is serviced on day {m} of the month. "
DAY_S = 86_400.0


async def talk_for_weeks(run: Running, threads: int = 200) -> None:
    """Let people talk, some for one turn and some for many, over the five weeks before now."""
    chance = random.Random(7)
    start = time.time() - 35 * DAY_S
    for number in range(threads):
        run.clock.now = start + 35 * DAY_S * number / threads
        model, who = chance.choice(MODELS), chance.choice(PEOPLE)
        chat = run.chat(
            f"{chance.getrandbits(128):032x}" if number % 3 else f"chat-{number}",
            key=KEYS[number % len(KEYS)],
            **{"x-om-resource": encode_name(who)},
        )
        chat.model = model
        await chat.say(SUBJECTS[number % len(SUBJECTS)].format(n=number + 2))
        for turn in range(chance.choice((0, 0, 1, 1, 2, 3, 5, 12))):
            run.clock.now += chance.uniform(20, 900)
            told = (TOLD.format(n=number + turn, m=chance.randrange(5, 28)) for _ in range(12))
            await chat.say("".join(told))
            await run.app.background.wait_idle()
    run.clock.now = time.time()
    await asyncio.sleep(0)
