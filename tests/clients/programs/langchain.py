"""LangChain: invoke and stream, with a bound tool."""

from functools import reduce
from operator import add

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_core.tools import tool
from recipe import model
from talk import price, told, turns

lookup = tool(price)
bound = model.bind_tools([lookup])
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
