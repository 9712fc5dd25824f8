"""Define the commands that move whole stores, back them up, verify and index them."""

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

    copy = commands.add_parser(
        "copy",
        help="copy one store into another",
        description="Copy all threads, sums and records of the store FROM into the store TO, with "
        "its secret. TO must be empty, or an earlier copy: what it has already is left alone, so "
        "an interrupted copy goes on when it is run again. Servers of FROM may run: what changes "
        "meanwhile is named at the end, and exit status 1 says so. Nobody may serve TO meanwhile.",
    )
    place = "a URL as in storage.url, an SQLite file, or a configuration file (.yaml)"
    copy.add_argument("source", metavar="FROM", help=place)
    copy.add_argument("target", metavar="TO", help=f"{place}; a missing store is made")
    copy.add_argument(
        "--update",
        action="store_true",
        help="replace threads that TO has in another state by those of FROM",
    )
    copy.add_argument(
        "--verify", action="store_true", help="read everything again, and compare every field"
    )

    backup = commands.add_parser(
        "backup",
        help="copy the SQLite file as of now, while a server uses it",
        description="Write the SQLite file of the configuration as of now into a new file, which "
        "only its owner can read. A server may use it meanwhile. A file that is cut off has the "
        "ending .part.",
    )
    add_config_option(backup)
    backup.add_argument("file", metavar="FILE", help="the new file")
    backup.add_argument(
        "--keys",
        action="store_true",
        help="the file of storage.keys_url instead: keep its backups apart from the others",
    )
    backup.add_argument(
        "--compact", action="store_true", help="without free pages; it takes longer"
    )

    verify = commands.add_parser(
        "verify",
        help="look whether everything stored fits together",
        description="Look whether the chains, parents, counts and notes of every thread fit "
        "together. Exit status 1 if something does not.",
    )
    add_config_option(verify)
    verify.add_argument(
        "--repair",
        action="store_true",
        help="compute anew what can be, one thread at a time; such a thread loses its events",
    )

    index = commands.add_parser(
        "index",
        help="fill, check, rebuild or drop the index of original messages",
        description="Index the original messages that are to be searched, as the server does in "
        "quiet times: those of threads with memory.retrieval. A server may run at the same time.",
    )
    add_config_option(index)
    what = index.add_mutually_exclusive_group()
    what.add_argument(
        "--check",
        action="store_true",
        help="compare the index with the messages; exit status 1 if something is wrong",
    )
    what.add_argument(
        "--rebuild",
        action="store_true",
        help="index everything anew, batch by batch; searches find it meanwhile",
    )
    what.add_argument(
        "--drop",
        action="store_true",
        help="remove the index; with memory.retrieval a server indexes again",
    )

    migrate = commands.add_parser(
        "migrate",
        help="bring the schema of the store up to date, and do nothing else",
        description="Bring the schema of the store up to date, or make it. For jobs of a release, "
        "before its processes start; they do the same at their start.",
    )
    add_config_option(migrate)
