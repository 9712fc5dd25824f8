"""The OpenAPI document lists every route of the table, and refers to nothing that it does not
define."""

from __future__ import annotations

import re

import orjson
import pytest

from om_proxy.management.api.openapi import STATUS_BY_CODE, build_openapi
from om_proxy.management.api.requests import is_large_body
from om_proxy.management.api.route import ADMIN_ROOT, OPENAPI_PATH, AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES


def test_every_route_is_listed_once() -> None:
    document = build_openapi()
    listed = {
        (method.upper(), path) for path, methods in document["paths"].items() for method in methods
    }
    routes = [(route.method, ADMIN_ROOT + route.path) for route in ADMIN_ROUTES]
    assert len(set(routes)) == len(routes)
    assert listed == {*routes, ("GET", ADMIN_ROOT + OPENAPI_PATH)}


def test_every_reference_is_defined() -> None:
    document = build_openapi()
    text = orjson.dumps(document).decode()
    references = set(re.findall(r'"\$ref":"#/components/schemas/(\w+)"', text))
    assert references == set(document["components"]["schemas"])
    assert references >= {"ThreadStatus", "ThreadList", "ErrorBody", "TitleChange"}


def test_operations_have_names_of_their_own() -> None:
    names = [
        operation["operationId"]
        for methods in build_openapi()["paths"].values()
        for operation in methods.values()
    ]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("route", ADMIN_ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_a_route_names_its_own_errors(route: AdminRoute) -> None:
    """Each status that it can have, and no other; its own codes stand with theirs."""
    operation = build_openapi()["paths"][ADMIN_ROOT + route.path][route.method.lower()]
    texts = {status: told["description"] for status, told in operation["responses"].items()}
    is_work = route.name in ("observe", "reflect")
    can_conflict = route.changes_memory and route.name not in ("forget_resource", "forget_tenant")
    expected = {
        "403": route.is_text,
        "408": route.body is not None,
        "409": can_conflict,
        "413": route.body is not None,
        "422": route.name == "reflect",
        "502": is_work,
        "503": True,
    }
    assert {status: status in texts for status in expected} == expected
    if route.body is not None:
        limit = "limits.body" if is_large_body(route.body) else "64 KiB"
        assert limit in texts["413"]
    if can_conflict:
        assert ("If-Match" in texts["409"]) == route.names_thread
    for code in route.codes:
        [status] = [status for status, text in texts.items() if f"`{code}`" in text]
        assert status == STATUS_BY_CODE.get(code, "400")


def test_a_change_of_a_thread_takes_its_version() -> None:
    for route in ADMIN_ROUTES:
        operation = build_openapi()["paths"][ADMIN_ROOT + route.path][route.method.lower()]
        names = {parameter["name"] for parameter in operation["parameters"]}
        is_change = route.changes_memory
        assert ("If-Match" in names) == (is_change and route.names_thread)
        assert ("requestBody" in operation) == (route.body is not None)
        assert "tenant" in names
