"""Answer the look-ups that a model makes during a reply. Start with recalling.py."""
