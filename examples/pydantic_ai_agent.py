"""A thread with Pydantic AI, by the Responses API: each run gets the messages of the last one, the
proxy keeps the prompt bounded.

Needs a running proxy (`om-proxy serve`), OPENAI_API_KEY, and
`pip install "pydantic-ai-slim[openai]"`.
Run again under the same thread id, it goes on with the old conversation: a new one needs a new id.
"""

import os

from pydantic_ai import Agent, ModelSettings

os.environ.setdefault("OPENAI_BASE_URL", "http://127.0.0.1:8400/v1")
memory = {"X-OM-Thread": "wine-cellar", "X-OM-Resource": "user-42"}
agent = Agent(
    "openai:gpt-5.4-mini",
    instructions="You keep the list of a cellar.",
    model_settings=ModelSettings(extra_headers=memory),
)

history = []
for text in ("Shelf 1 has 12 bottles.", "Shelf 2 has 9.", "How many are there?"):
    result = agent.run_sync(text, message_history=history)
    history = result.all_messages()
    print(f"you: {text}\nmodel: {result.output}\n")
