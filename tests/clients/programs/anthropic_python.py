"""The Anthropic SDK for Python: whole answers and streams, the history kept by hand, the tool called
by hand."""

from recipe import client, memory
from talk import PRICE, price, told, turns

TOOL = {
    "name": "price",
    "description": PRICE["function"]["description"],
    "input_schema": PRICE["function"]["parameters"],
}
history = []


def ask(stream):
    """One request; the message."""
    wanted = {
        "model": "claude-haiku-4-5",
        "max_tokens": 1000,
        "system": "You help with a renovation.",
        "messages": history,
        "tools": [TOOL],
        "extra_headers": memory,
    }
    if stream:
        with client.messages.stream(**wanted) as events:
            answer = events.get_final_message()
    else:
        answer = client.messages.create(**wanted)
    history.append({"role": "assistant", "content": answer.content})
    return answer


def list_calls(answer):
    return [block for block in answer.content if block.type == "tool_use"]


for text, stream in turns():
    history.append({"role": "user", "content": text})
    while calls := list_calls(answer := ask(stream)):
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": price(**call.input)}
            for call in calls
        ]
        history.append({"role": "user", "content": results})
    told("".join(block.text for block in answer.content if block.type == "text"))
