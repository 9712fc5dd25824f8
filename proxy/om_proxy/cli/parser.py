"""The commands and their options, as `--help` shows them. `om-proxy NAME` runs `cli/NAME.py`."""

from __future__ import annotations

import argparse

from om_proxy import __version__


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of every command. It imports no command: a start must stay short."""
    top = argparse.ArgumentParser(
        prog="om-proxy", description="Observational memory for every LLM client, as a proxy."
    )
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True)

    serve = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy until SIGTERM or SIGINT.",
        epilog="Without --host and --port, the environment (OM_PROXY__SERVER__HOST, "
        "OM_PROXY__SERVER__PORT) says where it listens, then server.host and server.port in the "
        "file, then 127.0.0.1 and 8400.",
    )
    add_config_option(serve)
    serve.add_argument("--host", help="the address to listen on, in place of server.host")
    serve.add_argument(
        "--port", help="the port to listen on, in place of server.port; 0 takes a free one"
    )

    check = commands.add_parser(
        "check", help="say what the settings come to for a model, and what needs attention"
    )
    add_config_option(check)
    check.add_argument("--model", help="the actor's model, as the client names it")
    check.add_argument("--resource", help="the resource, as the client names it")
    check.add_argument(
        "--all", action="store_true", help="also print every setting and where it comes from"
    )

    init = commands.add_parser("init", help="write the annotated configuration file, to be edited")
    init.add_argument(
        "path",
        nargs="?",
        default="config/om-proxy.yaml",
        help="where to (default: config/om-proxy.yaml)",
    )

    doctor = commands.add_parser(
        "doctor",
        help="say what does not work: servers, credentials, threads whose observing fails",
        description="Ask each model server whether it answers, look for the memory models' "
        "credentials and for threads whose memory work fails. Exit status: 0 where everything "
        "works, 1 where something does not, 2 where the settings or options are wrong.",
    )
    add_config_option(doctor)
    doctor.add_argument(
        "--revive",
        action="store_true",
        help="clear the threads' failures, so that they are tried again at once",
    )
    doctor.add_argument(
        "--call",
        action="store_true",
        help="also make one tiny observer call, and print what came back",
    )
    doctor.add_argument(
        "--model", help="the actor's model, as the client names it; what `inherit` stands for"
    )

    token = commands.add_parser(
        "token", help="make an X-OM-Token, with which a user names their own threads only"
    )
    add_config_option(token)
    token.add_argument(
        "--resource", required=True, help="whose token it is, as X-OM-Resource names them"
    )
    token.add_argument("--thread", help="the one thread it is for; without it, any of the resource")
    token.add_argument(
        "--ttl", default="1h", help="how long it counts: <n>s, m, h or d (default: 1h)"
    )
    token.add_argument(
        "--tenant", help="the tenant of the key it is sent with, where auth.keys has several"
    )

    forget = commands.add_parser(
        "forget",
        help="remove a thread and all notes about it",
        description="Remove a thread's messages and all notes about it. A running server sees it "
        "gone at once.",
    )
    forget.add_argument("thread", help="the thread, as the client names it")
    add_config_option(forget)
    forget.add_argument("--resource", help="its resource, where several have a thread of this name")
    forget.add_argument("--tenant", help="its tenant, where several have one")
    forget.add_argument("--yes", action="store_true", help="do not ask")

    rekey_tenant = commands.add_parser(
        "rekey-tenant",
        help="give the memory of an API key to the one that took its place",
        description="Give the memory of an API key to the one that took its place. Where "
        "auth.keys is not set, memory belongs to the key itself. Run it once no client uses the "
        "old key any more; a turn under way with it is not kept.",
        epilog="Both keys are read from OM_PROXY_OLD_CREDENTIAL and OM_PROXY_NEW_CREDENTIAL, or "
        "else from standard input: the old one on the first line, the new one on the second. On a "
        "terminal they are asked for, and not shown.",
    )
    add_config_option(rekey_tenant)

    demo = commands.add_parser(
        "demo",
        help="a long conversation with and without memory: no key, no network",
        description="Five days of work in one conversation, played with memory and without. Needs "
        "no key and no network: the models are scripted, everything between them and the client is "
        "real.",
    )
    demo.add_argument(
        "--show-prompt", action="store_true", help="print the last prompt as it went upstream"
    )
    demo.add_argument(
        "--pace",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="wait after each turn, to read along",
    )
    demo.add_argument(
        "--serve",
        action="store_true",
        help="play nothing: serve a scripted model behind the proxy, for your own client to try",
    )
    demo.add_argument(
        "--port", type=int, default=8400, help="the port of --serve on 127.0.0.1 (%(default)s)"
    )
    return top


def add_config_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml"
    )
