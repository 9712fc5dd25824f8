"""Facts about models that are known without asking a model or importing litellm: encodings, prices,
limits and warnings."""

from om_proxy.agents.models.encodings import (
    TokenCounter,
    count_tokens,
    create_encoder,
    find_encoding_name,
    load_ranks,
)
from om_proxy.agents.models.price_list import (
    Abilities,
    Price,
    find_abilities,
    find_deprecation_date,
    find_listed_name,
    find_price,
    find_similar_name,
    list_providers,
)
from om_proxy.agents.models.small_models import (
    choose_default_model,
    find_small_model,
    list_model_warnings,
)

__all__ = [
    "Abilities",
    "Price",
    "TokenCounter",
    "choose_default_model",
    "count_tokens",
    "create_encoder",
    "find_abilities",
    "find_deprecation_date",
    "find_encoding_name",
    "find_listed_name",
    "find_price",
    "find_similar_name",
    "find_small_model",
    "list_model_warnings",
    "list_providers",
    "load_ranks",
]
