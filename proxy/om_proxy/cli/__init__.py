"""The command `om-proxy`, one module a command: `cli/check.py` is `om-proxy check`.

`entry` runs what the arguments name, `parser` lists the commands and their options, and
`exit_status` lists the exit statuses. Only the module of the command that runs is imported.
"""

from om_proxy.cli.entry import main

__all__ = ["main"]
