"""om-proxy: memory that never ends for every LLM client, as a transparent OpenAI-compatible proxy.

One request, one path, always read downwards:

    client ── POST /v1/chat/completions
      edge/chat.py            read the body once; no thread → edge/passthrough.py, byte for byte
        engine.open_turn      ┌ memory/identity.py     whose thread is this?
                              │ memories.py            load the thread's memory (bounded; cached, version-checked)
                              │ memory/transcript.py   reconcile: what is new in what the client sent?
                              │ memory/lifecycle.py    decide: what is due before forwarding? (mostly nothing, or Activate)
                              └ prompt.py              assemble with memory/context.py: instructions · observation block · hint · tail
      upstream/calls.py       forward; headers and body untouched but for the messages
      edge/tee.py             each chunk to the client first, then a copy to wire/ → Reply
        engine.close_turn     commit the turn (before the last byte goes out; bounded), then hand over
      background.py           after the reply, one at a time per thread:
                              ┌ memory/lifecycle.py    decide → Observe | Reflect | nothing
                              │ observing.py           performs it: agents/observer.py, agents/reflector.py
                              └ memory/observations.py parse → lifecycle.observed(…) → memories.py → storage
"""

__version__ = "0.1.0"
