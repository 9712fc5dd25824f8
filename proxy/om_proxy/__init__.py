"""om-proxy: memory that never ends for every LLM client, as a transparent OpenAI-compatible proxy.

One request, one path, always read downwards:

    client ── POST /v1/chat/completions
      app/router.py                             find the route
      edge/chat.py                              read the body once; without a thread: forward its bytes
        engine/turns/engine.py                  open the turn:
          settings/identity/callers.py          whose thread is this?
          engine/memory_cache/loading.py        load the thread's memory (bounded, checked by version)
          memory/transcript/                    what is new in what the client sent?
          memory/lifecycle/                     what is due before forwarding? (mostly nothing)
          engine/turns/due_notes.py             activate notes, or wait for an observation
          engine/turns/prompt_builder.py        instructions · observation block · hint · tail
      wire/upstream/calls.py                    forward; only the messages of the body change
      edge/turn_closing.py                      relay the answer, and store the turn before the last byte goes out:
        edge/relay.py                           each chunk to the client first, then a copy to wire/apis/
        engine/turns/committing.py              close the turn: commit it
      engine/background/scheduler.py            after the reply, one job at a time for each thread:
          memory/lifecycle/                     Observe, Reflect or nothing?
          engine/background/performers/         ask agents/observer.py or agents/reflector.py
          memory/notes/                         read the answer → engine/memory_cache/memories.py → storage/
"""

# their types stand in __init__.pyi
__all__ = ["Call", "Conversation", "Stage", "Turn", "read_history"]
__version__ = "0.1.0"
_MODULES = {
    "Call": "conversation",
    "Conversation": "conversation",
    "Stage": "stage",
    "Turn": "stage",
    "read_history": "readers.registry",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: `serve` needs none of them."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module  # noqa: PLC0415 - see above

    return getattr(import_module(f"om_proxy.proof.{_MODULES[name]}"), name)
