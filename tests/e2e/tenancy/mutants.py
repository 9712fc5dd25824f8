"""The changes of the package that take one tenant out of it, each of which a test must notice.

A mutant is one change of the text of a copy of `proxy/`. Predicates on the tenant in SQL, and
keys that a script of Redis makes with the tenant, are found by their form, so that a new one is
among them by itself; what else keeps tenants apart is listed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
STORE = (
    "-k",
    "tenant or reaches or parked or moved or erased",
    "tests/storage/sqlite/test_store_tenants.py",
    "tests/storage/sqlite/test_store.py",
)
STORE_POSTGRES = (
    "-k",
    "tenant or reaches or parked or moved or erased",
    "tests/storage/postgres/test_store_tenants.py",
    "tests/storage/postgres/test_store.py",
)
STORE_REDIS = (
    "-k",
    "tenant or whose or who_is or reaches or parked or moved or erased or resource",
    "tests/storage/redis/test_store_tenants.py",
    "tests/storage/redis/test_store.py",
)
IDENTITY = (
    "tests/settings/identity/test_callers.py",
    "tests/settings/identity/test_thread_names.py",
    "tests/settings/identity/test_tenants.py",
    "tests/settings/identity/test_local_requests.py",
    "tests/settings/identity/test_header_values.py",
    "tests/settings/identity/test_keyed_hashes.py",
    "tests/settings/identity/test_user_token.py",
    "tests/edge/test_edge_config.py",
)
PREDICATE = re.compile(r"(?<!SET )tenant = (\?\d?|\$\d|\{\})|\{OF_TENANT\}")
# A key of Redis that a script makes with the tenant: everywhere but where the key is defined.
REDIS_KEY = re.compile(
    r"(?<!function )(key_of_tenant\([^,()]+), "
    r"(?:new_tenant|tenant|names\[1\]|string\.sub\(tenant, 2\)|unpack_names\(data, 1\)\[1\])\)"
)
WORLDS_OF_STORE = ("credentials", "shared")
# A version is given once in a file, so it names the thread alone; the tenant beside it is for the
# reader and the index. A list of resources or shared logs only says where to look: what is done in each names the tenant
# again.
SAME_WITHOUT = (
    "version = ? RETURNING id, version",
    "SELECT DISTINCT resource",
    "AND thread = '{RESOURCE_THREAD}'",
    'LOCK_LINES = f"""SELECT 1 FROM om.ledger',  # a lock
)


@dataclass(frozen=True)
class Mutant:
    """`old` stands in `file` at `at`, or anywhere (None); a folder stands for the one file in it
    that holds it."""

    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()
    worlds: tuple[str, ...] = ("credentials",)
    at: int | None = None

    def __str__(self) -> str:
        if self.at is None:
            return f"{self.file}: {_join_words(self.old)} → {_join_words(self.new)}"
        text = (ROOT / self.file).read_text(encoding="utf-8")
        return f"{self.file}:{text.count(chr(10), 0, self.at) + 1}: {self.old} → {self.new}"

    @property
    def name(self) -> str:
        """What it changes, in words that stay when lines move."""
        if self.at is None:
            return str(self)
        text, end = (ROOT / self.file).read_text(encoding="utf-8"), self.at + len(self.old)
        before = text[text.rfind("\n", 0, self.at) + 1 : self.at]
        after = text[end : text.find("\n", end)]
        return f"{self.file}: {before.lstrip()}⟦{self.old}⟧{after.rstrip()}"

    @property
    def path(self) -> str:
        """The file, from the root."""
        if not (ROOT / self.file).is_dir():
            return self.file
        files = [
            f
            for f in (ROOT / self.file).rglob("*.*")
            if f.suffix in {".py", ".sql"} and self.old in f.read_text(encoding="utf-8")
        ]
        if len(files) != 1:
            raise LookupError(
                f"{self}: stands in {len(files)} files; change this mutant as the code was changed"
            )
        return str(files[0].relative_to(ROOT))

    def apply(self, text: str) -> str:
        """Return the file's text with the change."""
        start = text.find(self.old) if self.at is None else self.at
        if start < 0:
            raise LookupError(
                f"{self}: stands there no more; change this mutant as the code was changed"
            )
        return text[:start] + self.new + text[start + len(self.old) :]


