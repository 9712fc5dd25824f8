"""What is known of models without asking them and without importing litellm: encodings, prices, limits, habits."""

from om_proxy.catalogue.counting import Catalogue
from om_proxy.catalogue.encodings import count, encoder, encoder_name, load
from om_proxy.catalogue.habits import warnings
from om_proxy.catalogue.models import Abilities, Price, limits, prices

__all__ = [
    "Abilities",
    "Catalogue",
    "Price",
    "count",
    "encoder",
    "encoder_name",
    "limits",
    "load",
    "prices",
    "warnings",
]
