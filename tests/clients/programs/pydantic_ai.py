"""Pydantic AI by any API: an agent with a tool that runs by itself; the history is what the last run
returned."""

import asyncio

from recipe import agent
from talk import OPTIONS, price, told, turns

agent.tool_plain(price)
settings = {f"openai_{name}": value for name, value in OPTIONS.items()}


async def main():
    """The whole conversation in one event loop, whose connections the agent keeps."""
    history = []
    for text, stream in turns():
        if stream:
            async with agent.run_stream(
                text, message_history=history, model_settings=settings
            ) as result:
                told(await result.get_output())
        else:
            result = await agent.run(text, message_history=history, model_settings=settings)
            told(result.output)
        history = result.all_messages()


asyncio.run(main())
