"""`om-proxy store rekey-tenant`: move the memory of an old API key to the new one."""

from __future__ import annotations

import argparse
import getpass
import os
import sys

from om_proxy.cli.exit_status import CONFLICT, DONE, NOT_FOUND
from om_proxy.cli.store_command import print_error, run_with_store
from om_proxy.cli.visible_text import escape_line
from om_proxy.common.errors import UsageError
from om_proxy.management.moving.importing import create_fingerprint
from om_proxy.settings.config import load
from om_proxy.settings.identity.identity_rules import IdentityRules
from om_proxy.settings.identity.tenants import find_tenant
from om_proxy.storage.contract.removal import MemoryMoving


def run(options: argparse.Namespace) -> int:
    """Move a tenant to another credential. The credentials are not arguments: a process list and
    a shell history would show them."""
    keys = tuple((key.tenant, key.key.get_secret_value()) for key in load(options.config).auth.keys)
    old = read_credential("old")
    new = read_credential("new")
    return run_with_store(
        options, lambda options, settings, store: rekey_tenant(store, old, new, keys)
    )


def read_credential(which: str) -> str:
    """Read the old or the new credential from the environment, the terminal or the next line of
    standard input."""
    if credential := os.environ.get(f"OM_PROXY_{which.upper()}_CREDENTIAL"):
        return credential.strip()
    if sys.stdin.isatty():
        return getpass.getpass(f"{which} API key: ").strip()
    return sys.stdin.readline().strip()


async def rekey_tenant(
    store: MemoryMoving, old: str, new: str, keys: tuple[tuple[str, str], ...] = ()
) -> int:
    """Move what is stored under one credential to another, and return the exit status.

    `keys`: tenant and key of each of `auth.keys`; the new credential may be one of them."""
    secret = await store.secret()
    source = find_credential_tenant(old, secret)
    target = find_credential_tenant(new, secret, keys)
    if source == target:
        raise UsageError("the two credentials are the same; there is nothing to move")
    fingerprint = create_fingerprint(secret, target)
    moved = await store.move_tenant(source, target, fingerprint)
    if moved.name_conflicts:
        print_error(
            f"nothing was moved: the new credential has {moved.name_conflicts} threads or shared logs "
            "with the same names; forget one of each first (om-proxy forget THREAD --tenant T, where "
            f"T is {source} for the old credential and {target} for the new one)"
        )
        return CONFLICT
    if not moved.threads:
        print_error(
            "there is no memory of the old credential in this store; "
            "give the credential as clients sent it, without `Bearer`"
        )
        return NOT_FOUND
    print(
        f"moved: {moved.threads} threads with {moved.messages} messages, "
        f"to tenant {escape_line(target)}"
    )
    return DONE


def find_credential_tenant(
    credential: str, secret: bytes, keys: tuple[tuple[str, str], ...] = ()
) -> str:
    """Find the tenant of a request with this credential."""
    if not credential:
        raise UsageError("a credential is empty; give the old one, then the new one")
    headers = [(b"authorization", b"Bearer " + credential.encode())]
    tenant = find_tenant(headers, IdentityRules(keys=keys), secret)
    assert tenant is not None  # every request with a credential has a tenant
    return tenant
