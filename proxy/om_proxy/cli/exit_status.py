"""The exit statuses of every command.

The exit status is 0 on success; 1 if `doctor` finds something that does not work, a memory model
fails, the demo fails, or you answer no; 2 if the arguments are wrong; 3 if the server cannot start, or the configuration
or the store cannot be read; 4 if nothing has the given name; 5 if the name is taken, or the thread
has changed since the given version; 6 if the budget is reached.
"""

from om_proxy.common.errors import (
    BadRequest,
    Conflict,
    MemoryModelFailed,
    Moved,
    NotFound,
    OmError,
    StaleVersion,
    Unauthorized,
    Unproductive,
    UsageError,
)

DONE = 0
NOT_WORKING = 1  # `doctor` found something that does not work, or a memory model failed
DEMO_FAILED = 1
DECLINED = 1  # the operator answered no
WRONG_USE = 2  # the arguments are wrong
# uvicorn's own status; unlike 0, it makes a supervisor start the proxy again
CANNOT_START = 3  # also: the configuration or the store cannot be read
NOT_FOUND = 4  # nothing has the given name
CONFLICT = 5  # the name is taken, or the thread has changed in the meantime
BUDGET_REACHED = 6  # the next call of a model might cost more than is left
NOTHING_TO_DO_CODES = frozenset(("om_nothing_to_undo", "om_nothing_to_observe"))
INTERRUPTED = 130  # the convention of shells: 128 plus the number of SIGINT


def find_exit_status(error: OmError) -> int:
    """Return the exit status of a command that ended with this error."""
    match error:
        case BadRequest(code=code) if code in NOTHING_TO_DO_CODES:
            return NOT_FOUND
        case UsageError() | BadRequest() | Unauthorized():
            return WRONG_USE
        case NotFound():
            return NOT_FOUND
        case Unproductive() | MemoryModelFailed():
            return NOT_WORKING
        case StaleVersion() | Moved() | Conflict():
            return CONFLICT
        case _:
            return CANNOT_START
