"""Every command of `om-proxy`.

Start with `command_table`: it has a row for each command, with its options and the function in
`commands/` that runs it. `entry` runs what the arguments name, and imports the module of that
command alone. `exit_status` lists the exit statuses.
"""

from om_proxy.cli.entry import main

__all__ = ["main"]
