# ruff: noqa: E501 - a server's error is one line
"""Errors of real servers: which of them say that the prompt is too long."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from om_proxy.wire.apis.refusals import (
    MAX_ERROR_NESTING,
    has_first_event,
    has_too_long_text,
    is_prompt_too_long,
    read_wrapped_status,
)

# Bodies as the servers send them; numbers and ids made up.
TOO_LONG = {
    "OpenAI": (400, b'{"error":{"message":"This model\'s maximum context length is 128000 tokens. However, your messages resulted in 204308 tokens. Please reduce the length of the messages.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}'),
    "OpenAI, newer": (400, b'{"error":{"message":"Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 300000 tokens.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}'),
    "OpenAI, window": (400, b'{"error":{"message":"Your input exceeds the context window of this model. Please adjust your input and try again.","type":"invalid_request_error","param":"input","code":null}}'),
    "OpenAI, too many messages": (400, b'{"error":{"message":"Invalid \'messages\': array too long. Expected an array with maximum length 2048, but got an array with length 2100 instead.","type":"invalid_request_error","param":"messages","code":"array_above_max_length"}}'),
    "Azure": (400, b'{"error":{"code":"context_length_exceeded","message":"too long"}}'),
    "Anthropic": (400, b'{"error":{"code":"invalid_request_error","message":"prompt is too long: 213462 tokens > 200000 maximum","type":"invalid_request_error","param":null}}'),
    "Anthropic, with the answer": (400, b'{"type":"error","error":{"type":"invalid_request_error","message":"input length and `max_tokens` exceed context limit: 198214 + 8192 > 200000, decrease input length or `max_tokens` and try again"}}'),
    "Anthropic, bytes": (413, b'{"type":"error","error":{"type":"request_too_large","message":"Request exceeds the maximum size"}}'),
    "Gemini": (400, b'[{"error":{"code":400,"message":"The input token count (1196265) exceeds the maximum number of tokens allowed (1048576).","status":"INVALID_ARGUMENT"}}]'),
    "Vertex": (400, b'{"error":{"code":400,"message":"Unable to submit request because the input token count is 300000 but model only supports up to 32768. Reduce the input token count and try again.","status":"INVALID_ARGUMENT"}}'),
    "Bedrock": (400, b'{"message":"Input is too long for requested model."}'),
    "Groq": (400, b'{"error":{"message":"Please reduce the length of the messages or completion.","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}}'),
    "Groq, tokens a minute": (413, b'{"error":{"message":"Request too large for model `m` in organization `o` on tokens per minute (TPM): Limit 6000, Requested 14810, please reduce your message size and try again.","type":"tokens","code":"rate_limit_exceeded"}}'),
    "Mistral": (400, b'{"object":"error","message":"Prompt contains 65673 tokens and 0 draft tokens, too large for model with 32768 maximum context length","type":"invalid_request_prompt","param":null,"code":"3051"}'),
    "DeepSeek": (400, b'{"error":{"message":"This model\'s maximum context length is 131072 tokens. However, you requested 131134 tokens (122942 in the messages, 8192 in the completion). Please reduce the length of the messages or completion.","type":"invalid_request_error","param":null,"code":"invalid_request_error"}}'),
    "xAI": (400, b'{"code":"Client specified an invalid argument","error":"This model\'s maximum prompt length is 131072 but the request contains 537812 tokens."}'),
    "Cohere": (400, b'{"message":"too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 7106."}'),
    "Cerebras": (400, b'{"message":"Please reduce the length of the messages or completion. Current length is 42328 while limit is 40000","type":"invalid_request_error","param":"messages","code":"context_length_exceeded"}'),
    "Fireworks": (400, b'{"error":{"object":"error","type":"invalid_request_error","message":"The prompt is too long: 140000, model maximum context length: 131071"}}'),
    "Together": (422, b'{"id":"x","error":{"message":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 8193. Given: 8740 `inputs` tokens and 500 `max_new_tokens`","type":"invalid_request_error","param":null,"code":null}}'),
    "OpenRouter": (400, b'{"error":{"message":"This endpoint\'s maximum context length is 40960 tokens. However, you requested about 61709 tokens (61709 of text input). Please reduce the length of either one","code":400}}'),
    "OpenRouter, wrapped": (400, b'{"error":{"message":"Provider returned error","code":400,"metadata":{"raw":"{\\"error\\":{\\"message\\":\\"This model\'s maximum context length is 262144 tokens. However, your messages resulted in 262897 tokens.\\",\\"type\\":\\"Bad Request\\",\\"code\\":400}}","provider_name":"Nvidia"}}}'),
    "Kimi": (400, b'{"error":{"message":"Invalid request: Your request exceeded model token limit: 131072 (requested: 140000)","type":"invalid_request_error"}}'),
    "MiniMax": (400, b'{"type":"error","error":{"type":"bad_request_error","message":"invalid params, context window exceeds limit (2013)","http_code":"400"}}'),
    "DashScope": (400, b'{"error":{"code":"invalid_parameter_error","message":"<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 983616]","param":null,"type":"invalid_request_error"},"request_id":"x"}'),
    "Zhipu": (400, b'{"error":{"code":"1261","message":"Prompt exceeds max length"}}'),
    "SiliconFlow": (400, b'{"code":20015,"message":"number of input tokens (204703) has exceeded max_prompt_tokens (202752) limit.","data":null}'),
    "GitHub Models": (413, b'{"error":{"code":"tokens_limit_reached","message":"Request body too large for gpt-4o model. Max size: 8000 tokens.","details":"Request body too large for gpt-4o model. Max size: 8000 tokens."}}'),
    "GitHub, for editors": (400, b'{"error":{"message":"prompt token count of 130000 exceeds the limit of 128000","code":"model_max_prompt_tokens_exceeded"}}'),
    "Cloudflare": (400, b'{"errors":[{"message":"AiError: The estimated number of input and maximum output tokens (9000) exceeded this model context window limit (8000).","code":5021}],"success":false}'),
    "LiteLLM": (400, b'{"error":{"message":"litellm.ContextWindowExceededError: litellm.BadRequestError: ...","type":null,"param":null,"code":"400"}}'),
    "vLLM": (400, b'{"object":"error","message":"This model\'s maximum context length is 131072 tokens. However, you requested 128000 output tokens and your prompt contains at least 3073 input tokens, for a total of at least 131073 tokens. (parameter=input_tokens, value=3073)","type":"BadRequestError","param":null,"code":400}'),
    "SGLang": (400, b'{"object":"error","message":"The input (61709 tokens) is longer than the model\'s context length (40960 tokens).","type":"BadRequestError","param":null,"code":400}'),
    "TGI": (422, b'{"error":"Input validation error: `inputs` must have less than 4095 tokens. Given: 5000","error_type":"validation"}'),
    "llama.cpp": (400, b'{"error":{"code":400,"message":"the request exceeds the available context size. try increasing the context size or enable context shift","type":"exceed_context_size_error","n_prompt_tokens":14429,"n_ctx":8192}}'),
    "llama-cpp-python": (400, b'{"error":{"message":"Requested tokens (2285) exceed context window of 2048","type":"invalid_request_error"}}'),
    "LM Studio": (400, b'{"error":"Trying to keep the first 15857 tokens when context the overflows. However, the model is loaded with context length of only 4096 tokens, which is not enough."}'),
    "LM Studio, MLX": (400, b'{"error":"Context size has been exceeded"}'),
    "OpenVINO": (400, b'{"error":"Input length exceeds the maximum allowed length"}'),
    "no JSON": (400, b"Error: prompt is too long\n"),
    "an event": (400, b'data: {"error":{"message":"context length exceeded"}}\n\n'),
    "nginx": (413, b"<html><head><title>413 Request Entity Too Large</title></head></html>"),
    "no body": (413, b""),
}  # fmt: skip

STREAM = b'event: response.created\ndata: {"type":"response.created","response":{"error":null,"instructions":"prompt is too long"}}\n\n'
FAILED = b'data: {"type":"response.failed","response":{"metadata":{"message":"prompt is too long"},"error":{"code":"%s","message":""}}}\n\n'
TOO_LONG |= {
    "OpenAI, items": (400, b'{"error":{"message":"Invalid \'input\': array too long.","code":"array_above_max_length"}}'),
    "OpenAI, in a stream": (400, STREAM + FAILED % b"context_length_exceeded"),
    "OpenAI, alone in a stream": (400, b'event: error\ndata: {"type":"error","code":"context_length_exceeded","message":"no"}\n\n'),
}  # fmt: skip
OTHERS = {
    "another failure in a stream": (400, STREAM + FAILED % b"server_error"),
    "no body": (400, b""),
    "empty": (400, b'{"error":{}}'),
    "the answer's length": (400, b'{"error":{"message":"max_tokens is too large: 200000. This model supports at most 16384 completion tokens, whereas you provided 200000.","type":"invalid_request_error","param":"max_tokens","code":"invalid_value"}}'),
    "an unknown parameter": (400, b'{"error":{"message":"Unrecognized request argument supplied: context_length","type":"invalid_request_error","param":null,"code":null}}'),
    "another unknown parameter": (400, b'{"error":{"message":"Unknown parameter: \'context_window\'.","param":"context_window","code":"unknown_parameter"}}'),
    "a key": (400, b'[{"error":{"code":400,"message":"API key not valid. Please pass a valid API key.","status":"INVALID_ARGUMENT"}}]'),
    "an image": (400, b'{"error":{"message":"image exceeds 5 MB maximum: 9437184 bytes > 5242880 bytes","type":"invalid_request_error"}}'),
    "too many tools": (400, b'{"error":{"message":"Invalid \'tools\': array too long. Expected an array with maximum length 128, but got an array with length 300 instead.","param":"tools","code":"array_above_max_length"}}'),
    "a tool's name": (400, b'{"error":{"message":"Invalid \'tools[0].function.name\': string too long. Expected a string with maximum length 64, but got a string with length 80 instead.","param":"tools[0].function.name","code":"string_above_max_length"}}'),
    "roles": (400, b'{"error":{"message":"Conversation roles must alternate user/assistant/user/assistant/...","type":"BadRequestError"}}'),
    "an orphan result": (400, b'{"error":{"message":"Invalid parameter: messages with role \'tool\' must be a response to a preceding message with \'tool_calls\'.","param":"messages.[1].role"}}'),
    "content policy": (400, b'{"error":{"code":"content_filter","message":"The response was filtered due to the prompt triggering the content management policy."}}'),
    "an extra field": (422, b'{"object":"error","message":{"detail":[{"type":"extra_forbidden","loc":["body","max_completion_tokens"],"msg":"Extra inputs are not permitted","input":32000}]},"type":"invalid_request_error"}'),
    "what the user said": (422, b'{"detail":[{"type":"missing","loc":["body","messages",0,"name"],"msg":"Field required","input":{"role":"user","content":"what does: maximum context length exceeded mean? prompt is too long"}}]}'),
    "what the user's tool is called": (400, b'{"error":{"message":"bad request","param":"context_length_exceeded"}}'),
    "a page": (400, b"<html><body><h1>400 Bad request</h1>Your browser sent an invalid request.</body></html>"),
}  # fmt: skip


@pytest.mark.parametrize("server", TOO_LONG)
def test_too_long(server: str) -> None:
    """However a server says it."""
    assert is_prompt_too_long(*TOO_LONG[server])


@pytest.mark.parametrize("what", OTHERS)
def test_not_too_long(what: str) -> None:
    """Another fault of the request, and one that quotes a user who speaks of such things."""
    assert not is_prompt_too_long(*OTHERS[what])


@pytest.mark.parametrize("status", [200, 401, 403, 404, 429, 500, 503])
def test_other_statuses(status: int) -> None:
    """A rate limit counts tokens as well, and a server's own fault may name anything."""
    assert not is_prompt_too_long(status, TOO_LONG["OpenAI"][1])


