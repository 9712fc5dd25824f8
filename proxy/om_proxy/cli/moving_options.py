"""Define the commands that move whole stores, back them up and verify them."""

from __future__ import annotations

from om_proxy.cli.memory_options import CommandList, add_config_option


def add_moving_commands(commands: CommandList) -> None:
    """Add the commands in the order in which a reader meets them."""
    import_ = commands.add_parser(
        "import",
        help="read an export into the store",
        description="Read an export into the store that the configuration names. Every line is "
        "checked before anything is written. One thread is written at once or not at all; run the "
        "command again if it was interrupted. A thread that the store has in another state stops "
        "it before it writes anything.",
    )
    add_config_option(import_)
    import_.add_argument("file", metavar="FILE", help="what om-proxy export has written")
    import_.add_argument(
        "--tenant-map",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help="import the threads of the tenant OLD under the tenant NEW; may be repeated",
    )
    import_.add_argument(
        "--skip-existing",
        action="store_true",
        help="leave threads that the store has as they are there, and import the others",
    )
    import_.add_argument(
        "--dry-run", action="store_true", help="check everything, and write nothing"
    )
