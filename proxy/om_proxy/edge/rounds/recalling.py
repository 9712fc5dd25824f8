"""Follow the look-ups of a reply until its model answers the client.

`follow` takes the upstream's answer and returns one whose body is the reply as the client sees it.
So the relay, the reply's reader and the commit know nothing of rounds. What goes out is decided by
the API's splice. The client may leave at any moment: its request is cancelled, and with it the
round or the look-up under way (docs/contributing/recall.md#rounds).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial

from om_proxy.common.errors import OmError, UpstreamError
from om_proxy.edge.buffered_response import (
    break_off,
    buffer_body,
    iterate_body,
    peek,
    replace_body,
)
from om_proxy.edge.exchange import Exchange
from om_proxy.edge.headers import read_client_headers
from om_proxy.edge.rounds.recall_offers import RecallRecord
from om_proxy.edge.rounds.reply_rounds import MAX_WHOLE_BYTES, ClientStream, HeldRounds, ReplyRounds
from om_proxy.edge.rounds.round_requests import (
    STATUS_OK,
    RoundLookUps,
    RoundLost,
    RoundRequests,
    SendBody,
    is_whole_reply,
)
from om_proxy.engine.turns.turn import PreparedTurn
from om_proxy.memory.rounds import LookUps
from om_proxy.observability.facts import Facts
from om_proxy.wire.apis.api import require_recall
from om_proxy.wire.apis.compression import create_decoder
from om_proxy.wire.server.capacity.budget import MemoryBudget
from om_proxy.wire.server.headers import find_header
from om_proxy.wire.upstream import UpstreamResponse

CreateLookUps = Callable[[PreparedTurn], Awaitable[LookUps]]


@dataclass(slots=True, eq=False)
class Recalling:
    """The performer of look-ups between the upstream's answers and the client's. `budget`: what is
    held of replies counts in it."""

    send: SendBody
    create_look_ups: CreateLookUps
    facts: Facts
    budget: MemoryBudget | None = None

    async def follow(self, exchange: Exchange, answer: UpstreamResponse) -> UpstreamResponse:
        """Return the client's answer. `answer`: to a request that offers the tool. Raise OmError if
        a later round fails before any byte for the client."""
        record, turn = exchange.recall, exchange.turn
        if answer.status != STATUS_OK or record is None or turn is None:
            return answer
        assert exchange.request is not None  # only a readable request has memory
        headers = read_client_headers(answer)
        decode = create_decoder(find_header(headers, b"content-encoding"))
        is_whole = is_whole_reply(exchange, headers, b"")  # else its first byte decides
        try:
            if not is_whole:
                is_whole = is_whole_reply(exchange, headers, await peek(answer))
        except UpstreamError as exc:
            return replace_body(answer, break_off(exc), answer.aclose)
        except BaseException:
            await answer.aclose()
            raise
        if decode is None:
            return answer  # nothing here can read it
        body: bytes | None = None
        if is_whole:
            record.is_whole = True
            answer, body = await buffer_body(
                answer, MAX_WHOLE_BYTES, is_compressed=decode is not bytes
            )
            if body is None or not require_recall(exchange.request).may_call_tools(body):
                return answer
        rounds = self._open_rounds(exchange, record, turn)
        if body is not None:
            rounds.held.add(len(body))
            try:
                return await _read_whole(rounds, answer, body)
            finally:
                rounds.held.release()
        return await _stream(rounds, answer, decode)

    def _open_rounds(
        self, exchange: Exchange, record: RecallRecord, turn: PreparedTurn
    ) -> ReplyRounds:
        """Return the reply's way through its rounds. None of them is read yet."""
        assert exchange.request is not None  # only a readable request has memory
        assert exchange.context is not None  # the same
        assert record.tool is not None  # the request offers it
        api = require_recall(exchange.request)
        retrieval = exchange.context.effective.memory.retrieval
        create_splice = api.create_whole_splice if record.is_whole else api.create_stream_splice
        held = HeldRounds(self.budget)
        requests = RoundRequests(
            exchange,
            record,
            turn.body or exchange.body,
            self.send,
            has_threads=exchange.caller.choose_look_up_scope(retrieval.scope) == "resource",
        )
        return ReplyRounds(
            exchange,
            record,
            create_splice(record.tool, retrieval.usage, held.reserve, record.use),
            requests,
            RoundLookUps(exchange, record, partial(self.create_look_ups, turn), self.facts),
            held,
        )


async def _stream(
    rounds: ReplyRounds, answer: UpstreamResponse, decode: Callable[[bytes], bytes]
) -> UpstreamResponse:
    """Return the answer with the client's stream. Its head goes out with its first bytes: until
    then an error of a later round can still be told as it came. `decode`: of its body."""
    requests = rounds.requests
    requests.newest = answer
    client_stream = ClientStream(answer, decode, rounds)
    try:
        if first := await anext(client_stream, b""):
            client_stream.put_back([first])
    except RoundLost as lost:
        rounds.held.release()
        return await _take_error(requests, lost)
    except UpstreamError as exc:
        rounds.held.release()
        return replace_body(answer, break_off(exc), requests.close)
    except BaseException:
        rounds.held.release()
        await requests.close()
        raise
    return client_stream


async def _read_whole(
    rounds: ReplyRounds, answer: UpstreamResponse, body: bytes
) -> UpstreamResponse:
    """Return the answer with the client's JSON; the bytes as they came if nothing was looked up.
    `body`: as it was read."""
    requests = rounds.requests
    try:
        plain = replace_body(answer, iterate_body(body), answer.aclose)
        data = b"".join([piece async for piece in rounds.run(plain)])
    except RoundLost as lost:
        return await _take_error(requests, lost)
    except UpstreamError as exc:
        return replace_body(answer, break_off(exc), requests.close)
    except BaseException:
        await requests.close()
        raise
    await requests.close()
    if data == body:
        return answer
    return replace_body(answer, iterate_body(data), answer.aclose, length=len(data))


async def _take_error(requests: RoundRequests, lost: RoundLost) -> UpstreamResponse:
    await requests.close()
    if lost.answer is not None:
        return lost.answer
    assert isinstance(lost.__cause__, OmError)  # see RoundRequests.ask_without_tool
    raise lost.__cause__