@pytest.mark.parametrize(("server", "says"), [("nginx", False), ("no body", False), ("GitHub Models", True), ("Groq, tokens a minute", True)])  # fmt: skip
def test_who_has_measured_the_prompt(server: str, says: bool) -> None:
    """A bare 413 may come from a gateway in front of the server, which knows no caller."""
    assert has_too_long_text(TOO_LONG[server][1]) is says


def test_every_body_says_it_by_itself() -> None:
    """No status is needed for an error that speaks."""
    silent = {name for name, (status, body) in TOO_LONG.items() if not has_too_long_text(body)}
    assert silent == {"nginx", "no body", "Anthropic, bytes"}


def test_a_page_is_read_at_its_beginning() -> None:
    """What is no JSON may hold anything further down."""
    assert not has_too_long_text(b"<html>" + b" " * 9_000 + b"prompt is too long")


def test_nesting_is_bounded() -> None:
    """An error wrapped more often than any router does is not looked into."""
    error: object = "prompt is too long"
    for _ in range(MAX_ERROR_NESTING):
        error = {"error": error}
    assert has_too_long_text(orjson.dumps(error))
    assert not has_too_long_text(orjson.dumps({"error": error}))
    assert not has_too_long_text(b"[" * 60_000)


@given(st.binary(max_size=2_000), st.sampled_from([400, 413, 422, 500]))
def test_any_bytes(body: bytes, status: int) -> None:
    """Nothing a server sends makes it raise."""
    assert is_prompt_too_long(status, body) in (True, False)
    assert is_prompt_too_long(status, b'{"error":' + body) in (True, False)


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b'{"error":{"code":404}}', 404),
        (b' {"error":{"code":"422"}}', 422),
        (b'{"error":{"code":"bad_template"}}', 400),
        (b'{"error":{"code":200}}', 400),
        (b'{"error":{"code":true}}', 400),
        (b'{"error":"no tools"}', 400),
        (b'{"object":"error","message":"no tools","code":404}', 404),
        (b'{"error":{"code":502},"choices":[]}', 502),
        (b'{"error":{"code":502},"choices":[{"finish_reason":"error"}]}', 502),
        (b'event: error\ndata: {"message":"no tools"}', 400),
        (b"event: error\ndata: no tools\n\n", 400),
        (b'\n: WAIT\n\ndata: {"error":{"code":404}}\n\ndata: [DONE]\n\n', 404),
        (b'{"choices":[{}]}', None),
        (b'{"choices":[{}],"error":{"code":404}}', None),
        (b'{"error":null}', None),
        (b'{"error":', None),
        (b'data: {"choices":[]}\n\ndata: {"error":{"code":404}}\n\n', None),
        (b"data: [DONE]\n\n", None),
        (b"<html>error</html>", None),
        (b"[" * 100_000, None),
        (b"", None),
    ],
)
def test_an_error_inside_a_200(body: bytes, status: int | None) -> None:
    assert read_wrapped_status(body) == status


@pytest.mark.parametrize(
    ("begun", "is_enough"),
    [
        (b"", False),
        (b" \n", False),
        (b": WAIT\n\n", False),
        (b"event: error\n", False),
        (b"\n {", True),
        (b": WAIT\n\ndata: x\n\n", True),
    ],
)
def test_a_body_that_has_begun(begun: bytes, is_enough: bool) -> None:
    assert has_first_event(begun) is is_enough
