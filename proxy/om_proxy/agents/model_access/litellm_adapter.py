"""Ask a model through litellm, for providers with an API of their own.

The first call imports litellm: that takes 2 to 6 s and about 200 MB. It runs in a thread with its
own event loop, so its import and first use never block a request, and a cancelled call is cancelled
there.

For many providers litellm downloads images that a message names by address, and it logs its
prompts. So it gets no addresses (dialect.py), and its loggers are silent.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import threading
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import httpx

from om_proxy.agents.model_access.completion import build_model_error, read_completion
from om_proxy.agents.model_access.dialect import write_body
from om_proxy.agents.model_access.llm import Answer, Prompt, Target
from om_proxy.common.errors import BrokenAnswer, ModelBusy, ModelError

ANSWER_TIMEOUT_S = 600.0
EMBEDDING_TIMEOUT_S = 60.0
MAX_CAUSES = 10  # examined exceptions in the chain of causes

_DEFAULT_ENVIRONMENT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
_FIXED_ENVIRONMENT = {  # replaces the operator's own
    # no image is downloaded; dialect.py prevents it too, but not every release has this variable
    "MAX_IMAGE_URL_DOWNLOAD_SIZE_MB": "0",
    "JSON_LOGS": "",  # would write every uncaught exception with its text
    "LITELLM_LOG": "CRITICAL",  # a value that is no level ends the import
    "LITELLM_PRINT_STANDARD_LOGGING_PAYLOAD": "",  # would print each prompt and answer
}
# litellm's other loggers are children of these
_LOGGER_NAMES = ("LiteLLM", "LiteLLM Router", "LiteLLM Proxy", "litellm")


class LiteLLM:
    """The way to models through litellm. It costs nothing until its first call. `close` ends its
    thread."""

    def __init__(self, *, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._start_lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._complete(target, prompt), self._ensure_loop())
        )

    async def embed_texts(
        self, model: str, texts: Sequence[str]
    ) -> tuple[tuple[Sequence[float], ...], int]:
        """Return a vector for each text, and the tokens that the server reports. Raise as
        `complete` does."""
        return await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(self._embed(model, texts), self._ensure_loop())
        )

    async def warm_up(self) -> None:
        """Import litellm in its own thread, which takes seconds."""
        await asyncio.wrap_future(
            asyncio.run_coroutine_threadsafe(_import_in_thread(), self._ensure_loop())
        )

    def close(self) -> None:
        """Cancel the calls under way and end the thread. A later call starts another thread."""
        with self._start_lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop and thread:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()

    def _ensure_loop(self) -> asyncio.AbstractEventLoop:
        with self._start_lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(
                    target=_run_loop, args=(self._loop,), name="litellm", daemon=True
                )
                self._thread.start()
            return self._loop

    async def _complete(self, target: Target, prompt: Prompt) -> Answer:
        """Run in litellm's own thread."""
        litellm = import_litellm()
        try:
            response = await litellm.acompletion(**_build_arguments(target, prompt))
        except Exception as exc:  # any exception of a provider's client is translated here, once
            missing_key = _find_missing_key(litellm, target, exc)
            # from None: the exception's text may quote the prompt
            raise missing_key or _translate_error(exc, self._clock()) from None
        return read_completion(response.model_dump(), target.model)

    async def _embed(
        self, model: str, texts: Sequence[str]
    ) -> tuple[tuple[Sequence[float], ...], int]:
        """Run in litellm's own thread."""
        litellm = import_litellm()
        try:
            response = await litellm.aembedding(
                model=model,
                input=list(texts),
                timeout=EMBEDDING_TIMEOUT_S,
                num_retries=0,
                max_retries=0,
            )
        except Exception as exc:  # any exception of a provider's client is translated here, once
            missing_key = _find_missing_key(litellm, Target(model, "litellm"), exc)
            # from None: the exception's text may quote a text
            raise missing_key or _translate_error(exc, self._clock()) from None
        return _read_embeddings(response.model_dump(), len(texts))


def _read_embeddings(
    response: Mapping[str, Any], count: int
) -> tuple[tuple[Sequence[float], ...], int]:
    """Read the vectors in the order of the texts. Raise ModelBusy if they are not as many."""
    vectors: dict[int, Sequence[float]] = {}
    for place, each in enumerate(response.get("data") or ()):
        vector = each.get("embedding")
        if isinstance(vector, list) and all(isinstance(number, int | float) for number in vector):
            index = each.get("index")
            vectors[index if isinstance(index, int) else place] = vector
    if sorted(vectors) != list(range(count)):
        raise ModelBusy("the embedding model's server answered without a vector for each text")
    usage = response.get("usage") or {}
    tokens = usage.get("prompt_tokens") or usage.get("total_tokens") or 0
    return tuple(vectors[place] for place in range(count)), int(tokens)


