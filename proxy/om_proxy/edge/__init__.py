"""The HTTP interface that clients see."""
