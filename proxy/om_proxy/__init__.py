"""om-proxy: memory that never ends for every LLM client, as a transparent OpenAI-compatible proxy.

One request, one path, always read downwards:

    client ── POST /v1/chat/completions
      edge/router.py               find the route
      edge/chat.py                 read the body once; without a thread: forward its bytes
        turns/engine.py            open the turn:
          identity/callers.py      whose thread is this?
          memory_cache/loading.py  load the thread's memory (bounded, checked by version)
          memory/transcript/         what is new in what the client sent?
          memory/lifecycle/          what is due before forwarding? (mostly nothing)
          turns/due_notes.py       activate notes, or wait for an observation
          turns/prompt_builder.py  instructions · observation block · hint · tail
      upstream/calls.py            forward; only the messages of the body change
      edge/turn_closing.py         relay the answer, and store the turn before the last byte goes out:
        edge/relay.py              each chunk to the client first, then a copy to apis/
        turns/committing.py        close the turn: commit it
      background/scheduler.py      after the reply, one job at a time for each thread:
          memory/lifecycle/          Observe, Reflect or nothing?
          background/performers/   ask agents/observer.py or agents/reflector.py
          memory/notes/              read the answer → memory_cache/memories.py → storage/
"""

__version__ = "0.1.0"
