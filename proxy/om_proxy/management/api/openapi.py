"""Build the OpenAPI document of the admin API from its table of routes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import msgspec

from om_proxy import __version__
from om_proxy.management.api.requests import MAX_ADMIN_BODY_BYTES, LargeBody, Query, is_large_body
from om_proxy.management.api.route import ADMIN_ROOT, OPENAPI_PATH, AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES

SCHEMA_REFERENCE = "#/components/schemas/{name}"
COMMON_STATUSES = {
    "400": "The request cannot be meant; `param` names the part.",
    "401": "The caller may not ask this.",
    "404": "Unknown, or another tenant's: both look the same.",
    "405": "The path has other methods; `Allow` names them.",
    "503": (
        "The store cannot be reached (`om_storage`), or too much is asked at once (`om_overloaded`): "
        "`Retry-After` says when to try again."
    ),
}
TEXT_STATUSES = {"403": "It is text, which `server.admin_reads: false` hides from the admin token."}
WORK_STATUSES = {"502": "The memory model failed."}
BODY_STATUSES = {
    "408": "The body came too slowly (`limits.body_timeout`).",
    "413": f"The body is longer than {MAX_ADMIN_BODY_BYTES // 2**10} KiB.",
}
LARGE_BODY_STATUSES = {"413": "The body is longer than `limits.body`."}
CONFLICT_STATUSES = {"409": "Other changes always came first; ask again."}
VERSION_STATUSES = {
    "409": "`If-Match` names an older version: the thread has changed since. Or other changes always "
    "came first."
}
# of the routes' own codes; the others are 400
STATUS_BY_CODE = {"om_moved": "409", "om_conflict": "409", "om_unproductive": "422"}


class ErrorBody(msgspec.Struct, frozen=True):
    """The body of every error, in OpenAI's shape."""

    error: ErrorDetail


class ErrorDetail(msgspec.Struct, frozen=True):
    """The fault. `code` is stable; `message` says what to do."""

    message: str
    type: str
    param: str | None
    code: str


@cache
def build_openapi() -> dict[str, Any]:
    """Return the document, OpenAPI 3.1."""
    types = [ErrorBody, *(route.answer for route in ADMIN_ROUTES)]
    types += [route.body for route in ADMIN_ROUTES if is_json_body(route.body)]
    schemas, components = msgspec.json.schema_components(types, ref_template=SCHEMA_REFERENCE)
    schema_by_type = dict(zip(map(repr, types), schemas, strict=True))
    error = {"application/json": {"schema": schema_by_type[repr(ErrorBody)]}}
    paths: dict[str, dict[str, Any]] = {}
    for route in ADMIN_ROUTES:
        operations = paths.setdefault(ADMIN_ROOT + route.path, {})
        operations[route.method.lower()] = _describe_route(route, schema_by_type)
    paths[ADMIN_ROOT + OPENAPI_PATH] = {
        "get": {
            "summary": "This document.",
            "operationId": "show_openapi",
            "responses": {
                "200": {"description": "The document."},
                "401": {"description": "Another site's page asks.", "content": error},
                "404": {"description": "`server.api` is `off`.", "content": error},
            },
            "security": [{}],
        }
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "om-proxy admin API", "version": __version__},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "admin": {"type": "apiKey", "in": "header", "name": "X-OM-Admin"},
                "caller": {"type": "http", "scheme": "bearer"},
            },
        },
        "security": [{"admin": []}, {"caller": []}],
    }


def list_query_parameters(query: type[Query]) -> list[dict[str, Any]]:
    """Return the parameters of a query, as OpenAPI writes them."""
    schema = msgspec.json.schema(query)
    properties = schema["$defs"][query.__name__]["properties"]
    return [
        {
            "name": name,
            "in": "query",
            "required": name in schema["$defs"][query.__name__].get("required", ()),
            "description": part.get("description", ""),
            "schema": {key: value for key, value in part.items() if key != "description"},
        }
        for name, part in properties.items()
    ]


def list_error_statuses(route: AdminRoute) -> dict[str, str]:
    """Return the description of each status that an error of the route may have."""
    statuses = dict(COMMON_STATUSES)
    if route.changes_memory and route.names_thread:
        statuses |= VERSION_STATUSES
    elif route.changes_memory and has_version(route):
        statuses |= CONFLICT_STATUSES
    statuses |= TEXT_STATUSES if route.is_text else {}
    statuses |= WORK_STATUSES if route.may_go_on else {}
    statuses |= BODY_STATUSES if route.body is not None else {}
    statuses |= LARGE_BODY_STATUSES if is_large_body(route.body) else {}
    for code in route.codes:
        status = STATUS_BY_CODE.get(code, "400")
        statuses[status] = f"{statuses.get(status, '')} Also `{code}`.".strip()
    return statuses


def has_version(route: AdminRoute) -> bool:
    return "version" in getattr(route.answer, "__struct_fields__", ())


def is_json_body(body_type: Any) -> bool:
    """Return whether a route has a body, and it is a JSON object."""
    if not is_large_body(body_type):
        return body_type is not None
    is_json: bool = body_type.content_type == LargeBody.content_type
    return is_json


def _describe_route(route: AdminRoute, schema_by_type: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"{(\w+)}", route.path)
    ]
    parameters += list_query_parameters(route.query)
    is_change = route.changes_memory
    if is_change and route.names_thread:
        parameters.append(
            {
                "name": "If-Match",
                "in": "header",
                "required": False,
                "description": "The ETag of an earlier answer: nothing is changed if its version is old.",
                "schema": {"type": "string"},
            }
        )
    statuses = list_error_statuses(route)
    error = {"application/json": {"schema": schema_by_type[repr(ErrorBody)]}}
    answer = {"application/json": {"schema": schema_by_type[repr(route.answer)]}}
    if route.streams:
        answer[route.streams] = {"schema": {"type": "string"}}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "operationId": route.name,
        "parameters": parameters,
        "responses": {
            "200": {"description": "Done.", "content": answer},
            **({"202": {"description": "Begun.", "content": answer}} if route.may_go_on else {}),
            **{
                status: {"description": text, "content": error}
                for status, text in sorted(statuses.items())
            },
        },
    }
    if route.method == "GET" and has_version(route):
        operation["responses"]["304"] = {"description": "`If-None-Match` names this answer."}
    if route.body is not None:
        body_type = route.body if is_large_body(route.body) else LargeBody
        is_json = is_json_body(route.body)
        schema = schema_by_type[repr(route.body)] if is_json else {"type": "string"}
        operation["requestBody"] = {
            "required": True,
            "content": {body_type.content_type: {"schema": schema}},
        }
    return operation
