"""The store on a Redis server."""
