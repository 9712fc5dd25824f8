"""The work on a memory after the reply: when it is due, and how it runs."""
