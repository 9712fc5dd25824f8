"""Read a chat completion, streamed or not: from its bytes to the assistant's message.

A reply with more choices than a request can ask for counts as unreadable.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct, ValidationError, convert

from om_proxy.memory.token_prices import Usage
from om_proxy.wire.apis.api import Reply
from om_proxy.wire.apis.chat.deltas import MessageBuilder, ReplyTooLarge
from om_proxy.wire.apis.chat.reply_frame import ReplyFrame, StreamedReply
from om_proxy.wire.apis.json_text import decode_or_none, is_too_large
from om_proxy.wire.apis.sse import Event

DONE = b"[DONE]"  # the data of the last event of a stream: the line `data: [DONE]`
LINE_END = b"\n"
MAX_CHOICES = 128  # the largest `n` of OpenAI
# Of a value beside the messages, such as a word or a count of tokens.
MAX_REMARK_BYTES = 1 << 16


_NULL, _ZERO = Raw(b"null"), Raw(b"0")
Scalar = str | int | float | bool | None


class _Choice(msgspec.Struct):
    index: Raw = _NULL
    message: Raw = _NULL
    finish_reason: Raw = _NULL


NO_CHOICE = _Choice()
TEXT_HINT = b'"content":"'  # it stands in nearly all events that add a text
USUAL_REPLY_START = b'{"role":"assistant",'


class _Completion(msgspec.Struct):
    """A completion whose members stay raw until their length is known."""

    choices: Raw = _NULL
    usage: Raw = _NULL
    error: Raw = _NULL


class _DeltaChoice(msgspec.Struct):
    index: Scalar = None
    delta: Any = None
    finish_reason: Scalar = None


class _Chunk(msgspec.Struct):
    """The members of an event that are read. Log probabilities, twenty times as large, are never
    built."""

    choices: list[_DeltaChoice] = []
    usage: Raw = _NULL
    error: Raw = _NULL


class _TextDelta(msgspec.Struct, forbid_unknown_fields=True):
    """A delta that adds a text to the content, and nothing else."""

    content: str
    role: str | None = None  # a reply is the assistant's whatever its deltas say
    refusal: None = None
    reasoning_content: None = None
    tool_calls: None = None


class _TextChoice(msgspec.Struct):
    delta: _TextDelta
    index: Literal[0] = 0
    finish_reason: None = None


class _TextChunk(msgspec.Struct):
    """An event that adds a text to the first choice, as nearly all events of a stream do."""

    choices: tuple[_TextChoice]
    usage: None = None
    error: None = None


class _Speaker(msgspec.Struct):
    role: Raw = _NULL


# A list that the decoder refuses at the first item too many. A list type would be built to its end
# before its length is known.
_Countable = msgspec.defstruct(
    "_Countable",
    [(f"_{index}", Raw, _NULL) for index in range(MAX_CHOICES)],
    array_like=True,
    forbid_unknown_fields=True,
)
NO_DELTA = _DeltaChoice()
_speaker = msgspec.json.Decoder(_Speaker)
_completion = msgspec.json.Decoder(_Completion)
_countable = msgspec.json.Decoder(_Countable)
_choices = msgspec.json.Decoder(list[_Choice])
_chunk = msgspec.json.Decoder(_Chunk)
_text_chunk = msgspec.json.Decoder(_TextChunk)
_object = msgspec.json.Decoder(dict[str, Any])
_any = msgspec.json.Decoder()


def read_whole(body: bytes) -> Reply:
    """Read a reply in one piece. Its message keeps its bytes."""
    completion: _Completion | None = decode_or_none(_completion, body)
    choices = _list_choices(completion.choices) if completion is not None else None
    if completion is None or choices is None:
        return Reply()
    first, *others = _sort_choices(choices)
    error = _is_error(completion.error)
    return Reply(
        message=_set_role(_read_message(first)),
        complete=not error,
        finish_reason=_text_or_none(_read_remark(first.finish_reason)),
        usage=read_usage(_read_remark(completion.usage)),
        error=error,
        others=tuple(raw for raw in map(_read_message, others) if raw),
    )


def _list_choices(choices: Raw) -> list[_Choice] | None:
    """Return the choices; None for a value that is no list of choices, or has more than a request
    can ask for."""
    if choices == _NULL:
        return []
    if bytes(choices).count(b"{") > MAX_CHOICES and decode_or_none(_countable, choices) is None:
        return None
    return decode_or_none(_choices, choices)  # type: ignore[no-any-return]  # the decoder's own type


def _sort_choices(choices: Sequence[_Choice]) -> list[_Choice]:
    """Return the choices in the order of their indices; an empty one first where the first is
    missing."""
    if len(choices) == 1 and choices[0].index in (_NULL, _ZERO):
        return [choices[0]]
    by_index = {
        _choose_index(_read_remark(choice.index), position): choice
        for position, choice in enumerate(choices)
    }
    return [by_index.pop(0, NO_CHOICE), *(by_index[index] for index in sorted(by_index))]


def _read_message(choice: _Choice) -> bytes | None:
    raw = bytes(choice.message)
    return raw if raw.startswith(b"{") else None


def _set_role(message: bytes | None) -> bytes | None:
    """Return the message as the assistant's: some servers leave the role out, or call it `model`, and
    refuse that when it comes back. A stream's message has the role by default too."""
    if message is None or message.startswith(USUAL_REPLY_START):
        return message
    if _read_remark(_speaker.decode(message).role) == "assistant":
        return message
    return msgspec.json.encode(_object.decode(message) | {"role": "assistant"})


