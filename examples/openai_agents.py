"""A thread with the OpenAI Agents SDK, by the Responses API: the agent gets its whole history, the
proxy keeps the prompt bounded.

Needs a running proxy (`om-proxy serve`), OPENAI_API_KEY, and `pip install openai-agents`.
Run again under the same thread id, it goes on with the old conversation: a new one needs a new id.
"""

import asyncio
import os

from agents import Agent, ModelSettings, Runner, set_default_openai_client, set_tracing_disabled
from openai import AsyncOpenAI

place = os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8400/v1")
set_default_openai_client(AsyncOpenAI(base_url=place))
set_tracing_disabled(True)  # traces would go to OpenAI, past the proxy
memory = {"X-OM-Thread": "garden-plan", "X-OM-Resource": "user-42"}
agent = Agent(
    "Gardener",
    instructions="You help plan a garden.",
    model="gpt-5.4-mini",
    model_settings=ModelSettings(extra_headers=memory),
)


async def main() -> None:
    history = []
    for text in ("The bed is 7 m long.", "Beans need 40 cm each.", "How many beans fit?"):
        history.append({"role": "user", "content": text})
        result = await Runner.run(agent, history)
        history = result.to_input_list()  # what was said, with the reply and calls of tools
        print(f"you: {text}\nmodel: {result.final_output}\n")


asyncio.run(main())
