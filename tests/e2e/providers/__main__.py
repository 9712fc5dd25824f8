"""Run the matrix, and write it into docs/clients/servers.md: `python -m tests.e2e.providers`."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog

from tests.e2e.providers.matrix import (
    PAGE,
    cut_out_matrix,
    list_conversations,
    render_matrix,
    run_matrix,
)

if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    with TemporaryDirectory() as folder:
        cells = asyncio.run(run_matrix(Path(folder), list_conversations()))
    page = PAGE.read_text(encoding="utf-8")
    PAGE.write_text(page.replace(cut_out_matrix(page), render_matrix(cells)), encoding="utf-8")
    for name, cell in cells.items():
        for fault in cell.faults:
            print(f"{name}: {fault}")
