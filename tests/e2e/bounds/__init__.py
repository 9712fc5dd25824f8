"""How much memory and time a request may cost."""
