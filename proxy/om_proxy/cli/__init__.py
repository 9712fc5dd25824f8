"""The command `om-proxy`, one module a command: `cli/check.py` is `om-proxy check`.

`entry` runs what the arguments name, `parser` lists the commands and their options, and
`exit_status` lists what a command ends with. A command imports only what it runs.
"""

from om_proxy.cli.entry import main

__all__ = ["main"]
