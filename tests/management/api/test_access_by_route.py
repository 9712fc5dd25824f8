"""Every route × every kind of credential × `server.api`: who is served, who is refused, and how.

The routes are read from their table. A new route that has a body fails here until `BODIES`
(test_admin_api.py) has one for it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from om_proxy.management.api.route import AdminRoute
from om_proxy.management.api.route_table import ADMIN_ROUTES
from tests.e2e.running import run_with_scripted_models
from tests.management.api.test_admin_api import (
    ADMIN_TOKEN,
    CREDENTIALS,
    FOR_NEW_THREADS,
    IMPORTS,
    OWN,
    ask,
    ask_route,
)

# the last of a thread, a resource or a tenant is asked after all others, and then what makes one
ROUTES_IN_TURN = sorted(
    ADMIN_ROUTES,
    key=lambda route: (
        (route.method, route.path) in IMPORTS,
        route.method == "DELETE",
        -len(route.path),
    ),
)
SERVED = {200, 202}
# of a fresh thread, which has no notes: there is nothing to undo, to condense, or of that number
SERVED_WITHOUT_NOTES = SERVED | {400, 404, 409, 422}


def list_expected_statuses(route: AdminRoute, credential: str, api: str) -> set[int]:
    """Return the statuses that a caller may get. Foreign and unknown look the same."""
    if api == "off":
        return {404}
    if credential == "wrong" or (api == "admin" and credential != "admin"):
        return {401}
    if credential == "admin":
        # without ?tenant= it says nothing of a thread
        return {400} if route.names_thread else SERVED_WITHOUT_NOTES
    if credential == "own":
        return SERVED_WITHOUT_NOTES if route.codes or "{" in route.path else SERVED
    if (route.method, route.path) in IMPORTS:
        return SERVED if credential == "none" else {404}
    names_something = "{" in route.path and (route.method, route.path) not in FOR_NEW_THREADS
    return {404} if names_something else SERVED


@pytest.mark.parametrize("api", ["own", "admin", "off"])
async def test_each_caller_gets_what_the_table_says(tmp_path: Path, api: str) -> None:
    more = f"server: {{admin_token: {ADMIN_TOKEN}, api: {api}}}"
    wrong = []
    served = 0
    async with run_with_scripted_models(tmp_path, more=more) as run:
        await run.chat("crates").say("Where is crate 7?")
        for route in ROUTES_IN_TURN:
            for name, headers in CREDENTIALS.items():
                answer = await ask_route(run, route, headers)
                served += answer.status_code in SERVED
                if answer.status_code not in list_expected_statuses(route, name, api):
                    wrong.append((route.method, route.path, name, answer.status_code))
        document = await ask(run, "GET", "/openapi.json", OWN)
    assert wrong == []
    assert document.status_code == (404 if api == "off" else 200)
    assert (served > 0) == (api != "off")


async def test_nobody_reaches_another_tenant_by_naming_it(tmp_path: Path) -> None:
    """Who lost the admin token is refused, and does not change its own memory instead. A tenant
    that exists looks like one that does not."""
    more = f"server: {{admin_token: {ADMIN_TOKEN}}}"
    async with run_with_scripted_models(tmp_path, more=more) as run:
        for key in ("sk-a", "sk-b"):
            await run.chat("crates", key=key).say("Where is crate 7?")
        listed = (await ask(run, "GET", "/threads", CREDENTIALS["admin"])).json()["items"]
        (own,) = (await ask(run, "GET", "/threads", OWN)).json()["items"]
        (foreign,) = (line["tenant"] for line in listed if line["tenant"] != own["tenant"])
        for route in ROUTES_IN_TURN:
            answers = [
                await ask_route(run, route, OWN, f"tenant={name}") for name in (foreign, "nobody")
            ]
            assert [answer.status_code for answer in answers] == [404, 404], route.path
            assert answers[0].content == answers[1].content
        assert (await ask(run, "GET", "/threads", CREDENTIALS["admin"])).json()["items"] == listed
