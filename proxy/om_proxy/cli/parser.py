"""Define the commands, their options and their help. `om-proxy NAME` runs `cli/NAME.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from om_proxy import __version__
from om_proxy.cli.memory_options import (
    add_config_option,
    add_memory_commands,
    add_memory_options,
)
from om_proxy.cli.moving_options import add_moving_commands


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of every command, without importing any command: so every start is fast."""
    top = argparse.ArgumentParser(
        prog="om-proxy", description="Observational memory for every LLM client, as a proxy."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True)

    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy until SIGTERM or SIGINT.",
        epilog="Without --host and --port, the address comes from the environment "
        "(OM_PROXY__SERVER__HOST, OM_PROXY__SERVER__PORT), else from server.host and server.port "
        "in the file, else it is 127.0.0.1, port 8400.",
    )
    _add_server_options(serve)

    worker = commands.add_parser(
        "worker",
        help="do the background work of a store that servers share",
        description="Do the background work of a store until SIGTERM or SIGINT: notes, webhooks and "
        "clearing out. The servers on the store need background.external: true. Work with an "
        "inherited model stays with the server that has the call.",
        epilog="It reads the servers' configuration. At server.host and server.port it answers "
        "/healthz, /readyz and /metrics; beside a server on the same machine it needs a --port of "
        "its own.",
    )
    _add_server_options(worker)

    check = commands.add_parser(
        "check", help="show the settings in force for a model, and what needs attention"
    )
    add_config_option(check)
    check.add_argument("--model", help="the actor's model, as the client names it")
    check.add_argument("--resource", help="the resource, as the client names it")
    check.add_argument(
        "--all", action="store_true", help="also print every setting and where it comes from"
    )

    init = commands.add_parser("init", help="write an annotated configuration file for you to edit")
    init.add_argument(
        "path",
        nargs="?",
        default="config/om-proxy.yaml",
        help="the file to write (default: config/om-proxy.yaml)",
    )

    doctor = commands.add_parser(
        "doctor",
        help="find what does not work: settings, servers, credentials, store, failing threads",
        description="Ask each model server whether it answers. Look for warnings about the "
        "settings, the memory models' credentials, the store with its promises and its times, "
        "threads whose memory work fails, token ranks, and the age of the price table. Exit "
        "status: 0 if everything works, 1 if something does not, 3 if the settings cannot be read.",
    )
    add_memory_options(doctor, "print the findings as JSON")
    doctor.add_argument(
        "--revive",
        action="store_true",
        help="clear the threads' failures: their memory work is tried again at once",
    )
    doctor.add_argument(
        "--call",
        action="store_true",
        help="also make one tiny observer call, and with --model one of a chat with notes; print what came of them",
    )
    doctor.add_argument(
        "--model",
        help="the actor's model, as the client names it; `auto` and `inherit` depend on it",
    )

    token = commands.add_parser(
        "token", help="make an X-OM-Token, which gives a user access to their own threads only"
    )
    add_config_option(token)
    token.add_argument(
        "--resource", required=True, help="the user, as X-OM-Resource would name them"
    )
    token.add_argument("--thread", help="the only thread it opens; default: all of the resource")
    token.add_argument(
        "--ttl", default="1h", help="how long it is valid: <n>s, m, h or d (default: 1h)"
    )
    token.add_argument(
        "--tenant", help="the tenant whose key it is sent with; needed if auth.keys has several"
    )

    add_memory_commands(commands)

    rekey_tenant = commands.add_parser(
        "rekey-tenant",
        help="move the memory of an old API key to the new one",
        description="Move the memory of an old API key to the new one. If auth.keys is not set, "
        "memory belongs to the API key itself. Run this command when no client uses the old key "
        "any more: a turn that is under way with the old key is not stored.",
        epilog="The keys are read from OM_PROXY_OLD_CREDENTIAL and OM_PROXY_NEW_CREDENTIAL, else "
        "from standard input: the old key on the first line, the new key on the second. On a "
        "terminal, the command asks for the keys and does not show them.",
    )
    add_config_option(rekey_tenant)

    encrypt = commands.add_parser(
        "encrypt",
        help="encrypt a database that holds memories, with storage.encryption_key",
        description="Encrypt a database that holds memories. A thread is encrypted as a whole, in one "
        "transaction; all of them can be read throughout by a server with the key. Interrupted, the "
        "command goes on when it is run again.",
        epilog="With several servers: run it with --begin, restart each server with the key, then run "
        "it without. A server without the key goes on with threads that are not encrypted yet.",
    )
    add_config_option(encrypt)
    encrypt.add_argument(
        "--begin",
        action="store_true",
        help="only let servers with the key open the database; what is stored stays as it is",
    )
    rekey = commands.add_parser(
        "rekey",
        help="change the master key of an encrypted database",
        description="Wrap the data keys under the first key of storage.encryption_key. Texts are not "
        "touched. Afterwards the older keys open nothing any more. Data keys that are beside the data "
        "move to storage.keys_url first, if it is set.",
        epilog="First give every server the list [new, old], and restart it; with several servers, [old, "
        "new] before that, so that each can read what another one writes. Then run this command, "
        "and take the old key out of the list. To move the data keys, stop the servers first.",
    )
    add_config_option(rekey)

    add_moving_commands(commands)

    completion = commands.add_parser(
        "completion",
        help="print what makes a shell complete commands, options and names",
        description="Print a script for your shell. It completes commands, options, and the names "
        "of threads, resources and tenants.",
        epilog='bash and zsh: eval "$(om-proxy completion bash)" in ~/.bashrc, or zsh in ~/.zshrc '
        "after compinit. fish: om-proxy completion fish > ~/.config/fish/completions/om-proxy.fish",
    )
    completion.add_argument("shell", choices=["bash", "zsh", "fish"], help="the shell")

    demo = commands.add_parser(
        "demo",
        help="play a long conversation with and without memory: no key, no network",
        description="Play a conversation of five working days, with memory and without. It needs "
        "no key and no network: the models are scripted, and everything between them and the "
        "client is real.",
    )
    demo.add_argument(
        "--show-prompt", action="store_true", help="print the last prompt, as it went upstream"
    )
    demo.add_argument(
        "--pace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait this long after each turn, so that you can read along",
    )
    shown = demo.add_mutually_exclusive_group()
    shown.add_argument(
        "--keep",
        nargs="?",
        const=Path("om-proxy-demo"),
        type=Path,
        metavar="FOLDER",
        help="keep the memory of the conversation (in om-proxy-demo), and show it in the dashboard "
        "until Ctrl-C; played already, it is only shown",
    )
    shown.add_argument(
        "--serve",
        action="store_true",
        help="instead, serve a scripted model behind the proxy, for your own client to try",
    )
    demo.add_argument(
        "--port",
        type=int,
        default=8400,
        help="the port of --serve and --keep on 127.0.0.1 (%(default)s); --keep takes another one "
        "if it is in use",
    )
    return top


def _add_server_options(command: argparse.ArgumentParser) -> None:
    add_config_option(command)
    command.add_argument("--host", help="the address to listen on, in place of server.host")
    command.add_argument(
        "--port", help="the port to listen on, in place of server.port; 0 takes a free one"
    )
