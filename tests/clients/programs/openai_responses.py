"""The OpenAI SDK for Python by the Responses API: whole answers and streams, the history kept by
hand or by the server, the tool called by hand."""

import json

from recipe import client, memory
from talk import OPTIONS, PRICE, price, told, turns

TOOL = {"type": "function", "strict": False, **PRICE["function"]}
OPTIONS = dict(OPTIONS)
is_kept_by_server = OPTIONS.pop("previous", False)
history = []


def ask(stream):
    """One request; the response."""
    answer = client.responses.create(
        model="gpt-5.4-mini",
        instructions="You help with a renovation.",
        input=history,
        tools=[TOOL],
        stream=stream,
        extra_headers=memory,
        **OPTIONS,
    )
    if stream:
        answer = next(event for event in answer if event.type == "response.completed").response
    if is_kept_by_server:
        OPTIONS["previous_response_id"] = answer.id
        history.clear()
    else:
        history.extend(answer.output)
    return answer


def list_calls(answer):
    return [item for item in answer.output if item.type == "function_call"]


for text, stream in turns():
    history.append({"role": "user", "content": text})
    while calls := list_calls(answer := ask(stream)):
        for call in calls:
            found = price(**json.loads(call.arguments))
            history.append(
                {"type": "function_call_output", "call_id": call.call_id, "output": found}
            )
    told(answer.output_text)
