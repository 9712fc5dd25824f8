"""Look up list prices as the ledger computes with them."""

from __future__ import annotations

from functools import lru_cache

from om_proxy.agents.models import find_price
from om_proxy.memory.token_prices import TokenPrices

PICODOLLARS_PER_DOLLAR = 10**12


# pure, as the price table does not change while the process runs; a look-up takes 4 µs, and every
# turn needs one
@lru_cache(maxsize=1024)
def find_token_prices(model: str) -> TokenPrices | None:
    """Return the list prices of a model; None if they are not known."""
    price = find_price(model)
    if price is None:
        return None
    dollars = (price.input, price.cached_input, price.cache_write, price.output)
    return TokenPrices(*(round(amount * PICODOLLARS_PER_DOLLAR) for amount in dollars))
