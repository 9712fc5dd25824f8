"""Choose the models that memory work asks."""

from __future__ import annotations

from collections.abc import Mapping

import structlog

from om_proxy.agents.model_access.llm import Target
from om_proxy.agents.model_access.targets import Choice, choose_targets, is_above_largest_tier
from om_proxy.agents.models import choose_default_model, find_small_model
from om_proxy.engine.policy import MemoryContext

logger = structlog.get_logger("memory")


def choose_memory_models(
    choice: Choice, context: MemoryContext, input_tokens: int, environ: Mapping[str, str]
) -> tuple[Target, ...]:
    """Return the models to ask, in order. `environ` may hold the keys of providers."""
    config = context.effective.memory
    key = config.api_key.get_secret_value() if config.api_key else None
    if is_above_largest_tier(choice, input_tokens):
        # the largest tier's model is asked all the same (docs/contributing/behaviour.md#models)
        logger.warning("model.above_tiers", input=input_tokens)
    inherited = context.inherited
    return choose_targets(
        choice,
        inherited=inherited,
        api_base=config.api_base,
        api_key=key,
        input_tokens=input_tokens,
        default_model=choose_default_model(),
        small_model=find_small_model(inherited.model, inherited.base_url) if inherited else None,
        environ=environ,
    )
