"""Everything we raise, and what the edge answers for it.

OmError
├── BadRequest            400  the caller can mend it; `code` names what
├── Unauthorized          401  only where `auth.keys` is configured
├── NotFound              404  unknown, or not the caller's: they look the same
├── TooSlow               408  a request that did not come in its time
├── TooLarge              413  a body above its limit
│   └── HeadTooLarge      431  its headers
├── Unsupported           501  a protocol we do not relay
│   └── HttpInstead       426  a WebSocket whose client has HTTP to fall back to
├── Overloaded            503  with Retry-After; the caller may try again
├── UpstreamError         502  the model server could not be reached or read
│   └── UpstreamTimeout   504
├── ConfigError            –   refused at load; names key, value, rule and line
├── StorageError           –   memory fails, chat does not (fail open)
│   ├── Conflict           –   someone committed first: load again, change again
│   └── Unwritable         –   this change can never be stored, however well the store is
└── ModelError             –   a memory model failed; never reaches a client
    ├── ModelBusy          –   worth another try (429, 5xx, network); may say when
    │   ├── BrokenAnswer   –   it began to answer, and the connection ended: as if cut off
    │   └── ModelTimeout   –   the whole work on it took longer than `background.call_timeout`
    ├── PromptTooLong      –   send less
    └── Unusable           –   it answered, but nothing that may enter a memory
        ├── CutOff         –   its answer has no end: ask about less
        └── Oversized      –   its answer is longer than what it is about
"""

import traceback


class OmError(Exception):
    """What every error of ours is; its text tells the reader what to do next."""

    status = 500
    code = "om_internal"
    retryable = True  # whether the same request may succeed later; rendered as `x-should-retry`


class BadRequest(OmError):
    status = 400
    retryable = False

    def __init__(self, message: str, code: str = "om_bad_request", param: str | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.param = param


class Unauthorized(OmError):
    status = 401
    code = "om_unauthorized"
    retryable = False


class NotFound(OmError):
    status = 404
    code = "om_not_found"
    retryable = False


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


class UpstreamError(OmError):
    status = 502
    code = "om_upstream_unreachable"


class UpstreamTimeout(UpstreamError):
    status = 504
    code = "om_upstream_timeout"


class ConfigError(OmError):
    code = "om_config"


class StorageError(OmError):
    code = "om_storage"


class Conflict(StorageError):
    code = "om_conflict"


class Unwritable(StorageError):
    pass


class ModelError(OmError):
    """`advice`: what the operator can do, in words of ours alone, so that a log may hold it; the message may quote a server's code."""

    code = "om_model"
    answered: int | None = None  # the status the model's server answered with, where it is at fault

    def __init__(self, message: str, advice: str = "") -> None:
        super().__init__(f"{message}: {advice}" if advice else message)
        self.advice = advice

    @property
    def cause(self) -> str:
        """Code, status and advice, for a log and for the store: no text of a server's or a person's."""
        said = f"{self.code} {self.answered}" if self.answered else self.code
        return f"{said}: {self.advice}" if self.advice else said


class ModelBusy(ModelError):
    """Worth another try; `retry_after` is seconds, where the server named them."""

    code = "om_model_busy"

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


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


def place_of(exc: BaseException) -> str:
    """Where an exception was raised, as `file:line`: all of a traceback that cannot hold somebody's words."""
    frames = traceback.extract_tb(exc.__traceback__)
    return f"{frames[-1].filename.rpartition('/')[2]}:{frames[-1].lineno}" if frames else ""
