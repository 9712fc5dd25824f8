"""The servers: what each refuses, how it talks, and where that is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.e2e.providers.rules import (
    ALTERNATE,
    CALLS,
    DEFAULT_TEMPERATURE,
    FOUR_MARKS,
    GITHUB,
    MISTRAL_ORDER,
    NEW_LIMIT,
    NINE_CHARS,
    NO_SYSTEM,
    ONE_THOUGHT,
    PAIRS,
    TEXT_OR_THOUGHT,
    Body,
    Message,
    Rule,
    assistants,
    limit_output,
    refuse_empty,
    refuse_late_system,
    refuse_members,
    refuse_null,
    refuse_tools,
)
from tests.e2e.providers.voices import FILTER_EVENT, THOUGHT, Voice


@dataclass(frozen=True)
class Server:
    name: str
    title: str
    address: str  # of the real one: by its host, memory chooses where its texts go
    rules: tuple[Rule, ...]
    voice: Voice = Voice()  # noqa: RUF009  # frozen
    # what its clients send
    has_tools: bool = True
    has_system: bool = True
    has_marks: bool = False  # whether they mark their newest messages for the prompt cache

    def can_look_up(self) -> bool:
        """Return whether it takes a tool, and what comes of its calls."""
        return not any(rule.words in (ANY_TOOL, CALLS.words) for rule in self.rules)


def take_back(
    words: str, source: str, complaint: str, check: Callable[[Message, int], bool]
) -> Rule:
    """Make a rule for messages with calls, which must come back as they were said. `check`: gets the
    message, and the number of its first call."""

    def find(body: Body) -> str | None:
        for i, message in assistants(body):
            calls = message.get("tool_calls")
            number = int(calls[0]["id"].rpartition("_")[2]) if calls else 0
            if calls and not check(message, number):
                return f"messages.{i}: {complaint}"
        return None

    return Rule(words, source, find)


def _is_whole(blocks: Any, member: str, number: int) -> bool:
    signature = f"S{number // 10}"
    thoughts = [(block.get(member), block.get("signature")) for block in blocks or ()]
    return thoughts == [("".join(THOUGHT), signature)]


DETAILS_BACK = take_back(
    "`reasoning_details` beside calls that are not whole",
    GITHUB + "NousResearch/hermes-agent/issues/93219",
    "thinking blocks in the assistant message cannot be modified",
    lambda message, number: _is_whole(message.get("reasoning_details"), "text", number),
)
BLOCKS_BACK = take_back(
    "`thinking_blocks` beside calls that are not whole",
    GITHUB + "openai/openai-agents-python/issues/1704",
    "Expected `thinking`, but found `tool_use`",
    lambda message, number: _is_whole(message.get("thinking_blocks"), "thinking", number),
)
REASONING_BACK = take_back(
    "calls without their `reasoning_content`",
    GITHUB + "danny-avila/LibreChat/issues/13366",
    "The `reasoning_content` in the thinking mode must be passed back to the API.",
    lambda message, number: message.get("reasoning_content") == "".join(THOUGHT),
)
SIGNATURES_BACK = take_back(
    "calls of which the first has not its signature",
    "https://ai.google.dev/gemini-api/docs/thought-signatures",
    "Function call is missing a thought_signature in functionCall parts",
    lambda message, number: (
        message["tool_calls"][0].get("extra_content", {}).get("google")
        == {"thought_signature": f"SIG{number}"}
    ),
)
CONTEXT_TOKENS = 32_768
VLLM_LIMIT = limit_output(
    CONTEXT_TOKENS,
    "This model's maximum context length is {context} tokens. However, you requested {asked} output "
    "tokens and your prompt contains at least {prompt} input tokens. Please reduce the length of the "
    "input prompt or the number of requested output tokens.",
    GITHUB + "0xku/kon/issues/91",
)
NO_NULL = refuse_null(GITHUB + "livekit/agents/issues/1297")
ANY_TOOL = "any tool"

SERVERS = (
    Server(
        "openai",
        "OpenAI",
        "https://api.openai.com/v1",
        (PAIRS, NO_NULL, NEW_LIMIT, DEFAULT_TEMPERATURE),
        Voice(remarks={"refusal": None, "annotations": []}, call_count=2),
    ),
    Server(
        "azure",
        "Azure OpenAI",
        "https://x.openai.azure.com/openai/v1",
        (PAIRS, NO_NULL, NEW_LIMIT, DEFAULT_TEMPERATURE),
        Voice(remarks={"refusal": None}, opening=FILTER_EVENT),
    ),
    Server(
        "anthropic",
        "Anthropic through a gateway",
        "https://gateway.example/v1",
        (
            PAIRS,
            FOUR_MARKS,
            BLOCKS_BACK,
            refuse_empty(GITHUB + "tashfeenahmed/freellmapi/issues/165"),
        ),
        Voice(
            "thinking_blocks",
            passes_back=("thinking_blocks",),
            remarks={"provider_specific_fields": {"citations": None}},
            call_count=2,
        ),
        has_marks=True,
    ),
    Server(
        "gemini",
        "Gemini",
        "https://generativelanguage.googleapis.com/v1beta/openai",
        (PAIRS, SIGNATURES_BACK),
        Voice(signs_calls=True, has_call_index=False, call_count=2),
    ),
    Server(
        "mistral",
        "Mistral",
        "https://api.mistral.ai/v1",
        (
            PAIRS,
            MISTRAL_ORDER,
            NINE_CHARS,
            ONE_THOUGHT,
            refuse_empty(GITHUB + "OpenHands/OpenHands/issues/8685"),
            refuse_members(
                ("refusal", "annotations", "reasoning_content"),
                GITHUB + "charmbracelet/crush/issues/1590",
                422,
            ),
        ),
        Voice("parts", make_call_id=lambda number: f"abc{number:06}", remarks={"refusal": None}),
    ),
    Server(
        "groq",
        "Groq",
        "https://api.groq.com/openai/v1",
        (
            PAIRS,
            refuse_members(
                ("reasoning", "reasoning_content", "annotations", "executed_tools"),
                GITHUB + "karthink/gptel/issues/774",
            ),
        ),
        Voice("reasoning", remarks={"executed_tools": [], "annotations": []}),
    ),
    Server(
        "deepseek",
        "DeepSeek",
        "https://api.deepseek.com/v1",
        (
            PAIRS,
            refuse_null(GITHUB + "carlrobertoh/ProxyAI/issues/830"),
            REASONING_BACK,
        ),
        Voice(
            "reasoning_content",
            passes_back=("reasoning_content",),
            beat=b": keep-alive\n\n",
            talks_beside_calls=True,
        ),
    ),
    Server(
        "openrouter",
        "OpenRouter",
        "https://openrouter.ai/api/v1",
        (
            PAIRS,
            DETAILS_BACK,
            limit_output(
                131_072,
                "This endpoint's maximum context length is {context} tokens. However, you requested "
                "about {asked} tokens in the output.",
                GITHUB + "OpenHands/OpenHands/issues/9937",
            ),
        ),
        Voice(
            "reasoning_details",
            passes_back=("reasoning_details",),
            remarks={"refusal": None},
            beat=b": OPENROUTER PROCESSING\n\n",
        ),
    ),
    Server(
        "openrouter-plain",
        "OpenRouter, a model without tools",
        "https://openrouter.ai/api/v1",
        (
            # of one behind it
            refuse_empty(GITHUB + "anomalyco/opencode/issues/6056"),
            refuse_tools(
                ANY_TOOL,
                GITHUB + "evalstate/fast-agent/issues/122",
                "No endpoints found that support tool use.",
                404,
            ),
        ),
        Voice("reasoning", beat=b": OPENROUTER PROCESSING\n\n"),
        has_tools=False,
    ),
    Server(
        "parasail",
        "Parasail, a model that takes no calls back",
        "https://api.parasail.io/v1",
        (CALLS,),
        has_tools=False,
    ),
    Server(
        "vllm-qwen",
        "vLLM with Qwen's template",
        "http://vllm.internal:8000/v1",
        (PAIRS, VLLM_LIMIT, refuse_late_system(GITHUB + "vllm-project/vllm/issues/41114")),
        Voice(
            "reasoning",
            remarks={"refusal": None, "annotations": None, "audio": None, "function_call": None},
        ),
    ),
    Server(
        "vllm-gemma",
        "vLLM with Gemma's template",
        "http://vllm.internal:8000/v1",
        (
            VLLM_LIMIT,
            NO_SYSTEM,
            ALTERNATE,
            refuse_tools(
                ANY_TOOL,
                "https://docs.vllm.ai/en/latest/features/tool_calling.html",
                '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be '
                "set",
                400,
            ),
        ),
        has_tools=False,
        has_system=False,
    ),
    Server(
        "sglang",
        "SGLang",
        "http://sglang.internal:30000/v1",
        (
            PAIRS,
            limit_output(
                CONTEXT_TOKENS,
                "Requested token count exceeds the model's maximum context length of {context} "
                "tokens. You requested a total of {asked} tokens for the completion.",
                GITHUB + "sgl-project/sglang/blob/main/python/sglang/srt/managers/"
                "tokenizer_manager.py",
            ),
        ),
        Voice("reasoning_content", remarks={"tool_calls": None}),
    ),
    Server(
        "llama-cpp-jinja",
        "llama.cpp with `--jinja`",
        "http://llama.internal:8080/v1",
        (PAIRS, refuse_late_system(GITHUB + "ggml-org/llama.cpp/issues/20733", 500)),
        # the same id for every call: https://github.com/NousResearch/hermes-agent/issues/70724
        Voice("reasoning_content", make_call_id=lambda _: "ZsSt4SkIFMRz0HtqT7MTlimNvzlKM896"),
    ),
    Server(
        "llama-cpp",
        "llama.cpp without templates",
        "http://llama.internal:8080/v1",
        (
            refuse_tools(
                ANY_TOOL,
                GITHUB + "pydantic/pydantic-ai/issues/2896",
                "tools param requires --jinja flag",
                500,
            ),
        ),
        has_tools=False,
    ),
    Server(
        "ollama",
        "Ollama, a model without tools",
        "http://ollama.internal:11434/v1",
        (
            refuse_tools(
                ANY_TOOL,
                GITHUB + "ollama/ollama/issues/14795",
                "registry.ollama.ai/library/x does not support tools",
                400,
            ),
        ),
        Voice("reasoning"),
        has_tools=False,
    ),
    Server(
        "lm-studio",
        "LM Studio",
        "http://lmstudio.internal:1234/v1",
        (PAIRS, TEXT_OR_THOUGHT, refuse_late_system(GITHUB + "ggml-org/llama.cpp/issues/20733")),
        Voice("reasoning_content", talks_beside_calls=True),
    ),
    Server(
        "tgi",
        "TGI",
        "http://tgi.internal:8080/v1",
        (
            limit_output(
                CONTEXT_TOKENS,
                "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {context}. "
                "Given: {prompt} `inputs` tokens and {asked} `max_new_tokens`",
                GITHUB + "huggingface/text-generation-inference/blob/main/router/src/validation.rs",
                422,
            ),
        ),
        # as its documentation shows a call:
        # https://huggingface.co/docs/text-generation-inference/basic_tutorials/using_guidance
        Voice(make_call_id=lambda _: "0", has_object_arguments=True),
    ),
)
