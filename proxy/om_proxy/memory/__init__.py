"""The domain: what a conversation's memory is, and every rule about it, as pure functions of plain values."""
