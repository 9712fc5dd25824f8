"""OpenAI's Agents SDK in chat mode: an agent with a tool that runs by itself."""

import asyncio

from agents import Runner, function_tool, set_tracing_disabled
from recipe import agent
from talk import price, told, turns

set_tracing_disabled(True)  # it would leave the machine
agent.tools = [function_tool(price)]


async def main():
    """The whole conversation in one event loop, whose connections the agent keeps."""
    history = []
    for text, stream in turns():
        history.append({"role": "user", "content": text})
        if stream:
            result = Runner.run_streamed(agent, history)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, history)
        told(result.final_output)
        history = result.to_input_list()


asyncio.run(main())
