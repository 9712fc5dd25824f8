"""The `opencode` command: each turn a process of its own that goes on in the same session."""

import json
import subprocess

from talk import told, turns

for n, (text, _) in enumerate(turns()):
    command = ["opencode", "run", "--format", "json", *(["-c"] if n else []), text]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, check=True)
    events = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    told("".join(event["part"]["text"] for event in events if event["type"] == "text"))
