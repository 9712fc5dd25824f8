"""The LiteLLM SDK by the Responses API: whole answers and streams, the history kept by hand."""

import json

import litellm
from recipe import with_memory
from talk import OPTIONS, PRICE, price, told, turns

TOOL = {"type": "function", "strict": False, **PRICE["function"]}
history = []


def ask(stream):
    """One request; the output of the response."""
    answer = litellm.responses(input=history, tools=[TOOL], stream=stream, **with_memory, **OPTIONS)
    if stream:
        answer = next(event for event in answer if event.type == "response.completed").response
    items = answer.model_dump(exclude_none=True)["output"]
    history.extend(items)
    return items


def list_calls(items):
    return [item for item in items if item["type"] == "function_call"]


for text, stream in turns():
    history.append({"role": "user", "content": text})
    while calls := list_calls(items := ask(stream)):
        for call in calls:
            found = price(**json.loads(call["arguments"]))
            history.append(
                {"type": "function_call_output", "call_id": call["call_id"], "output": found}
            )
    told("".join(part["text"] for item in items for part in item["content"]))
