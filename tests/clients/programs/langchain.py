"""LangChain by any API: invoke and stream, with a bound tool."""

from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from recipe import memory, model, place
from talk import OPTIONS, price, told, turns

lookup = tool(price)
if OPTIONS.pop("codex", False):  # such a model chooses the Responses API by itself
    model = ChatOpenAI(model="gpt-5.1-codex", base_url=place, default_headers=memory)
bound = model.bind_tools([lookup], **OPTIONS)
history = [SystemMessage("You help with a renovation.")]


def ask(stream):
    """One request; the assistant's message."""
    history.append(reduce(add, bound.stream(history)) if stream else bound.invoke(history))
    return history[-1]


for text, stream in turns():
    history.append(HumanMessage(text))
    while calls := (answer := ask(stream)).tool_calls:
        history.extend(lookup.invoke(call) for call in calls)
    told(answer.text)
