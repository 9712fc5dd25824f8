"""The LiteLLM SDK by the Messages API: whole answers and streams, which it gives as the bytes that
came."""

import asyncio
import json

import litellm
from recipe import with_memory
from talk import PRICE, price, told, turns

TOOL = {
    "name": "price",
    "description": PRICE["function"]["description"],
    "input_schema": PRICE["function"]["parameters"],
}
history = []


def put_together(data):
    """The blocks of a stream."""
    blocks = []
    for line in data.decode().splitlines():
        event = json.loads(line[6:]) if line.startswith("data: {") else {}
        if event.get("type") == "content_block_start":
            blocks.append(event["content_block"])
        delta = event.get("delta", {})
        if "text" in delta:
            blocks[-1]["text"] += delta["text"]
        if "partial_json" in delta:
            blocks[-1]["json"] = blocks[-1].get("json", "") + delta["partial_json"]
    return [
        {**block, "input": json.loads(block.pop("json"))} if "json" in block else block
        for block in blocks
    ]


async def ask(stream):
    """One request; the blocks of the message."""
    answer = await litellm.anthropic.messages.acreate(
        messages=history,
        max_tokens=1000,
        system="You help with a renovation.",
        tools=[TOOL],
        stream=stream,
        **with_memory,
    )
    blocks = (
        put_together(b"".join([piece async for piece in answer])) if stream else answer["content"]
    )
    history.append({"role": "assistant", "content": blocks})
    return blocks


def list_calls(blocks):
    return [block for block in blocks if block["type"] == "tool_use"]


async def main():
    for text, stream in turns():
        history.append({"role": "user", "content": text})
        while calls := list_calls(blocks := await ask(stream)):
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call["id"],
                    "content": price(**call["input"]),
                }
                for call in calls
            ]
            history.append({"role": "user", "content": results})
        told("".join(block.get("text", "") for block in blocks))


asyncio.run(main())
