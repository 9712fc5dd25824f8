"""Keep the logs of a run that failed."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def keep_logs_of_failure() -> Iterator[Path]:
    """Yield a new folder for configurations and logs. It is removed, unless the run fails: then say
    where it is."""
    folder = Path(tempfile.mkdtemp(prefix="om-replicas-"))
    try:
        yield folder
    except BaseException:
        print(f"the logs are in {folder}", file=sys.stderr)
        raise
    shutil.rmtree(folder)
