"""The command: `om-proxy serve`, `check`, `doctor`, `init`, `token`, `forget`, `rekey-tenant`, `demo`.

Its exit status: 0; 1 where `doctor` finds what does not work, or a person said no; 2 where the settings or the options are wrong;
3 where they are right, and it cannot start all the same; 4 where there is no such thing as was named; 5 where something is in the way.
"""

from __future__ import annotations

import argparse
import gc
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from om_proxy import __version__
from om_proxy.errors import ConfigError, OmError

if TYPE_CHECKING:
    import socket

    import uvicorn

    from om_proxy.app import App
    from om_proxy.settings import Settings
    from om_proxy.storage.base import Store

START_WITHIN = 60.0  # seconds a worker may take until it serves
CANNOT_START = 3  # uvicorn's own status for it: a supervisor tries again, as it does not after 0
INTERRUPTED = 130  # as shells have it: 128, and the number of SIGINT
STOP_WITHIN = 30  # seconds running streams may take after SIGTERM

# What libraries import where they find it, and a server never uses: tracebacks in colour and httpx's command line (3 MB, 50 ms),
# and lists in C that aiohttp's tracing would use (1 MB, libstdc++).
SPARED = ("rich", "pygments", "frozenlist._frozenlist")


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; its exit status. Errors of ours are one line on stderr that says what to do."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        try:
            return run_command(arguments)
        finally:  # argparse ends a program after its help
            sys.stdout.flush()  # here, where a reader that has left can still be noticed
    except BrokenPipeError:  # `om-proxy check | head`: the reader has seen enough
        discard_output()
        return 0
    except OmError as exc:
        print(f"om-proxy: {exc}", file=sys.stderr)
        return 2


def run_command(arguments: list[str]) -> int:
    """Run the command that the arguments name; without any, print the help."""
    if arguments[:1] == ["demo"]:  # it has options of its own
        from om_proxy.demo.play import main as play

        return play(arguments[1:])
    if not arguments:
        parser().print_help()
        return 0
    options = parser().parse_args(arguments)
    return int(options.run(options))


def discard_output() -> None:
    """Send the rest of stdout nowhere: Python flushes it once more at its exit, and would fail again."""
    import os

    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="om-proxy", description="Observational memory for every LLM client, as a proxy.")
    top.add_argument("--version", action="version", version=__version__)
    commands = top.add_subparsers(dest="command", required=True)

    serve_command = commands.add_parser(
        "serve",
        help="run the proxy",
        description="Run the proxy until SIGTERM or SIGINT.",
        epilog="Without --host and --port, the environment (OM_PROXY__SERVER__HOST, OM_PROXY__SERVER__PORT) says where it "
        "listens, then server.host and server.port in the file, then 127.0.0.1 and 8400.",
    )
    serve_command.add_argument("--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml")
    serve_command.add_argument("--host", help="the address to listen on, in place of server.host")
    serve_command.add_argument("--port", help="the port to listen on, in place of server.port; 0 takes a free one")
    serve_command.set_defaults(run=serve)

    check_command = commands.add_parser(
        "check", help="say what the settings come to for a model, and what needs attention"
    )
    check_command.add_argument("--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml")
    check_command.add_argument("--model", help="the actor's model, as the client names it")
    check_command.add_argument("--resource", help="the resource, as the client names it")
    check_command.add_argument("--all", action="store_true", help="also print every setting and where it comes from")
    check_command.set_defaults(run=check)

    init_command = commands.add_parser("init", help="write the annotated configuration file, to be edited")
    init_command.add_argument(
        "path", nargs="?", default="config/om-proxy.yaml", help="where to (default: config/om-proxy.yaml)"
    )
    init_command.set_defaults(run=init)

    doctor_command = commands.add_parser(
        "doctor",
        help="say what does not work: servers, credentials, threads whose observing fails",
        description="Ask each model server whether it answers, look for the memory models' credentials and for threads whose memory "
        "work fails. Exit status: 0 where everything works, 1 where something does not, 2 where the settings or options are wrong.",
    )
    doctor_command.add_argument("--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml")
    doctor_command.add_argument(
        "--revive", action="store_true", help="clear the threads' failures, so that they are tried again at once"
    )
    doctor_command.add_argument(
        "--call", action="store_true", help="also make one tiny observer call, and print what came back"
    )
    doctor_command.add_argument("--model", help="the actor's model, as the client names it; what `inherit` stands for")
    doctor_command.set_defaults(run=doctor)

    token_command = commands.add_parser(
        "token", help="make an X-OM-Token, with which a user names their own threads only"
    )
    token_command.add_argument("--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml")
    token_command.add_argument("--resource", required=True, help="whose token it is, as X-OM-Resource names them")
    token_command.add_argument("--thread", help="the one thread it is for; without it, any of the resource")
    token_command.add_argument("--ttl", default="1h", help="how long it counts: <n>s, m, h or d (default: 1h)")
    token_command.add_argument("--tenant", help="the tenant of the key it is sent with, where auth.keys has several")
    token_command.set_defaults(run=token)

    forget_command = commands.add_parser(
        "forget",
        help="remove a thread and all notes about it",
        description="Remove a thread's messages and all notes about it. A running server sees it gone at once.",
    )
    forget_command.add_argument("thread", help="the thread, as the client names it")
    forget_command.add_argument("--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml")
    forget_command.add_argument("--resource", help="its resource, where several have a thread of this name")
    forget_command.add_argument("--tenant", help="its tenant, where several have one")
    forget_command.add_argument("--yes", action="store_true", help="do not ask")
    forget_command.set_defaults(run=forget)

    rekey_command = commands.add_parser(
        "rekey-tenant",
        help="give the memory of an API key to the one that took its place",
        description="Give the memory of an API key to the one that took its place. Where auth.keys is not set, memory belongs to the "
        "key itself. Run it once no client uses the old key any more; a turn under way with it is not kept.",
        epilog="Both keys are read from OM_PROXY_OLD_CREDENTIAL and OM_PROXY_NEW_CREDENTIAL, or else from standard input: the old one "
        "on the first line, the new one on the second. On a terminal they are asked for, and not shown.",
    )
    rekey_command.add_argument("--config", help="the YAML file; else OM_PROXY_CONFIG, else ./config/om-proxy.yaml")
    rekey_command.set_defaults(run=rekey_tenant)

    commands.add_parser("demo", help="a long conversation with and without memory: no key, no network")
    return top


