"""The whole proxy, from a client's request to the upstream and back."""
