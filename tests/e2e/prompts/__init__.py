"""Clients of many kinds talk through a proxy on a real store. An oracle that knows what each has said
checks every prompt that reaches the model."""
