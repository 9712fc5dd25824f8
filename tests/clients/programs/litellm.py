"""The LiteLLM SDK: completion and streams put together by its own builder."""

import json

import litellm
from recipe import with_memory
from talk import TOOLS, price, told, turns

history = [{"role": "system", "content": "You help with a renovation."}]


def ask(stream):
    """One request; the assistant's message."""
    answer = litellm.completion(messages=history, tools=TOOLS, stream=stream, **with_memory)
    if stream:
        answer = litellm.stream_chunk_builder(list(answer), messages=history)
    history.append(answer.choices[0].message.model_dump(exclude_none=True))
    return answer.choices[0].message


for text, stream in turns():
    history.append({"role": "user", "content": text})
    while calls := (answer := ask(stream)).tool_calls:
        for call in calls:
            found = price(**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": found})
    told(answer.content)