def serve(options: argparse.Namespace) -> int:
    """Serve until SIGTERM or SIGINT; then let running streams end and stop cleanly."""
    from om_proxy.host import keep_freed_memory, listeners, raise_open_files

    set_address(options)
    keep_freed_memory()
    with starting():
        from om_proxy.app import create_app
        from om_proxy.logs import configure, hear_python, start_failed
        from om_proxy.settings import Watched, load

        settings = load(options.config)
        configure(settings.telemetry.log, names_threads=settings.server.loopback)
        hear_python()
        raise_open_files()
        if settings.server.workers == 1:
            server = server_of(create_app(Watched(settings, path=options.config)), settings)
    try:
        sockets = listeners(settings.server.host, settings.server.port)
        if settings.server.workers > 1:
            return serve_by_many(options, settings, sockets)
    except OmError as exc:
        start_failed(exc)
        return CANNOT_START
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)  # uvicorn raises it once more after a clean end; that is no failure
    server.run(sockets)  # exits with CANNOT_START where the app could not, which has said why
    return 0


def set_address(options: argparse.Namespace) -> None:
    """Put --host and --port where the settings are read from, by this process and by its workers.

    They are settings like all others then: what depends on the address (who counts as local) sees them too."""
    import os

    for name in ("host", "port"):
        if (value := getattr(options, name)) is not None:
            os.environ[f"OM_PROXY__SERVER__{name.upper()}"] = value


@contextmanager
def starting() -> Iterator[None]:
    """Around imports and the making of what stays as long as the process: next to nothing in there is garbage.

    Not looking for any takes a tenth off the start; and what is frozen at the end is never looked through again, which would
    hold up some request or other for 30 ms."""
    thresholds = gc.get_threshold()
    gc.set_threshold(20_000, 50, 1_000)
    try:
        with spared(SPARED):
            yield
        gc.freeze()
    finally:
        gc.set_threshold(*thresholds)


@contextmanager
def spared(names: Sequence[str]) -> Iterator[None]:
    """As if these modules were not installed, those aside that are in use already."""
    absent = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(absent))  # type: ignore[arg-type]  # None is how Python spells "cannot be imported"
    try:
        yield
    finally:
        for name in absent:
            del sys.modules[name]