def _join_words(text: str) -> str:
    return " ".join(text.split())


def list_predicates() -> Iterator[Mutant]:
    """Yield a mutant for each predicate on the tenant in the storage's SQL."""
    for file in sorted((ROOT / "proxy/om_proxy/storage").rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        for found in PREDICATE.finditer(text):
            line = text[text.rfind("\n", 0, found.start()) : text.find("\n", found.start())]
            if not any(same in line for same in SAME_WITHOUT):
                name = str(file.relative_to(ROOT))
                worlds: tuple[str, ...] = ()
                new, tests = f"{found[1] or '?'} IS NOT NULL", STORE
                if "/postgres/" in name or "/sql/" in name:  # without a type it would be an error
                    new = f"{found[1]}::text IS NOT NULL"
                if "/postgres/" in name:
                    tests = STORE_POSTGRES
                else:
                    worlds = WORLDS_OF_STORE
                yield Mutant(name, found[0], new, tests, worlds, at=found.start())


def list_redis_keys() -> Iterator[Mutant]:
    """Yield a mutant for each key that a script of Redis makes with the tenant."""
    for file in sorted((ROOT / _REDIS / "lua").glob("*.lua")):
        text = file.read_text(encoding="utf-8")
        for found in REDIS_KEY.finditer(text):
            name, new = str(file.relative_to(ROOT)), f"{found[1]}, '')"
            yield Mutant(name, found[0], new, STORE_REDIS, (), at=found.start())


_SQLITE = "proxy/om_proxy/storage/sqlite"
_POSTGRES = "proxy/om_proxy/storage/postgres"
_REDIS = "proxy/om_proxy/storage/redis"
_CLAIMING = f"{_SQLITE}/claiming.py"
_IDENTITY, _TOKEN, _SITE = (
    "proxy/om_proxy/settings/identity",
    "proxy/om_proxy/settings/identity/user_token.py",
    "proxy/om_proxy/edge/edge_config.py",
)
_HELD_MEMORIES = "proxy/om_proxy/engine/memory_cache/held_memories.py"
_DUE_WORK = "proxy/om_proxy/engine/background/due_work.py"
_POLICY = "proxy/om_proxy/engine/policy.py"
_ROUTES, _ROUTE_TESTS = "proxy/om_proxy/management/api/routes", "tests/management/api/routes"
_MCP, _MCP_TESTS = (
    "proxy/om_proxy/management/mcp/memory_tools.py",
    ("tests/management/mcp/test_route.py",),
)
_HMAC = '.encode("latin-1"), hashlib.sha256).hexdigest()'
_ANYBODY_S = "next((c for k, c in self._cached.items() if k[1:] == key[1:]), None)"
OTHERS = (
    Mutant(
        _CLAIMING,
        "(lease.tenant, lease.resource, lease.thread)",
        "('', lease.resource, lease.thread)",
        STORE,
    ),
    Mutant(
        _CLAIMING,
        "(waiting.tenant, waiting.resource, waiting.thread)",
        "(lease.tenant, waiting.resource, waiting.thread)",
        STORE,
    ),
    Mutant(_SQLITE, "UNIQUE (tenant, resource, thread)", "UNIQUE (resource, thread)", STORE),
    Mutant(
        _SQLITE, "PRIMARY KEY (tenant, resource, thread)", "PRIMARY KEY (resource, thread)", STORE
    ),
    Mutant(
        f"{_POSTGRES}/claiming.py",
        "(lease.tenant, lease.resource, lease.thread)",
        "(''::text, lease.resource, lease.thread)",
        STORE_POSTGRES,
        (),
    ),
    Mutant(
        f"{_POSTGRES}/claiming.py",
        "(thread.tenant, thread.resource, thread.thread)",
        "(lease.tenant, thread.resource, thread.thread)",
        STORE_POSTGRES,
        (),
    ),
    # the names of Redis's keys, in Python and in the scripts
    *(
        Mutant(f"{_REDIS}/{file}", old, new, STORE_REDIS, ())
        for file, old, new in (
            ("keys.py", "{kind}:{_quote(tenant)}", "{kind}:"),
            ("keys.py", "{{{_quote(tenant)}/", "{{/"),
            ("keys.py", "/{_quote(resource)}}}", "/}}"),
            ("keys.py", ":{_quote(key.thread)}", ":"),
            ("lua/rows.lua", "':{' .. quote(tenant) .. '/'", "':{' .. '/'"),
            ("lua/rows.lua", "'/' .. quote(resource) .. '}:'", "'/' .. '}:'"),
            ("lua/rows.lua", "kind .. ':' .. quote(tenant)", "kind .. ':'"),
            ("lua/rows.lua", "local packed = pack(tenant,", "local packed = pack('',"),
            ("lua/rows.lua", "RESOURCES, 0, pack(tenant,", "RESOURCES, 0, pack('',"),
            ("lua/rows.lua", "LEDGER_RESOURCES, 0, pack(tenant,", "LEDGER_RESOURCES, 0, pack('',"),
            ("lua/rows.lua", "tonumber(id)) .. pack(tenant,", "tonumber(id)) .. pack('',"),
            # which part of a list is a tenant's own
            ("events.py", "tenant in (None, key.tenant)", "True"),
            ("events.py", '"" if tenant is None else f"={tenant}"', '""'),
            ("listing.py", 'owner = "" if tenant is None else f"={tenant}"', 'owner = ""'),
            ("listing.py", "prefix = pack_names(tenant) if", 'prefix = b"" if'),
            ("listing.py", "else pack_names(tenant, resource)", "else pack_names(tenant)"),
            ("listing.py", 'first = b"[" + pack_names(tenant)', 'first = b"-"'),
            ("listing.py", 'last = b"(" + pack_names(tenant) + LAST_BYTE', 'last = b"+"'),
            ("record_keeping.py", 'b"-" if tenant is None else', 'b"-" if True else'),
            ("record_keeping.py", 'b"+" if tenant is None else', 'b"+" if True else'),
            (
                "record_keeping.py",
                'names.of_store("audit") if tenant is None',
                'names.of_store("audit") if True',
            ),
            ("record_keeping.py", "pack_names(record.tenant)", 'pack_names("")'),
            ("record_keeping.py", "pack_names(receipt.tenant)", 'pack_names("")'),
            *(
                (
                    "changes.py",
                    f'of_resource("{kind}", tenant, resource)',
                    f'of_resource("{kind}", "", resource)',
                )
                for kind in ("revision", "threads", "told", "quoting")
            ),
        )
    ),
    # who the tenant is
    Mutant(_IDENTITY, f"credential{_HMAC}", f"credential[:4]{_HMAC}", IDENTITY),
    Mutant(_IDENTITY, "key = Key(tenant, ", 'key = Key("", ', IDENTITY),
    Mutant(
        _IDENTITY,
        "return LOCAL_TENANT if rules.loopback_only and is_local_request(values_by_name) else None",
        "return LOCAL_TENANT",
        IDENTITY,
    ),
    Mutant(_IDENTITY, "[*CREDENTIAL_HEADERS, MODE_HEADER", "[MODE_HEADER", IDENTITY),
    Mutant(_IDENTITY, "if len(credentials) > 1:", "if len(credentials) > 9:", IDENTITY),
    Mutant(
        _IDENTITY,
        "if hmac.compare_digest(sent_hash, key_hash):",
        "if sent_hash:",
        IDENTITY,
        ("keys",),
    ),
    Mutant(
        _IDENTITY,
        "return _read_credential(values_by_name, GATEWAY_KEY_HEADERS) or credential",
        "return credential",
        IDENTITY,
        ("keys",),
    ),
    Mutant(_IDENTITY, "and _match_key(credential, rules) is None", "", IDENTITY, ("keys",)),
    Mutant(_IDENTITY, "if len(values) > 1:\n", "if len(values) > 9:\n", IDENTITY),
    Mutant(_IDENTITY, 'b"fingerprint\\0" + tenant.encode()', 'b"fingerprint\\0"', IDENTITY),
    Mutant(_TOKEN, "if claims.tenant != tenant:", "if False:", IDENTITY, ("keys",)),
    Mutant(
        _SITE,
        "if has_provider_credential(headers, self.identity):",
        "if True:",
        IDENTITY,
        ("keys",),
    ),
    Mutant(
        "proxy/om_proxy/management/api/access.py",
        "own_tenant = find_own_tenant(",
        "own_tenant = query_tenant or find_own_tenant(",
    ),
    # what people are shown of their own tenant alone
    Mutant(
        "proxy/om_proxy/storage/sql/listing.py",
        "walk.append(Condition(OF_TENANT, (selection.tenant,)))",
        "pass",
        STORE,
    ),
    Mutant(
        f"{_ROUTES}/forgetting.py",
        "receipt is None or call.tenant not in (None, receipt.tenant)",
        "receipt is None",
        (f"{_ROUTE_TESTS}/test_forgetting.py",),
    ),
    Mutant(_MCP, "ThreadSelection(asked.tenant, order", "ThreadSelection(None, order", _MCP_TESTS),
    Mutant(_MCP, "ThreadSelection(tenant, order", "ThreadSelection(None, order", _MCP_TESTS),
    Mutant(
        _MCP,
        "ThreadSelection(resource_key.tenant, resource_key.resource)",
        "ThreadSelection(None, resource_key.resource)",
        _MCP_TESTS,
    ),
    Mutant(
        f"{_ROUTES}/events.py",
        "list_records(call.tenant,",
        "list_records(None,",
        ("tests/management/api/test_route.py", "tests/management/api/test_access.py"),
    ),
    Mutant(
        f"{_ROUTES}/events.py",
        "store.events(call.tenant, keys",
        "store.events(None, keys",
        (f"{_ROUTE_TESTS}/test_events.py",),
    ),
    Mutant(
        f"{_ROUTES}/events.py",
        "tenant=call.tenant,",
        "tenant=None,",
        ("tests/e2e/test_event_streams.py",),
    ),
    Mutant(
        "proxy/om_proxy/engine/event_feed/feed.py",
        "self.tenant is not None and event.key.tenant != self.tenant",
        "False",
        ("tests/engine/event_feed/test_feed_stream.py", "tests/engine/event_feed/test_feed.py"),
    ),
    Mutant(
        f"{_ROUTES}/stats.py",
        "            call.tenant,\n",
        "            None,\n",
        (f"{_ROUTE_TESTS}/test_stats.py",),
    ),
    Mutant(
        f"{_ROUTES}/stats.py",
        "store.threads(call.tenant,",
        "store.threads(None,",
        (f"{_ROUTE_TESTS}/test_stats.py",),
    ),
    # whose older generations are counted
    Mutant(
        "proxy/om_proxy/engine/background/retention.py",
        "log_key.tenant, log_key.resource, after, THREADS_PAGE",
        "None, log_key.resource, after, THREADS_PAGE",
        ("tests/engine/background/test_retention.py",),
    ),
    # what is remembered by tenant
    Mutant(
        _POLICY,
        "key = (model, resource, upstream.name, credential, query, members, api)",
        "key = (model, resource, upstream.name, query, members, api)",
    ),
    Mutant(
        "proxy", "fingerprint_key(self.secret, key.tenant)", 'fingerprint_key(self._secret, "")'
    ),
    Mutant(
        _DUE_WORK,
        "self._contexts.get(memory.key)",
        "next((c for k, c in self._contexts.items() if k[1:] == memory.key[1:]), None)",
    ),
    Mutant(_HELD_MEMORIES, "return self._cached.get(key)", f"return {_ANYBODY_S}"),
)


def list_mutants() -> dict[str, Mutant]:
    """Return all of them by name. Equal lines of a file are numbered."""
    named: dict[str, Mutant] = {}
    times: Counter[str] = Counter()
    for mutant in [*list_predicates(), *list_redis_keys(), *OTHERS]:
        times[mutant.name] += 1
        number = times[mutant.name]
        named[mutant.name if number == 1 else f"{mutant.name} #{number}"] = mutant
    return named
