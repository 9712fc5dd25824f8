"""Define the tree of the proxy's errors, with the status that the edge answers for each.

OmError
├── BadRequest            400  the caller can correct it; `code` names the fault
├── Unauthorized          401  a key or a token is missing, or wrong: `wrong` says which
├── Forbidden             403  no text for the admin token; no key of the operator for strangers
├── NotFound              404  unknown, or another tenant's: both look the same
├── BadMethod             405  the path has other methods; `Allow` names them
├── Unproductive          422  notes that a person wanted condensed did not become shorter
├── Moved                 409  another entry holds the notes now; `entry` is its id
├── TooSlow               408  the request arrived too slowly
├── StaleVersion          409  the thread has changed since the version that a change names
├── TooLarge              413  a body above its limit
│   └── HeadTooLarge      431  its headers
├── Unsupported           501  a protocol that is not relayed
│   └── HttpInstead       426  a WebSocket whose client has HTTP to fall back to
├── Overloaded            503  with Retry-After; the caller may try again
├── MemoryAway            503  the same: `storage.on_down: 503`, and memory cannot be read
├── UpstreamError         502  the model server could not be reached or read
│   └── UpstreamTimeout   504
├── ConfigError            –   at load; names key, value, rule and line
├── UsageError             –   a command's arguments; says what to give instead
├── StorageError          503  memory fails, chat does not (fail open); the status is the admin API's
│   ├── Conflict          409  another commit came first: load and change again
│   │   └── ForgottenName  –   the thread of a first turn was forgotten after the turn began
│   ├── Unwritable         –   the store can never take this change
│   ├── UnopenedText       –   a stored value does not open or is none; other threads are as they were
│   ├── KeysAway           –   `storage.keys_url` cannot be asked; threads whose keys are held go on
│   ├── WrongMasterKey     –   the database needs another `storage.encryption_key`
│   ├── WrongKeyStore      –   the database needs another `storage.keys_url`
│   └── ProgramTooOld      –   a newer program has changed the database's schema
├── MemoryModelFailed     502  the memory model failed at what a person asked for
└── ModelError             –   a memory model failed; never reaches a client
    ├── ModelBusy          –   a retry may succeed (429, 5xx, network)
    │   ├── BrokenAnswer   –   the connection ended in the middle of its answer
    │   └── ModelTimeout   –   the whole call exceeded `background.call_timeout`
    ├── PromptTooLong      –   the prompt must be shorter
    └── Unusable           –   its answer must not enter a memory
        ├── CutOff         –   its answer has no end: ask about less
        └── Oversized      –   its answer is longer than its source
"""

import traceback
from typing import Literal


class OmError(Exception):
    """The base of the proxy's errors. Its text tells the reader what to do next."""

    status = 500
    code = "om_internal"
    retryable = True  # whether the same request may succeed later; rendered as `x-should-retry`


class BadRequest(OmError):
    status = 400
    retryable = False

    def __init__(
        self, message: str, code: str = "om_bad_request", param: str | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


# what can be sent, and be wrong: the admin token, the metrics token, a key of `auth.keys`, X-OM-Token
CredentialKind = Literal["admin", "metrics", "key", "token"]


class Unauthorized(OmError):
    """`wrong`: what was sent and is wrong, because somebody may be guessing. None: it is missing or
    expired."""

    status = 401
    code = "om_unauthorized"
    retryable = False

    def __init__(self, message: str, wrong: CredentialKind | None = None) -> None:
        super().__init__(message)
        self.wrong = wrong


class Forbidden(OmError):
    status = 403
    code = "om_forbidden"
    retryable = False


class NotFound(OmError):
    status = 404
    code = "om_not_found"
    retryable = False


class BadMethod(OmError):
    status = 405
    code = "om_bad_method"
    retryable = False

    def __init__(self) -> None:
        super().__init__("this path has other methods; the header Allow names them")


class StaleVersion(OmError):
    status = 409
    code = "om_conflict"
    retryable = False

    def __init__(self) -> None:
        super().__init__(
            "the thread has changed since this version: read it again, then repeat the change"
        )


class Unproductive(OmError):
    status = 422
    code = "om_unproductive"
    retryable = False


class Moved(OmError):
    """The notes are in another entry now. The response names it beside the message."""

    status = 409
    code = "om_moved"
    retryable = False

    def __init__(self, entry: int) -> None:
        super().__init__(f"entry {entry} holds these notes now: read it, then repeat the change")
        self.entry = entry


class TooSlow(OmError):
    status = 408
    code = "om_too_slow"


class TooLarge(OmError):
    status = 413
    code = "om_too_large"
    retryable = False


class HeadTooLarge(TooLarge):
    status = 431
    code = "om_head_too_large"


class Unsupported(OmError):
    status = 501
    code = "om_unsupported"
    retryable = False


class HttpInstead(Unsupported):
    status = 426


class Overloaded(OmError):
    status = 503
    code = "om_overloaded"


class MemoryAway(OmError):
    status = 503
    code = "om_storage"


class UpstreamError(OmError):
    status = 502
    code = "om_upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    status = 504
    code = "om_upstream_timeout"


class ConfigError(OmError):
    code = "om_config"


class UsageError(OmError):
    pass


class StorageError(OmError):
    status = 503
    code = "om_storage"


class Conflict(StorageError):
    status = 409
    code = "om_conflict"


class ForgottenName(Conflict):
    pass


class Unwritable(StorageError):
    pass


class UnopenedText(StorageError):
    pass


class KeysAway(StorageError):
    pass


class WrongMasterKey(StorageError):
    pass


class WrongKeyStore(StorageError):
    pass


class ProgramTooOld(StorageError):
    pass


class ModelError(OmError):
    """A failed call of a memory model. `advice` tells the operator what to do. It is the proxy's
    own text, so a log may hold it. The message may quote a server's error code."""

    code = "om_model"
    server_status: int | None = None  # HTTP status of the model's server, if the server failed

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}: {advice}" if advice else message)
        self.advice = advice

    @property
    def cause(self) -> str:
        """The code, status and advice, for a log and for the store. It has no text of a server or a
        person."""
        code = f"{self.code} {self.server_status}" if self.server_status else self.code
        return f"{code}: {self.advice}" if self.advice else code


class MemoryModelFailed(OmError):
    """Tells the person who asked for memory work why it failed, without a model's text."""

    status = 502
    code = "om_model_failed"

    def __init__(self, failure: ModelError) -> None:
        super().__init__(f"the memory model failed ({failure.cause})")


class ModelBusy(ModelError):
    """An error that a retry may end. `retry_after_s`: if the server named a time."""

    code = "om_model_busy"

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BrokenAnswer(ModelBusy):
    code = "om_broken_answer"


class ModelTimeout(ModelBusy):
    code = "om_model_timeout"


class PromptTooLong(ModelError):
    code = "om_prompt_too_long"


class Unusable(ModelError):
    code = "om_unusable"


class CutOff(Unusable):
    code = "om_cut_off"


class Oversized(Unusable):
    code = "om_oversized"


def raise_site(exc: BaseException) -> str:
    """Return the place where an exception was raised, as `file:line`: the only part of a traceback
    that never holds a user's text."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""


def render_install_command(extra: str) -> str:
    """Return the command that installs an extra of this package, then the one for a clone."""
    return (
        f"pip install 'observational-memory-proxy[{extra}]', or in a clone pip install '.[{extra}]'"
    )