def serve_by_many(options: argparse.Namespace, settings: Settings, sockets: list[socket.socket]) -> int:
    """Serve with `server.workers` processes on one port. What they have in common is the store; one that dies is replaced, but for
    one that cannot start: then all end."""
    import asyncio
    import os

    from uvicorn.supervisors import Multiprocess

    asyncio.run(usable(settings))

    class Workers(Multiprocess):
        def init_processes(self) -> None:
            super().init_processes()
            if all(process.wait_until_ready(START_WITHIN, self.should_exit) for process in self.processes):
                banner(settings, self.sockets[0].getsockname()[1])

    if options.config:
        os.environ["OM_PROXY_CONFIG"] = options.config  # the workers read it themselves, and watch it
    config = served("om_proxy.cli:worker", settings, factory=True, workers=settings.server.workers)
    workers = Workers(config, sockets=sockets)
    workers.run()
    return CANNOT_START if any(process.exitcode == CANNOT_START for process in workers.processes) else 0


async def usable(settings: Settings) -> None:
    """Raise StorageError, once, for what each worker would find out for itself."""
    from om_proxy.app import open_store

    if not settings.storage.required:
        return  # each serves chat, and waits for a good file
    await (await open_store(settings.storage.url, settings.retention.generations)).close()


def worker() -> App:
    """The app of one of several processes."""
    from om_proxy.host import keep_freed_memory

    keep_freed_memory()
    with starting():
        from om_proxy.app import create_app
        from om_proxy.logs import configure, hear_python
        from om_proxy.settings import Watched, load

        settings = load(None)
        configure(settings.telemetry.log, names_threads=settings.server.loopback)
        hear_python()
        return create_app(Watched(settings))


def server_of(app: App, settings: Settings) -> uvicorn.Server:
    """The server; it prints the banner once it listens, so that a printed address is one that answers."""
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if self.started:
                banner(settings, self.servers[0].sockets[0].getsockname()[1])

    return Server(served(app, settings))


def served(app: App | str, settings: Settings, **more: Any) -> uvicorn.Config:
    import uvicorn

    from om_proxy.edge.protocol import Protocol

    return uvicorn.Config(
        app,
        host=settings.server.host,
        port=settings.server.port,
        loop="auto",  # uvloop where it is installed: there is none for Windows
        http=Protocol,
        ws="none",  # WebSockets are answered 501 by the app
        lifespan="on",
        access_log=False,
        proxy_headers=False,  # nobody here asks for the client's address
        log_config=None,
        server_header=False,  # the upstream's own Server and Date travel on
        date_header=False,
        timeout_graceful_shutdown=STOP_WITHIN,
        **more,
    )


def banner(settings: Settings, port: int) -> None:
    """The address, the servers behind it, and the memory settings in force."""
    import os

    from om_proxy.doctor.models import missing_credentials, model_warnings
    from om_proxy.settings import admin_token_line, attention_lines, shown, upstream_lines

    effective = settings.effective(None, None)
    limits = effective.limits
    state = "on" if settings.memory.enabled else "off"
    interval = f"every {limits.interval}" if limits.interval else "off"
    print(f"om-proxy {__version__} on http://{settings.server.host}:{port}/v1", flush=True)
    for line in upstream_lines(settings):
        print(line, flush=True)
    print(
        f"memory {state}: observed at {limits.observe_at} tokens (buffered {interval}, waited for at {limits.block_at}), "
        f"reflected at {limits.reflect_at}; model {shown(('model',), effective.observer_model)}; "
        f"store {shown(('url',), settings.storage.url)}",
        flush=True,
    )
    if place := admin_token_line(settings, os.environ):
        print(place, flush=True)
    missing = missing_credentials(settings, effective, os.environ)
    for warning in (*missing, *model_warnings(effective, None), *attention_lines(settings)):
        print(f"warning: {warning}", flush=True)


def check(options: argparse.Namespace) -> int:
    """Print what the settings come to for a model, with `--all` each of them, and last what needs attention."""
    import os

    from om_proxy.doctor.models import missing_credentials, model_warnings
    from om_proxy.settings import attention_lines, effective_lines, load, summary_lines

    settings, whose = load(options.config), (options.model, options.resource)
    effective = settings.effective(*whose)
    lines = summary_lines(settings, *whose)
    if options.all:
        lines += ["", *effective_lines(settings, *whose)]
    else:
        lines += ["every setting and where it comes from: om-proxy check --all"]
    found = [*missing_credentials(settings, effective, os.environ), *attention_lines(settings, *whose)]
    found += model_warnings(effective, options.model)
    lines += ["", *(f"warning: {text}" for text in found)] if found else ["", "nothing needs attention"]
    print("\n".join(lines))
    return 0


