"""The values that the contract of a store speaks of; they know nothing of tables."""
