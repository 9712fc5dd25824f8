"""A thread with LangChain, by chat completions: the list of messages grows, the proxy keeps the
prompt bounded.

Needs a running proxy (`om-proxy serve`), OPENAI_API_KEY, and `pip install langchain-openai`.
Run again under the same thread id, it goes on with the old conversation: a new one needs a new id.
"""

import os

from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI

model = ChatOpenAI(
    model="gpt-5.4-mini",
    base_url=os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:8400/v1"),
    default_headers={"X-OM-Thread": "bike-repair", "X-OM-Resource": "user-42"},
)

history = [SystemMessage("You help repair a bicycle.")]
for text in ("The chain has 114 links.", "Two are broken.", "How many links are left?"):
    history.append(HumanMessage(text))
    history.append(model.invoke(history))
    print(f"you: {text}\nmodel: {history[-1].text}\n")
