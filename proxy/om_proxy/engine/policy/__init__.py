"""The meaning of the settings for one memory: thresholds, prices, models, and when work is due."""

from om_proxy.engine.policy.operator_keys import list_open_keys, list_paid_models
from om_proxy.engine.policy.policy import (
    Instructions,
    MemoryContext,
    Policy,
    PolicyInForce,
    find_token_prices,
    resolve_model,
)

__all__ = [
    "Instructions",
    "MemoryContext",
    "Policy",
    "PolicyInForce",
    "find_token_prices",
    "list_open_keys",
    "list_paid_models",
    "resolve_model",
]
