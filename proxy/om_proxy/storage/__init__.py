"""Keeps memories. `base` is the contract, each folder a backend; each `…_store` stands in front."""
