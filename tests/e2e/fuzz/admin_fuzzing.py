"""Requests to the admin API by the thousand, made from its OpenAPI document by Schemathesis.

A case has failed when its answer is a 5xx, has a status or a content type that the document does
not name, or a body that its schema does not allow. Each epoch has a fresh copy of a furnished
store, so that changes do not wear it out. A case takes some 3 ms of a processor, most of them to
make it up.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import hypothesis
import requests
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy
from schemathesis import Case
from schemathesis.checks import CheckContext
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.core.transport import Response
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from om_proxy.observability.logs import configure_log
from tests.e2e.furnished import (
    EMPTY,
    MEMORY_SETTINGS,
    OWN,
    SCOPE_OVERRIDE_SETTINGS,
    Places,
    furnish,
)
from tests.e2e.fuzz.admin_cases import ADMIN_TOKEN, CaseAim, MadeUp, build_cases, load_operations
from tests.e2e.fuzz.kept_connection import KeptConnection
from tests.e2e.running import run_with_scripted_models

CASES_PER_EPOCH = 5_000
# to make up a request takes longer than to send it
AIMS_PER_CASE = 5
CHECKS = [status_code_conformance, content_type_conformance, response_schema_conformance]
Operations = list[tuple[Any, SearchStrategy[Case]]]
CONFIGURATION = f"server: {{admin_token: {ADMIN_TOKEN}}}{SCOPE_OVERRIDE_SETTINGS}"


@dataclass
class AdminTold:
    """What was seen of many cases."""

    cases: Counter[str] = field(default_factory=Counter)  # by operation
    statuses: Counter[int] = field(default_factory=Counter)
    credentials: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def judge(self, case: Case, answer: Response) -> None:
        self.cases[case.operation.label] += 1
        self.statuses[answer.status_code] += 1
        if answer.status_code >= 500:
            self._tell(case, f"{answer.status_code}: {answer.text[:200]}")
        for check in CHECKS:
            try:
                check(_build_check_context(case), answer, case)
            except FailureGroup as group:
                for failure in group.exceptions:
                    self._tell(case, f"{answer.status_code}: {failure}")
            except Failure as failure:
                self._tell(case, f"{answer.status_code}: {failure}")

    def as_line(self) -> str:
        """Return the figures, and the first of what is wrong, as a line of JSON."""
        return json.dumps(
            {
                "cases": self.cases.total(),
                "seconds": round(self.seconds),
                "statuses": dict(sorted(self.statuses.items())),
                "credentials": dict(sorted(self.credentials.items())),
                "fewest_of_a_route": min(self.cases.values(), default=0),
                "wrong": len(self.wrong),
                "first_wrong": self.wrong[:3],
            }
        )

    def _tell(self, case: Case, what: str) -> None:
        self.wrong.append(f"{what}\n  {case.as_curl_command()[:600]}")


def _build_check_context(case: Case) -> CheckContext:
    config = case.operation.schema.config.checks_config_for()
    return CheckContext(None, None, None, config, None, response_checks=None)


async def fuzz_admin_api(
    folder: Path, cases: int, seed: int, stop_at: float = float("inf"), progress: Path | None = None
) -> AdminTold:
    """Send this many cases, shared out to the operations; at `stop_at`, a time of the monotonic
    clock, no more. Each epoch adds its line to the file `progress`."""
    told, started = AdminTold(), time.monotonic()
    template = folder / "template"
    template.mkdir()
    async with run_with_scripted_models(template, MEMORY_SETTINGS, more=CONFIGURATION) as run:
        furniture = await furnish(run)
        places = await furniture.list_places()
    operations = [(operation, build_cases(operation)) for operation in load_operations()]
    for epoch in range(-(-cases // CASES_PER_EPOCH)):
        copy = folder / f"epoch-{epoch}"
        shutil.copytree(template, copy)
        count = min(CASES_PER_EPOCH, cases - epoch * CASES_PER_EPOCH)
        async with run_with_scripted_models(copy, MEMORY_SETTINGS, more=CONFIGURATION) as run:
            connection = KeptConnection(run.base)
            sender = CaseSender(connection, places, furniture.tenant, told, stop_at)
            await asyncio.to_thread(sender.send_cases, operations, count, seed + epoch)
        shutil.rmtree(copy)
        told.seconds = time.monotonic() - started
        if progress:
            with progress.open("a", encoding="utf-8") as lines:
                lines.write(f"{told.as_line()}\n")
        if time.monotonic() >= stop_at:
            break
    return told


@dataclass
class CaseSender:
    """Sends cases to one proxy, from a thread of its own."""

    connection: KeptConnection
    places: Places
    tenant: str
    told: AdminTold
    stop_at: float

    def send_cases(self, operations: Operations, count: int, seed: int) -> None:
        """Send so many cases, first to this operation, then to that: in another order for each
        seed, because what one changes the next ones find."""
        shares = [
            count // len(operations) + (number < count % len(operations))
            for number in range(len(operations))
        ]
        order = list(zip(operations, shares, strict=True))
        Random(seed).shuffle(order)
        with closing(self.connection):
            for (operation, strategy), share in order:
                if share and time.monotonic() < self.stop_at:
                    self._send_to(operation, strategy, share, seed)

    def _send_to(
        self, operation: Any, strategy: SearchStrategy[Case], count: int, seed: int
    ) -> None:
        remaining = count
        dice = Random(f"{seed}/{operation.label}")
        aims = CaseAim(self.places, self.tenant, dice, self.told.credentials)

        @hypothesis.seed(seed)
        @hypothesis.settings(
            max_examples=-(-count // AIMS_PER_CASE),
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @hypothesis.given(strategy)
        def send(case: Case) -> None:
            nonlocal remaining
            made_up = MadeUp.read(case)
            for _ in range(min(AIMS_PER_CASE, remaining)):
                aims.aim(case, made_up)
                self._send(case)
                remaining -= 1

        while remaining:  # of some routes there are few different requests
            send()

    def _send(self, case: Case) -> None:
        answer = self.connection.send(case)
        self.told.judge(case, answer)
        if case.method == "DELETE" and answer.status_code == 200:
            self._restore_removed()

    def _restore_removed(self) -> None:
        message = {"role": "user", "content": "Where is crate 7?"}
        body = {"model": "scripted-actor", "messages": [message]}
        url = f"{self.connection.base}/v1/chat/completions"
        headers = OWN | {"x-om-thread": EMPTY}
        self.connection.send_request(requests.Request("POST", url, headers, json=body).prepare())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many")
    parser.add_argument("--progress", type=Path, help="a file that gets a line after each epoch")
    options = parser.parse_args()
    configure_log("off")
    stop_at = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        fuzzing = fuzz_admin_api(
            Path(folder), options.cases, options.seed, stop_at, options.progress
        )
        told = asyncio.run(fuzzing)
    print(f"{told.cases.total()} cases in {told.seconds:.0f} s")
    for status, count in sorted(told.statuses.items()):
        print(f"  {status}: {count}")
    for name, count in sorted(told.credentials.items()):
        print(f"  {count:6d} with {name}")
    for label, count in sorted(told.cases.items()):
        print(f"  {count:6d} {label}")
    for what, count in Counter(told.wrong).most_common(20):
        print(f"wrong ({count} times): {what}")
    return 1 if told.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
