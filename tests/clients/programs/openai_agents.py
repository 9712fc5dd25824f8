"""OpenAI's Agents SDK by any API: an agent with a tool that runs by itself."""

import asyncio

from agents import ModelSettings, RunConfig, Runner, function_tool, set_tracing_disabled
from recipe import agent
from talk import OPTIONS, price, told, turns

set_tracing_disabled(True)  # it would leave the machine
agent.tools = [function_tool(price)]
is_kept_by_server = OPTIONS.pop("previous", False)
config = RunConfig(model_settings=ModelSettings(**OPTIONS))


async def main():
    """The whole conversation in one event loop, whose connections the agent keeps."""
    history, options = [], {"run_config": config}
    for text, stream in turns():
        history.append({"role": "user", "content": text})
        if stream:
            result = Runner.run_streamed(agent, history, **options)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, history, **options)
        told(result.final_output)
        if is_kept_by_server:  # the turns of a run too: its results go without their calls
            options |= {"previous_response_id": result.last_response_id}
            history = []
        else:
            history = result.to_input_list()


asyncio.run(main())
