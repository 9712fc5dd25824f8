"""Streams of look-ups that break off, wherever they do: the client's connection breaks, and what it
got until then is the beginning of what it would have got."""

from __future__ import annotations

import pytest

from tests.edge.rounds.test_recalling import CUT, Play, Server, streamed
from tests.wire.apis.chat.look_ups.test_splice import CASES
from tests.wire.apis.chat.streamed_rounds import DONE

STEP_BYTES = 17  # between two cuts; a prime, so that they lie at all places of an event


async def play(
    rounds: list[bytes], max_steps: int, cut: int | None = None
) -> tuple[bytes, bool, Server]:
    """Play the rounds. `cut`: where the last one breaks off."""
    server = Server()
    server.answers = streamed(server, *rounds)
    if cut is not None:
        server.answers[-1] = server.respond(rounds[-1][:cut], CUT)
    data, is_broken = await Play(server, stream=True, max_steps=max_steps).read()
    return data, is_broken, server


@pytest.mark.parametrize("name", CASES)
async def test_broken_off_anywhere(name: str) -> None:
    rounds = CASES[name][0]
    max_steps = len(rounds) - 1
    whole, is_broken, _ = await play(rounds, max_steps)
    assert not is_broken
    for number, data in enumerate(rounds, 1):
        for cut in range(1, len(data), STEP_BYTES):
            out, is_broken, server = await play(rounds[:number], max_steps, cut)
            assert is_broken, (number, cut)
            assert whole.startswith(out), (number, cut)
            assert DONE not in out
            assert server.closed == number
            assert len(server.bodies) == number - 1
