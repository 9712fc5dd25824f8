"""Find a provider's key in the environment, and the configured models that have none.

A provider's variable serves that provider alone: its value is never sent to another server's
address. litellm reads the same variables itself. The table names a missing one without importing
litellm (2 to 6 s).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

# Any one of a provider's variables is enough; the first is the one to name.
# tests/agents/model_access/test_credentials.py compares them with litellm. Clouds (bedrock,
# sagemaker, vertex_ai) find credentials in other ways too, and local servers need none: both are
# left out.
KEY_VARIABLES: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"),
    "azure": ("AZURE_API_KEY", "AZURE_OPENAI_API_KEY", "AZURE_AD_TOKEN"),
    "azure_ai": ("AZURE_AI_API_KEY", "AZURE_API_KEY"),
    "cerebras": ("CEREBRAS_API_KEY",),
    "cohere": ("COHERE_API_KEY", "CO_API_KEY"),
    "cohere_chat": ("COHERE_API_KEY", "CO_API_KEY"),
    "dashscope": ("DASHSCOPE_API_KEY",),
    "deepinfra": ("DEEPINFRA_API_KEY",),
    "deepseek": ("DEEPSEEK_API_KEY",),
    "fireworks_ai": (
        "FIREWORKS_AI_API_KEY",
        "FIREWORKS_API_KEY",
        "FIREWORKSAI_API_KEY",
        "FIREWORKS_AI_TOKEN",
    ),
    "gemini": ("GEMINI_API_KEY", "GOOGLE_API_KEY"),
    "groq": ("GROQ_API_KEY",),
    "huggingface": ("HUGGINGFACE_API_KEY", "HF_TOKEN"),
    "mistral": ("MISTRAL_API_KEY",),
    "moonshot": ("MOONSHOT_API_KEY",),
    "nvidia_nim": ("NVIDIA_NIM_API_KEY",),
    "openai": ("OPENAI_API_KEY",),
    "openrouter": ("OPENROUTER_API_KEY", "OR_API_KEY"),
    "perplexity": ("PERPLEXITYAI_API_KEY", "PERPLEXITY_API_KEY"),
    "replicate": ("REPLICATE_API_KEY", "REPLICATE_API_TOKEN"),
    "text-completion-openai": ("OPENAI_API_KEY",),
    "together_ai": (
        "TOGETHERAI_API_KEY",
        "TOGETHER_API_KEY",
        "TOGETHER_AI_API_KEY",
        "TOGETHER_AI_TOKEN",
    ),
    "xai": ("XAI_API_KEY",),
    "zai": ("ZAI_API_KEY",),
}
# The hosts, with their subdomains, that may get a provider's key where the proxy itself asks over
# HTTP.
PROVIDER_HOSTS: Mapping[str, tuple[str, ...]] = {
    "anthropic": ("api.anthropic.com",),
    "cerebras": ("api.cerebras.ai",),
    "dashscope": (
        "dashscope.aliyuncs.com",
        "dashscope-intl.aliyuncs.com",
        "dashscope-us.aliyuncs.com",
    ),
    "deepinfra": ("api.deepinfra.com",),
    "deepseek": ("api.deepseek.com",),
    "fireworks_ai": ("api.fireworks.ai",),
    "groq": ("api.groq.com",),
    "mistral": ("api.mistral.ai",),
    "moonshot": ("api.moonshot.ai", "api.moonshot.cn"),
    "nvidia_nim": ("integrate.api.nvidia.com",),
    "openai": ("api.openai.com",),
    "openrouter": ("openrouter.ai",),
    "perplexity": ("api.perplexity.ai",),
    "together_ai": ("api.together.xyz", "api.together.ai"),
    "xai": ("api.x.ai",),
    "zai": ("api.z.ai",),
}
# Keys of a subscription, which its provider allows the program to use that it was given to, and no
# other. The proxy passes them on with the requests that they came with.
SUBSCRIPTION_KEY_BEGINNING = "sk-ant-oat"
_LOCAL_PROVIDERS = ("ollama", "ollama_chat")  # need no key
_MODEL_FAMILIES = (  # names that litellm knows without their provider's prefix
    (re.compile(r"gpt-|o\d(?:-|$)"), "openai"),
    (re.compile(r"claude-"), "anthropic"),
    (re.compile(r"command-"), "cohere"),
)


def read_provider(model: str) -> str | None:
    """Read the provider from a model's name. Return None if the name holds none."""
    if model == "default":
        return "gemini"
    prefix, _, own_name = model.partition("/")
    if own_name:
        return prefix
    return next((provider for pattern, provider in _MODEL_FAMILIES if pattern.match(model)), None)


def find_key(model: str, base_url: str | None, environ: Mapping[str, str]) -> str | None:
    """Find the key in the provider's variable, for the provider's own address only. Return None if
    there is none."""
    provider = read_provider(model) or ""
    if base_url is not None and not is_provider_host(provider, base_url):
        return None
    return next(
        (environ[name] for name in KEY_VARIABLES.get(provider, ()) if environ.get(name)), None
    )


def may_find_credential(model: str, environ: Mapping[str, str]) -> bool:
    """Return whether litellm may find a credential for a model. If in doubt, return True: clouds
    have files and machines' own identities."""
    provider = read_provider(model)
    if names := KEY_VARIABLES.get(provider or ""):
        return any(environ.get(name) for name in names)
    return provider not in _LOCAL_PROVIDERS


def is_subscription_key(credential: str) -> bool:
    """Return whether no call of the proxy's own may have this credential: a key, or the value of the
    header that carries one."""
    return credential.removeprefix("Bearer ").strip().startswith(SUBSCRIPTION_KEY_BEGINNING)


def is_provider_host(provider: str, base_url: str) -> bool:
    """Return whether an address is one of the provider's own. It must be https: a key does not
    travel in the clear."""
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    return parts.scheme == "https" and any(
        host == own or host.endswith(f".{own}") for own in PROVIDER_HOSTS.get(provider, ())
    )


def list_missing_variables(
    model: str, base_url: str | None, environ: Mapping[str, str]
) -> tuple[str, ...]:
    """List the variables of which none is set, for a model without its own key. Return an empty
    list if nothing is known to be missing."""
    provider = read_provider(model) or ""
    is_own_address = base_url is None or is_provider_host(provider, base_url)
    names = KEY_VARIABLES.get(provider, ()) if is_own_address else ()
    return () if any(environ.get(name) for name in names) else names


def reveal_secret(secret: Any) -> str | None:
    """Return the text of a setting's secret, or None for an empty one."""
    if not secret:
        return None
    return (secret if isinstance(secret, str) else secret.get_secret_value()) or None
