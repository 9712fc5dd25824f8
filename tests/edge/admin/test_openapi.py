"""The OpenAPI document lists every route of the table, and refers to nothing that it does not
define."""

from __future__ import annotations

import re

import orjson

from om_proxy.edge.admin.openapi import build_openapi
from om_proxy.edge.admin.route_table import ADMIN_ROOT, ADMIN_ROUTES, OPENAPI_PATH


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


def test_a_change_of_a_thread_takes_its_version() -> None:
    for route in ADMIN_ROUTES:
        operation = build_openapi()["paths"][ADMIN_ROOT + route.path][route.method.lower()]
        names = {parameter["name"] for parameter in operation["parameters"]}
        is_change = route.changes_memory
        assert ("If-Match" in names, "409" in operation["responses"]) == (is_change, is_change)
        assert ("requestBody" in operation) == (route.body is not None)
        assert "tenant" in names