class _StreamedReply(StreamedReply[MessageBuilder]):
    """A streamed reply. The message of each choice is built from its deltas."""

    def __init__(self) -> None:
        super().__init__()
        self._finish_reason: str | None = None
        self._usage: Usage | None = None

    def _add_events(self, events: Iterable[Event]) -> None:
        """Add events. Texts that follow each other are added as one: each event alone would cost
        four times as much."""
        texts: list[str] = []
        for event in events:
            if self._is_over:
                break
            if (text := _read_text(event)) is not None:
                texts.append(text)
                continue
            self._add_texts(texts)
            texts = []
            self._add_event(event)
        self._add_texts(texts)

    def _add_texts(self, texts: Sequence[str]) -> None:
        if texts:
            self._add_delta(0, _DeltaChoice(0, {"content": "".join(texts)}))

    def _write_reply(self) -> Reply:
        messages = {
            index: msgspec.json.encode(built.message())
            for index, built in sorted(self._parts.items())
        }
        return Reply(
            message=messages.pop(0, None),
            complete=not self._has_error and (self._is_over or self._finish_reason is not None),
            finish_reason=self._finish_reason,
            usage=self._usage,
            error=self._has_error,
            others=tuple(messages.values()),
        )

    def _add_event(self, event: Event) -> None:
        if event.data.startswith(DONE):
            self._is_over = True
            return
        chunk = _read_chunk(event.data)
        self._has_error = self._has_error or event.type == b"error" or _is_error(chunk.error)
        if chunk.usage != _NULL:
            self._usage = read_usage(_read_remark(chunk.usage)) or self._usage
        for position, choice in enumerate(chunk.choices):
            self._add_delta(_choose_index(choice.index, position), choice)

    def _add_delta(self, index: int, choice: _DeltaChoice) -> None:
        if isinstance(choice.delta, dict):
            (self._parts.get(index) or self._begin_choice(index)).add(choice.delta)
        if index == 0:
            self._finish_reason = _text_or_none(choice.finish_reason) or self._finish_reason

    def _begin_choice(self, index: int) -> MessageBuilder:
        if len(self._parts) >= MAX_CHOICES:
            raise ReplyTooLarge("more choices than can be asked for")
        message = self._parts[index] = MessageBuilder(self._budget)
        return message


class ChatReplyReader(ReplyFrame):
    """A reader of a chat completion."""

    _create_stream = _StreamedReply
    _read_whole = staticmethod(read_whole)


def _read_text(event: Event) -> str | None:
    """Return the text of an event that says nothing else; None: it has to be read as a whole."""
    if TEXT_HINT not in event.data or event.type == b"error":
        return None
    try:
        text: str = _text_chunk.decode(event.data).choices[0].delta.content
    except (ValueError, RecursionError):
        return None
    return text


def _read_chunk(data: bytes) -> _Chunk:
    """Read an event; an unexpected JSON value gives an empty chunk. Raise ReplyTooLarge."""
    if is_too_large(data):
        raise ReplyTooLarge("more JSON values than any model says")
    chunk: _Chunk = decode_or_none(_chunk, data) or _read_odd_chunk(data)
    if len(chunk.choices) > MAX_CHOICES:
        raise ReplyTooLarge("more choices than can be asked for")
    return chunk


def _read_odd_chunk(data: bytes) -> _Chunk:
    """Read an event whose choices are no list of objects. A choice of another kind keeps its
    index."""
    odd: _Completion | None = decode_or_none(_completion, data)
    if odd is None:
        return _Chunk()
    choices = _read_remark(odd.choices)
    delta_choices = [
        _DeltaChoice(choice.get("index"), choice.get("delta"), choice.get("finish_reason"))
        if isinstance(choice, dict)
        else NO_DELTA
        for choice in (choices if isinstance(choices, list) else ())
    ]
    return _Chunk(delta_choices, odd.usage, odd.error)


def _choose_index(value: Any, position: int) -> int:
    return value if type(value) is int else position


