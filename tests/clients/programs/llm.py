"""The `llm` command: each turn a process of its own that goes on where the last one stopped."""

import inspect
import subprocess
from pathlib import Path

from talk import price, told, turns

Path("tools.py").write_text(inspect.getsource(price), encoding="utf-8")

for n, (text, stream) in enumerate(turns()):
    options = [
        *(["-c"] if n else []),
        *([] if stream else ["--no-stream"]),
        "--functions",
        "tools.py",
    ]
    done = subprocess.run(
        ["bash", "ask.sh", *options, text], stdout=subprocess.PIPE, text=True, check=True
    )
    told(done.stdout)
