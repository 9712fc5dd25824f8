"""The parts of the Store protocol, by theme. Their docstrings are the contract, and `Store` says what
holds of every method."""
