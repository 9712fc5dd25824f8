"""The `opencode` command: each turn a process of its own that goes on in the same session."""

import json
import subprocess

from talk import named, told, turns

for n, (text, _) in enumerate(turns()):
    command = ["opencode", "run", "--format", "json", *(["-c"] if n else [])]
    done = subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told("".join(event["part"]["text"] for event in events if event["type"] == "text"))
named(events[0]["sessionID"])
