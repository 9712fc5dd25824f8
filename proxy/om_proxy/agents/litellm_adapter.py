"""Asks a model through litellm, for providers with a language of their own.

litellm is imported at the first call only: it takes 2 to 6 s and about 200 MB. It lives in a thread with an event loop of its
own, so that neither its import nor anything it does at first use holds up a request, and a cancelled call is cancelled there.

For many providers litellm downloads what a message only names by its address, and it logs what it was asked. Here it is
given no addresses (dialect.py), and nobody hears it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import httpx

from om_proxy.agents.completion import answer_from
from om_proxy.agents.dialect import Dialect
from om_proxy.agents.failures import failure
from om_proxy.agents.llm import Answer, Prompt, Target
from om_proxy.errors import BrokenAnswer, ModelBusy, ModelError

TIMEOUT = 600.0  # seconds for one answer
MAX_CAUSES = 10  # exceptions that are looked at behind the one it raises

_DEFAULTS = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
_FIXED = {  # whatever the operator's environment says
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",  # no image is downloaded: a second lock behind dialect.py's, where a release has it
    "JSON_LOGS": "",  # would write every exception that nobody caught, with its text
    "LITELLM_LOG": "CRITICAL",  # one that is no level ends the import
    "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD": "",  # would print what each call asked and got
}
_LOGGERS = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "litellm")  # the others it makes are below these


class LiteLLM:
    """Costs nothing until asked. `close` ends its thread."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._complete(target, prompt), self._started())
        )

    def close(self) -> None:
        """Cancel what is under way and end the thread; a later call starts it anew."""
        with self._starting:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=_run, args=(self._loop,), name="litellm", daemon=True)
                self._thread.start()
            return self._loop

    async def _complete(self, target: Target, prompt: Prompt) -> Answer:
        """In litellm's own thread."""
        litellm = _imported()
        try:
            response = await litellm.acompletion(**_arguments(target, prompt))
        except Exception as exc:  # whatever a provider's client raises; translated here, once
            failed = _keyless(litellm, target, exc) or _translated(exc, self._clock())
            raise failed from None  # its text may quote the prompt
        return answer_from(response.model_dump(), target.model)


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


@cache
def _imported() -> Any:
    """litellm, quiet: no price list fetched, no .env of some folder read, no telemetry, no advertisement on errors, no logs."""
    for name, value in _DEFAULTS.items():
        os.environ.setdefault(name, value)
    os.environ.update(_FIXED)
    _silence()
    import litellm  # noqa: PLC0415 - see the module's docstring

    _silence()  # the import gave its loggers a handler
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True  # a temperature the model does not take is left out
    litellm.turn_off_message_logging = True
    return litellm


def _silence() -> None:
    """What it logs and warns of quotes prompts, keys, addresses and answers; what matters of a failure, its error says."""
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers = [logging.NullHandler()]  # without any, logging's last resort would write to stderr
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"(litellm|openai|pydantic)\b")


def _arguments(target: Target, prompt: Prompt) -> dict[str, Any]:
    given = {
        "api_base": target.base_url,
        "api_key": target.api_key,
        "extra_headers": dict(target.headers) or None,
    }
    return {
        **Dialect(addresses=False).body(target.model, prompt),
        **{name: value for name, value in given.items() if value is not None},
        "timeout": TIMEOUT,
        "num_retries": 0,
        "max_retries": 0,  # of the OpenAI client below it
    }


def _keyless(litellm: Any, target: Target, exc: Exception) -> ModelError | None:
    """litellm tells of a missing key in as many ways as it has providers, and of some as of a server that cannot be reached. Clouds
    (AWS_…, VERTEX…) have other ways to credentials than the environment."""
    if target.api_key or target.base_url or target.headers or getattr(exc, "status_code", 500) != 500:
        return None
    missing = litellm.validate_environment(model=target.model)["missing_keys"]
    if not missing or any(name.startswith(("AWS_", "VERTEX")) for name in missing):
        return None
    return ModelError(
        "litellm has no key for the memory model", f"set {' or '.join(missing)} where the proxy runs, or memory.api_key"
    )


def _translated(exc: Exception, now: float) -> ModelError:
    """By status where there is one; else a connection that failed, or something only the operator can mend."""
    if _broke_off(exc):
        return BrokenAnswer("the memory model's answer broke off")
    name = type(exc).__name__
    if name == "APIConnectionError":
        return ModelBusy("the memory model's server could not be reached")
    status = getattr(exc, "status_code", None)
    if not isinstance(status, int):
        return ModelError(f"litellm could not ask the model ({name})", "check memory.model")
    too_long = "context_length_exceeded" if name == "ContextWindowExceededError" else None
    return failure(status, code=too_long or name, message=str(exc), headers=_headers_of(exc), now=now)


def _broke_off(exc: BaseException) -> bool:
    """Whether the connection ended within an answer. litellm calls that by many names; what it was raised from tells."""
    cause: BaseException | None = exc
    for _ in range(MAX_CAUSES):
        if cause is None:
            return False
        if type(cause).__name__ == "ClientPayloadError":  # aiohttp's, which litellm uses where it is there
            return True
        if isinstance(cause, httpx.RemoteProtocolError) and "message body" in str(cause):
            return True
        if isinstance(cause, json.JSONDecodeError) and cause.doc.lstrip().startswith("{"):
            return True
        cause = cause.__cause__ or cause.__context__
    return False


def _headers_of(exc: Exception) -> Mapping[str, str]:
    headers = getattr(exc, "litellm_response_headers", None) or getattr(getattr(exc, "response", None), "headers", None)
    return {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
