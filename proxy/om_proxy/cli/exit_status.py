"""The exit statuses of every command.

The exit status is 0 on success; 1 if `doctor` finds something that does not work, the demo fails,
or you answer no; 2 if the settings or the options are wrong; 3 if they are right, but the server
cannot start; 4 if nothing has the given name; 5 if the name is taken.
"""

DONE = 0
NOT_WORKING = 1  # `doctor` found something that does not work
DEMO_FAILED = 1
DECLINED = 1  # the operator answered no
WRONG_USE = 2  # the settings or the options are wrong
# uvicorn's own status; unlike 0, it makes a supervisor start the proxy again
CANNOT_START = 3
NOT_FOUND = 4  # nothing has the given name
NAME_TAKEN = 5  # something else has the name already
INTERRUPTED = 130  # the convention of shells: 128 plus the number of SIGINT
