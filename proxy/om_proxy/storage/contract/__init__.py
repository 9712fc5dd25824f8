"""The parts of the Store protocol, by theme. Their docstrings are the contract."""