def _run_loop(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    loop.run_forever()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()


async def _import_in_thread() -> None:
    import_litellm()


@cache
def import_litellm() -> Any:
    """Import litellm and silence it: it fetches no price list, reads no .env, sends no telemetry,
    prints no advertisement on errors and writes no logs."""
    for name, value in _DEFAULT_ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    os.environ.update(_FIXED_ENVIRONMENT)
    _silence_loggers()
    import litellm  # noqa: PLC0415 - see the module's docstring

    _silence_loggers()  # the import gave its loggers a handler
    litellm.telemetry = False
    litellm.suppress_debug_info = True
    litellm.drop_params = True  # a temperature the model does not take is left out
    litellm.turn_off_message_logging = True
    return litellm


def _silence_loggers() -> None:
    """Silence logs and warnings, which quote prompts, keys, addresses and answers. The raised error
    says what matters."""
    for name in _LOGGER_NAMES:
        logger = logging.getLogger(name)
        # without any handler, logging's last resort would write to stderr
        logger.handlers = [logging.NullHandler()]
        logger.propagate = False
        logger.setLevel(logging.CRITICAL + 1)
    warnings.filterwarnings("ignore", module=r"(litellm|openai|pydantic)\b")


def _build_arguments(target: Target, prompt: Prompt) -> dict[str, Any]:
    server = {
        "api_base": target.base_url,
        "api_key": target.api_key,
        "extra_headers": dict(target.headers) or None,
    }
    return {
        **write_body(target.model, prompt, sends_addresses=False),
        **{name: value for name, value in server.items() if value is not None},
        "timeout": ANSWER_TIMEOUT_S,
        "num_retries": 0,
        "max_retries": 0,  # of the OpenAI client below it
    }


def _find_missing_key(litellm: Any, target: Target, exc: Exception) -> ModelError | None:
    """Return an error if the failed call had no key. litellm reports a missing key in a different
    way for each provider, for some as an unreachable server. Clouds (AWS_…, VERTEX…) find
    credentials in other ways too."""
    if target.api_key or target.base_url or target.headers:
        return None
    if getattr(exc, "status_code", 500) != 500:
        return None
    variables = litellm.validate_environment(model=target.model)["missing_keys"]
    if not variables or any(name.startswith(("AWS_", "VERTEX")) for name in variables):
        return None
    return ModelError(
        "litellm has no key for the memory model",
        f"set {' or '.join(variables)} where the proxy runs, or memory.api_key",
    )


def _translate_error(exc: Exception, now: float) -> ModelError:
    """Translate an exception by its status. Without a status, the connection failed, or there is a
    fault that only the operator can correct."""
    causes = _list_causes(exc)
    if any(map(_is_answer_cut, causes)):
        return BrokenAnswer("the memory model's answer broke off")
    name = type(exc).__name__
    # litellm calls it the server's answer 500 with some providers
    is_unreached = any(isinstance(each, ConnectionError | httpx.TransportError) for each in causes)
    if is_unreached or name == "APIConnectionError":
        return ModelBusy("the memory model's server could not be reached")
    status = getattr(exc, "status_code", None)
    if not isinstance(status, int):
        return ModelError(f"litellm could not ask the model ({name})", "check memory.model")
    code = "context_length_exceeded" if name == "ContextWindowExceededError" else name
    return build_model_error(
        status, code=code, message=str(exc), headers=_read_headers(exc), now=now
    )


def _list_causes(exc: BaseException) -> list[BaseException]:
    """List the exception, its cause, the cause of that, and so on."""
    causes: list[BaseException] = []
    cause: BaseException | None = exc
    while cause is not None and len(causes) < MAX_CAUSES:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return causes


def _is_answer_cut(cause: BaseException) -> bool:
    """Return whether the connection ended within an answer. litellm has many names for that."""
    # aiohttp's, which litellm uses where it is installed
    if type(cause).__name__ == "ClientPayloadError":
        return True
    if isinstance(cause, httpx.RemoteProtocolError):
        return "message body" in str(cause)
    return isinstance(cause, json.JSONDecodeError) and cause.doc.lstrip().startswith("{")


def _read_headers(exc: Exception) -> Mapping[str, str]:
    headers = getattr(exc, "litellm_response_headers", None) or getattr(
        getattr(exc, "response", None), "headers", None
    )
    return {str(name).lower(): str(value) for name, value in dict(headers or {}).items()}
