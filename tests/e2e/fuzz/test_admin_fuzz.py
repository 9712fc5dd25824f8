"""Requests that the OpenAPI document allows or forbids get no 5xx and nothing undocumented;
scripts/fuzz-admin-api sends 100 000."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import requests
from schemathesis import Case
from schemathesis.core.transport import Response

from om_proxy.management.api.route import ADMIN_ROOT, OPENAPI_PATH
from om_proxy.management.api.route_table import ADMIN_ROUTES
from tests.e2e.fuzz.admin_cases import load_operations
from tests.e2e.fuzz.admin_fuzzing import AdminTold, fuzz_admin_api
from tests.support.long_forms import IS_LONG

CASES_PER_ROUTE = 60 if IS_LONG else 12


async def test_made_up_requests(tmp_path: Path) -> None:
    """Of each route, many are refused, and some are served: those tell of answers that the document
    allows."""
    labels = {f"{route.method} {ADMIN_ROOT}{route.path}" for route in ADMIN_ROUTES}
    labels.add(f"GET {ADMIN_ROOT}{OPENAPI_PATH}")
    cases = CASES_PER_ROUTE * len(labels)
    told = await fuzz_admin_api(tmp_path, cases, seed=3)
    assert told.wrong == []
    assert set(told.cases) == labels
    assert told.cases.total() == cases
    for status, share in ((200, 10), (400, 8), (404, 8), (401, 50)):
        assert told.statuses[status] > cases / share, told.statuses


def build_answer(status: int, body: bytes, content_type: str) -> Response:
    request = requests.Request("GET", "http://localhost/").prepare()
    return Response(status, {"content-type": [content_type]}, body, request, 0.1, verify=False)


@pytest.mark.parametrize(
    ("status", "body", "content_type", "wrong"),
    [
        (200, b'{"items": [], "threads": [], "cursor": null}', "application/json", ""),
        (200, b'{"items": 3, "threads": [], "cursor": null}', "application/json", "schema"),
        (200, b"<html>", "text/html", "Content-Type"),
        (418, b"{}", "application/json", "Undocumented"),
        (500, b"{}", "application/json", "500"),
        (503, b'{"error": {}}', "application/json", "503"),
    ],
)
def test_what_is_wrong(status: int, body: bytes, content_type: str, wrong: str) -> None:
    """A documented 503 is wrong too: the store of these tests is always there."""
    told = AdminTold()
    operation: Any = next(found for found in load_operations() if found.path.endswith("/threads"))
    case: Case = operation.Case()
    told.judge(case, build_answer(status, body, content_type))
    assert bool(told.wrong) == bool(wrong)
    assert wrong in " ".join(told.wrong)
