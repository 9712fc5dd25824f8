"""What is known of models without asking them and without importing litellm: encodings, prices, limits, habits."""

from proxy.catalogue.counting import Catalogue
from proxy.catalogue.encodings import count, encoder, encoder_name, load
from proxy.catalogue.habits import warnings
from proxy.catalogue.models import Abilities, Price, limits, prices

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
