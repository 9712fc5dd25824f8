"""Providers of models, by the prefixes that litellm gives their models."""

from __future__ import annotations

# name no provider, but how a server of one's own is spoken to
WIRE_FORMATS = frozenset(
    {"openai_like", "custom_openai", "hosted_vllm", "litellm_proxy", "lm_studio", "llamafile"}
)
# litellm's names for servers that speak OpenAI's API: only the part after the prefix is sent
OPENAI_COMPATIBLE = WIRE_FORMATS | frozenset(
    {
        "openai",
        "openrouter",
        "groq",
        "deepseek",
        "together_ai",
        "fireworks_ai",
        "xai",
        "mistral",
        "cerebras",
        "nvidia_nim",
        "perplexity",
        "deepinfra",
        "moonshot",
        "dashscope",
        "zai",
    }
)
# providers with an API of their own: litellm translates, also for another base
NATIVE_PROVIDERS = frozenset(
    {
        "anthropic",
        "azure",
        "azure_ai",
        "bedrock",
        "cohere",
        "cohere_chat",
        "gemini",
        "huggingface",
        "ollama",
        "ollama_chat",
        "palm",
        "predibase",
        "replicate",
        "sagemaker",
        "sagemaker_chat",
        "snowflake",
        "text-completion-openai",
        "vertex_ai",
        "vertex_ai_beta",
        "watsonx",
        "watsonx_text",
    }
)
# that are paid: the key of one must not reach another. `palm` serves no model any more.
PAID_PROVIDERS = (OPENAI_COMPATIBLE | NATIVE_PROVIDERS) - WIRE_FORMATS - {"palm"}