def _read_remark(raw: Raw) -> Any:
    """Return the value; None for a missing value or one that is too long."""
    return None if raw == _NULL or len(raw) > MAX_REMARK_BYTES else decode_or_none(_any, raw)


def _is_error(error: Raw) -> bool:
    """Return whether there is an error, even one too long or too odd to read."""
    if error == _NULL:
        return False
    value = _read_remark(error)
    return value is None or bool(value)


def _text_or_none(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


class DoneFinder:
    """A search for a stream's `data: [DONE]`, without parsing the stream.

    It costs one search a chunk: a model's stream has thousands of chunks and one end.
    """

    # bytes of an unfinished `[DONE]` line that may be in earlier chunks
    _MAX_UNFINISHED_BYTES = len(b"\ndata: [DONE")

    def __init__(self) -> None:
        self._before = LINE_END

    def feed(self, chunk: bytes) -> int | None:
        """Return the offset in this chunk where the line `[DONE]` starts; 0: it began in an earlier
        chunk. None: it is not in this chunk.

        The line is found when its `]` comes: the bytes before it, in earlier chunks, end no stream.
        """
        if self._before == LINE_END and DONE not in chunk and chunk.endswith(LINE_END):
            return None  # whole lines, as nearly all chunks are
        window = self._before + chunk
        line_start = self._find_line(window)
        if line_start is None:
            unfinished = window[-self._MAX_UNFINISHED_BYTES :]
            self._before = LINE_END if unfinished.endswith(LINE_END) else unfinished
            return None
        offset = max(0, line_start - len(self._before))
        self._before = b""
        return offset

    @staticmethod
    def _find_line(window: bytes) -> int | None:
        data_start = window.find(DONE)
        while data_start >= 0:
            for opening in (b"data: ", b"data:"):
                start = data_start - len(opening)
                if start > 0 and window.startswith(opening, start) and window[start - 1] in b"\r\n":
                    return start
            data_start = window.find(DONE, data_start + 1)
        return None


# ── the usage ─────────────────────────────────────────────────────────────────────────────────────
#
# Servers name the parts of the input differently.
#
# - OpenAI: `prompt_tokens_details.cached_tokens`; OpenRouter adds `cache_write_tokens` beside it.
# - DeepSeek: `prompt_cache_hit_tokens`.
# - LiteLLM, for Anthropic's models: `cache_read_input_tokens` and `cache_creation_input_tokens`.
# - Gemini and xAI count a model's thinking in `total_tokens`, but not in `completion_tokens`.

MAX_REPORTED_TOKENS = 10**9  # more is no count of one call
Count = Annotated[int, Meta(ge=0, le=MAX_REPORTED_TOKENS)] | None


class _InputDetails(Struct, gc=False):
    cached_tokens: Count = None
    cache_write_tokens: Count = None


NO_DETAILS = _InputDetails()


class _Reported(Struct):
    """The members that are read, where each is a count."""

    prompt_tokens: Count = None
    completion_tokens: Count = None
    total_tokens: Count = None
    prompt_tokens_details: _InputDetails | None = None
    prompt_cache_hit_tokens: Count = None
    cache_read_input_tokens: Count = None
    cache_creation_input_tokens: Count = None


def read_usage(reported: Any) -> Usage | None:
    """Return the usage; None if the server reports no tokens. The parts never exceed the input."""
    if not isinstance(reported, dict):
        return None
    try:
        found = convert(reported, _Reported)
    except ValidationError:
        details = _select_counts(reported.get("prompt_tokens_details"))
        found = convert({**_select_counts(reported), "prompt_tokens_details": details}, _Reported)
    input_tokens = found.prompt_tokens or 0
    output_tokens = found.completion_tokens or 0
    if input_tokens and found.total_tokens:
        output_tokens = max(output_tokens, found.total_tokens - input_tokens)
    if not input_tokens and not output_tokens:
        return None
    parts = found.prompt_tokens_details or NO_DETAILS
    cached_tokens = (
        parts.cached_tokens or found.prompt_cache_hit_tokens or found.cache_read_input_tokens or 0
    )
    cache_write_tokens = parts.cache_write_tokens or found.cache_creation_input_tokens or 0
    if cached_tokens or cache_write_tokens:
        cached_tokens = min(cached_tokens, input_tokens)
        cache_write_tokens = min(cache_write_tokens, input_tokens - cached_tokens)
    return Usage(input_tokens, cached_tokens, cache_write_tokens, output_tokens)


def _select_counts(reported: Any) -> dict[str, int]:
    """Return the members that are counts, of a usage that has others under their names."""
    if not isinstance(reported, dict):
        return {}
    return {
        name: value
        for name, value in reported.items()
        if type(value) is int and 0 <= value <= MAX_REPORTED_TOKENS
    }
