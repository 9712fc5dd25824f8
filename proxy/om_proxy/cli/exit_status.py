"""The exit statuses of every command.

The exit status is 0 where all went well; 1 where `doctor` finds what does not work, or a person
said no; 2 where the settings or the options are wrong; 3 where they are right, and the server
cannot start all the same; 4 where nothing has the given name; 5 where something is in the way.
"""

DONE = 0
NOT_WORKING = 1  # `doctor` found something that does not work
DECLINED = 1  # a person said no
WRONG_USE = 2  # the settings or the options are wrong
CANNOT_START = (
    3  # uvicorn's own status: a supervisor starts the proxy again, as it does not after 0
)
NOT_THERE = 4  # nothing has the given name
IN_THE_WAY = 5  # something else has the name already
INTERRUPTED = 130  # the convention of shells: 128, and the number of SIGINT
