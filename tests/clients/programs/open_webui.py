"""Open WebUI's page, as its backend sees it: one chat, asked for turn by turn with the members the page sends (0.12)."""

import os
import time
import uuid

import requests
from talk import told, turns

WITHIN = 60  # seconds a turn may take
here = requests.Session()


def call(method, path, **wanted):
    answer = here.request(method, os.environ["SERVED"] + path, timeout=WITHIN, **wanted)
    answer.raise_for_status()
    return answer.json()


def message(role, content, parent, **more):
    return {"id": str(uuid.uuid4()), "role": role, "content": content, "parentId": parent, "childrenIds": [], "timestamp": int(time.time())} | more


def replied(chat, reply):
    """The reply, once nothing is being done for the chat any more: its follow-ups are asked for after it."""
    end = time.monotonic() + WITHIN
    while call("GET", f"/api/tasks/chat/{chat}")["task_ids"]:
        assert time.monotonic() < end, "no end of the turn"
        time.sleep(0.1)
    found = call("GET", f"/api/v1/chats/{chat}")["chat"]["history"]["messages"][reply]
    assert not found.get("error"), found
    return found["content"]


here.headers["Authorization"] = f"Bearer {call('POST', '/api/v1/auths/signin', json={'email': '', 'password': ''})['token']}"
model = call("GET", "/api/models")["data"][0]
chat = parent = None
for text, stream in turns():
    user, reply = message("user", text, parent, models=[model["id"]]), str(uuid.uuid4())
    tasks = {"follow_up_generation": True} | ({} if chat else {"title_generation": True, "tags_generation": True})
    asked = {"model": model["id"], "model_item": model, "stream": stream, "session_id": "page", "id": reply, "parent_id": parent}
    asked |= {"messages": [], "user_message": user, "chat_id": chat, "background_tasks": tasks, "params": {}, "features": {}}
    chat = call("POST", "/api/chat/completions", json=asked)["chat_id"]
    told(replied(chat, reply))
    parent = reply