def init(options: argparse.Namespace) -> int:
    """Write the annotated configuration file. An existing file stays as it is: somebody may have edited it."""
    from pathlib import Path

    from om_proxy.settings.shipped import read_annotated_file

    text, path = read_annotated_file(), Path(options.path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError as exc:
        raise ConfigError(f"{path} exists already: edit it, or name another path") from exc
    except OSError as exc:
        raise ConfigError(f"{path} cannot be written ({exc.strerror}): name a path where you may write") from exc
    print(f"wrote {path}; every setting in it stands at its default. Edit it, then: om-proxy check --config {path}")
    return 0


def token(options: argparse.Namespace) -> int:
    """Print a token of a user's, signed with `auth.token_secret`."""
    import time

    from om_proxy.memory.identity import nameable
    from om_proxy.memory.user_token import Claims, signed
    from om_proxy.settings import load
    from om_proxy.settings.quantities import duration

    auth = load(options.config).auth
    if auth.token_secret is None:
        raise ConfigError("auth.token_secret is not set: put the output of `openssl rand -hex 32` there")
    if not all(nameable(name) for name in (options.resource, options.thread) if name is not None):
        raise ConfigError("--resource and --thread must be 1 to 256 bytes of printable text, without blanks around it")
    try:
        exp = time.time() + duration(options.ttl)
    except ValueError as exc:
        raise ConfigError(f"--ttl = {options.ttl}: {exc}") from exc
    tenant = tenant_for(options.tenant, sorted({key.tenant for key in auth.keys}))
    claims = Claims(resource=options.resource, exp=round(exp), thread=options.thread, tenant=tenant)
    print(signed(claims, auth.token_secret.get_secret_value().encode()))
    return 0


def tenant_for(named: str | None, known: Sequence[str]) -> str | None:
    """The tenant a token is for: the one named, or the only one; None where there are no keys."""
    if named is None and len(known) < 2:
        return known[0] if known else None
    if named not in known:
        raise ConfigError(f"--tenant must be one of auth.keys: {', '.join(known) or 'there are none'}")
    return named


def doctor(options: argparse.Namespace) -> int:
    """Look at servers, credentials and threads; the exit status says whether all of it works."""
    import asyncio
    import os
    from pathlib import Path

    from om_proxy.doctor.report import examine, exit_status, render
    from om_proxy.settings import load

    settings = load(options.config)
    if settings.storage.file:
        print(f"looking at {Path(settings.storage.file).resolve()}", flush=True)
    work = examine(settings, model=options.model, call=options.call, revive=options.revive, environ=os.environ)
    findings = asyncio.run(work)
    print("\n".join(render(findings)))
    return exit_status(findings)


def forget(options: argparse.Namespace) -> int:
    """Forget a thread. It asks first, unless told not to."""
    from om_proxy.memory.naming import canonical_name
    from om_proxy.upkeep import forget_thread

    def agrees() -> bool:
        try:
            return options.yes or input("Forget this thread for good? [y/N] ").strip().lower() in ("y", "yes")
        except EOFError:  # Ctrl-D
            return False

    if not options.yes and not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here whether to forget it; add --yes")
    thread, resource = options.thread, options.resource
    named = canonical_name(thread) or thread, canonical_name(resource or "") or resource
    return with_store(options, lambda store: forget_thread(store, *named, options.tenant, agrees=agrees))


def rekey_tenant(options: argparse.Namespace) -> int:
    """Move a tenant to another credential. Both come from where no list of processes and no shell history holds them."""
    from om_proxy import upkeep
    from om_proxy.settings import load

    keys = tuple((k.tenant, k.key.get_secret_value()) for k in load(options.config).auth.keys)
    old, new = (credential(which) for which in ("old", "new"))
    return with_store(options, lambda store: upkeep.rekey_tenant(store, old, new, keys))


def credential(which: str) -> str:
    """The old or the new one, from the environment, the terminal or the next line of standard input."""
    import getpass
    import os

    if found := os.environ.get(f"OM_PROXY_{which.upper()}_CREDENTIAL"):
        return found.strip()
    return (getpass.getpass(f"{which} API key: ") if sys.stdin.isatty() else sys.stdin.readline()).strip()


def with_store(options: argparse.Namespace, work: Callable[[Store], Coroutine[Any, Any, int]]) -> int:
    """The exit status of work on the store that the configuration names, opened for it and closed behind it."""
    import asyncio

    from om_proxy.app import open_store
    from om_proxy.doctor.report import database
    from om_proxy.logs import configure
    from om_proxy.settings import load

    configure("off")  # what the command prints is its story

    async def opened() -> int:
        settings = load(options.config)
        database(settings)
        store = await open_store(settings.storage.url)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(opened())
    except KeyboardInterrupt:
        return INTERRUPTED
