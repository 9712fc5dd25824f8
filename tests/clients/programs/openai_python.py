"""The OpenAI SDK for Python: whole answers and streams, the history kept by hand, the tool called
by hand."""

import json

from recipe import client, memory
from talk import TOOLS, price, told, turns

history = [{"role": "system", "content": "You help with a renovation."}]


def ask(stream):
    """One request; the assistant's message."""
    wanted = {"model": "gpt-5.4-mini", "messages": history, "tools": TOOLS, "extra_headers": memory}
    if not stream:
        answer = client.chat.completions.create(**wanted).choices[0].message
        history.append(answer.model_dump(exclude_none=True))
        return answer
    with client.chat.completions.stream(**wanted) as events:
        answer = events.get_final_completion().choices[0].message
    history.append(
        {"role": "assistant", "content": answer.content}
        | (
            {
                "tool_calls": [
                    call.model_dump(include={"id", "type", "function"})
                    for call in answer.tool_calls
                ]
            }
            if answer.tool_calls
            else {}
        )
    )
    return answer


for text, stream in turns():
    history.append({"role": "user", "content": text})
    while calls := (answer := ask(stream)).tool_calls:
        for call in calls:
            found = price(**json.loads(call.function.arguments))
            history.append({"role": "tool", "tool_call_id": call.id, "content": found})
    told(answer.content)
