"""Open WebUI's page, as its backend sees it: one chat, asked for turn by turn with the members the
page sends (0.12)."""

import os
import time
import uuid

import requests
from talk import named, told, turns

WITHIN = 60  # seconds a turn may take
here = requests.Session()


def call(method, path, json=None):
    answer = here.request(method, os.environ["SERVED"] + path, json=json, timeout=WITHIN)
    answer.raise_for_status()
    return answer.json()


def replied(chat, reply):
    """The reply, once nothing is being done for the chat any more: its follow-ups are asked for
    after it."""
    end = time.monotonic() + WITHIN
    while call("GET", f"/api/tasks/chat/{chat}")["task_ids"]:
        assert time.monotonic() < end, "no end of the turn"
        time.sleep(0.1)
    return call("GET", f"/api/v1/chats/{chat}")["chat"]["history"]["messages"][reply]["content"]


page = call("POST", "/api/v1/auths/signin", {"email": "", "password": ""})
here.headers["Authorization"] = f"Bearer {page['token']}"
model = call("GET", "/api/models")["data"][0]
asked = {
    "model": model["id"],
    "model_item": model,
    "session_id": "page",
    "params": {},
    "features": {},
    "messages": [],
}
chat = parent = None
for text, stream in turns():
    user, reply = str(uuid.uuid4()), str(uuid.uuid4())
    said = {
        "id": user,
        "role": "user",
        "content": text,
        "parentId": parent,
        "childrenIds": [],
        "timestamp": int(time.time()),
    }
    tasks = {"follow_up_generation": True} | (
        {} if chat else {"title_generation": True, "tags_generation": True}
    )
    turn = {
        "chat_id": chat,
        "parent_id": parent,
        "id": reply,
        "user_message": said,
        "background_tasks": tasks,
    }
    chat = call("POST", "/api/chat/completions", asked | turn | {"stream": stream})["chat_id"]
    told(replied(chat, reply))
    parent = reply
named(chat, page["id"])
