"""Compare what a client sent with what is stored, and apply the difference to the memory.

Words, in the order one needs them:

- *mark*: a stored message without its text (memory/model.py). A `StoredTranscript` holds marks.
- *sent history*: what the client sent after its instructions, parsed only where a rule asks.
- *view*: a request as the client sent it, kept, so that its retry and its next request are
  recognised (apply_turn.py).
- *pair*: a sent message and the stored message it stands for (matching.py). Pairs come from a
  certain prefix, from equal runs, or from the weighted alignment (placement.py, alignment.py).
- *cell*: a stretch of the client's view beside a stretch of the transcript (verdict.py).
- *verdict*: the cells, and what follows from them: what is new, what is superseded, whose text
  changes (verdict.py).

Steps of a turn: `reconcile` gives the verdict when the request comes, `apply_request` turns it into
the memory that the prompt is built from, `end_turn` adds the reply, and `rebase_turn` moves the
verdict where another turn was committed in between.
"""
