"""Requests to the admin API as its OpenAPI document allows and forbids them, aimed at what is
there."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from random import Random
from typing import Any, NamedTuple

import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode

from om_proxy.management.api.openapi import build_openapi
from tests.e2e.furnished import EMPTY, KEY, RESOURCE, Places
from tests.support.hostile_texts import encode_path, list_hostile_texts

ADMIN_TOKEN = "a-long-admin-token"
STRANGE_NAMES = [encode_path(text) for text in list_hostile_texts()]
OWN = {"authorization": f"Bearer {KEY}"}
# a name for each, its headers, and how often it is chosen
CREDENTIALS: dict[str, tuple[dict[str, str], int]] = {
    "the tenant's key": (OWN, 7),
    "the admin token": ({"x-om-admin": ADMIN_TOKEN}, 4),
    "no credential": ({}, 1),
    "a wrong admin token": ({"x-om-admin": "wrong"}, 1),
    "another tenant's key": ({"authorization": "Bearer sk-other"}, 1),
    "the tenant's key from another origin": ({**OWN, "origin": "https://elsewhere.example"}, 1),
}
CREDENTIAL_SHARES = [share for _, share in CREDENTIALS.values()]
VERSION_HEADERS = ("if-match", "if-none-match")
VERSIONS = ('"1"', '"9"', 'W/"3"', "*", '"-1"', "x", '"999999999999999999999"', "")


@schemathesis.serializer("application/x-ndjson")
def write_lines(context: schemathesis.SerializationContext, value: Any) -> bytes:
    """Return the body of an import: the document says of it that it is text."""
    return str(value).encode("utf-8", "surrogatepass")


def load_operations() -> list[Any]:
    """Return the operations of the document."""
    schema = schemathesis.openapi.from_dict(build_openapi())
    schema.config.generation.update(with_security_parameters=False)  # nearly all would be 401
    return [found.ok() for found in schema.get_all_operations()]


def build_cases(operation: Any) -> st.SearchStrategy[Case]:
    """Return requests to one operation: two of three are as the document allows."""
    return st.one_of(
        *[operation.as_strategy(generation_mode=GenerationMode.POSITIVE)] * 2,
        operation.as_strategy(generation_mode=GenerationMode.NEGATIVE),
    )


class MadeUp(NamedTuple):
    """What was made up of a request, before it was aimed at anything."""

    path: dict[str, Any]
    query: dict[str, Any]
    headers: dict[str, str]

    @classmethod
    def read(cls, case: Case) -> MadeUp:
        return cls(dict(case.path_parameters or {}), dict(case.query or {}), dict(case.headers))


@dataclass
class CaseAim:
    """Turns one made-up request into several: to things that exist, by different callers."""

    places: Places
    tenant: str
    dice: Random
    # how often each credential was chosen
    credentials: Counter[str]

    def aim(self, case: Case, made_up: MadeUp) -> None:
        """Give the case the values of `made_up`, but for some."""
        case.path_parameters = {**made_up.path, **self._choose_names(case)}
        case.query = {**made_up.query, **self._choose_query()}
        case.headers.clear()
        case.headers.update({**made_up.headers, **self._choose_headers()})

    def _choose_names(self, case: Case) -> dict[str, str]:
        named = re.findall(r"/(\w+)/{(\w+)}", case.operation.path)
        # what removes a whole thread gets one that is made again; nothing may remove a tenant
        removes_all = case.method == "DELETE" and len(named) == 1
        chosen = {}
        for collection, name in named:
            known = (EMPTY,) if removes_all else self.places.get(collection, ("1",))
            if removes_all and collection == "tenants":
                known = ("nobody",)
            if self.dice.random() < 0.8:
                chosen[name] = self.dice.choice(known)
            elif self.dice.random() < 0.7:
                chosen[name] = self.dice.choice(STRANGE_NAMES)
        return chosen

    def _choose_query(self) -> dict[str, str]:
        chosen = {}
        if self.dice.random() < 0.2:
            chosen["resource"] = RESOURCE
        if self.dice.random() < 0.7:
            chosen["tenant"] = self.dice.choice((self.tenant,) * 9 + ("other",))
        return chosen

    def _choose_headers(self) -> dict[str, str]:
        [name] = self.dice.choices(list(CREDENTIALS), CREDENTIAL_SHARES)
        self.credentials[name] += 1
        chosen = dict(CREDENTIALS[name][0])
        for name in VERSION_HEADERS:
            if self.dice.random() < 0.1:
                chosen[name] = self.dice.choice(VERSIONS)
        return chosen
