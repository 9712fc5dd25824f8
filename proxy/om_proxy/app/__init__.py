"""Make the parts of a server, join them, and send each request to its part.

Start with `app.py`, which makes the ASGI application and its lifespan. `composition.py` makes the
parts that commands need too, `store_opening.py` opens the store, and `router.py` finds the handler
of a request.
"""
