"""The same, streamed: tokens arrive as the model writes them; when the stream has ended, the turn
is stored.

Needs a running proxy (`om-proxy serve`) and OPENAI_API_KEY. Usage: python openai_sdk_stream.py
[model] Run again under the same thread id, it goes on with the old conversation: a new one needs a
new id.
"""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8400/v1"),
    default_headers={"X-OM-Thread": "reading-list", "X-OM-Resource": "user-42"},
)
model = sys.argv[1] if len(sys.argv) > 1 else "gpt-5.4-mini"
history = []

for text in (
    "I am reading a book about bridges.",
    "Which kind of bridge should the next one be about?",
):
    history.append({"role": "user", "content": text})
    pieces = []
    for chunk in client.chat.completions.create(model=model, messages=history, stream=True):
        if chunk.choices and (piece := chunk.choices[0].delta.content):
            pieces.append(piece)
            print(piece, end="", flush=True)
    print()
    history.append({"role": "assistant", "content": "".join(pieces)})
