"""A thread with the OpenAI SDK: the client keeps sending its whole history, the proxy keeps the
prompt bounded.

Needs a running proxy (`om-proxy serve`) and OPENAI_API_KEY. Usage: python openai_sdk.py [model]
Run again under the same thread id, it goes on with the old conversation: a new one needs a new id.
"""

import os
import sys

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8400/v1"),
    default_headers={"X-OM-Thread": "kitchen-rebuild", "X-OM-Resource": "user-42"},
)
model = sys.argv[1] if len(sys.argv) > 1 else "gpt-5.4-mini"
history = [{"role": "system", "content": "You help plan a kitchen."}]

for text in (
    "The worktop is 312 cm long.",
    "The sink is 60 cm wide.",
    "How much worktop is left beside the sink?",
):
    history.append({"role": "user", "content": text})
    answer = client.chat.completions.with_raw_response.create(model=model, messages=history)
    reply = answer.parse().choices[0].message.content
    history.append({"role": "assistant", "content": reply})
    status = answer.headers.get("x-om-status", "not asked")  # where no om-proxy answers
    sent = answer.headers.get("x-om-tokens-sent", "uncounted")  # where memory is off
    print(f"you: {text}\nmodel: {reply}\n       memory {status}, {sent} tokens sent\n")
