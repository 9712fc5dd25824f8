"""The domain: the values a conversation's memory is made of, and every rule about it, as pure
functions of plain values."""
