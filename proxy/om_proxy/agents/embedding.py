"""Ask a model for vectors of texts: one of litellm's names, or `local:` and the path of a file.

A file is ONNX, with `tokenizer.json` beside it. onnxruntime, tokenizers and numpy are imported in a
worker thread at the first text. They are the extra `om-proxy[vectors]`.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from om_proxy.agents.model_access.litellm_adapter import LiteLLM
from om_proxy.common.errors import ModelError, render_install_command

LOCAL_PREFIX = "local:"
TOKENIZER_FILE = "tokenizer.json"
COMPARING_MODULES = ("numpy",)  # of vectors, whichever model made them
MODULES = ("numpy", "onnxruntime", "tokenizers")
INSTALL_HINT = f"install the extra: {render_install_command('vectors')}"
MAX_TOKENS = 512  # of a text, where the tokenizer has no limit of its own
# one for messages in the background, one for the query that somebody waits for
THREADS = 2


class Embedded(NamedTuple):
    """The vectors of some texts, in order, as the model gave them."""

    vectors: tuple[Sequence[float], ...]
    tokens: int = 0  # that the server reports; 0: none


class EmbeddingModel(Protocol):
    """A way to ask an embedding model once."""

    async def embed_texts(self, model: str, texts: Sequence[str]) -> Embedded:
        """Return a vector for each text. Raise ModelBusy (worth another try), PromptTooLong or
        ModelError. Their texts never quote a text."""


class EmbeddingModels:
    """All embedding models. A model costs nothing until its first call."""

    def __init__(self, litellm: LiteLLM | None = None) -> None:
        self._litellm = litellm or LiteLLM()
        self._local = LocalModels()

    async def embed_texts(self, model: str, texts: Sequence[str]) -> Embedded:
        if model.startswith(LOCAL_PREFIX):
            return Embedded(await self._local.embed_texts(model.removeprefix(LOCAL_PREFIX), texts))
        return Embedded(*await self._litellm.embed_texts(model, texts))

    async def warm_up(self, models: Sequence[str]) -> None:
        """Load what the first query would wait for: a local model, or litellm. No server is asked."""
        for model in models:
            if model.startswith(LOCAL_PREFIX):
                await self.embed_texts(model, ["warm"])
            else:
                await self._litellm.warm_up()

    def close(self) -> None:
        """End the threads of local models. litellm's own are its owner's."""
        self._local.close()


# ── models in files ───────────────────────────────────────────────────────────────────────────────


def list_missing_modules(modules: Sequence[str] | None = None) -> list[str]:
    """List the packages of the extra that are not installed, without importing any. None: all that
    a local model needs."""
    return [name for name in modules or MODULES if find_spec(name) is None]


def find_file_fault(path: str) -> str | None:
    """Return what is missing of a model's files, or None."""
    model = Path(path)
    if not model.is_file():
        return f"there is no file {model}"
    if not model.with_name(TOKENIZER_FILE).is_file():
        return f"there is no {TOKENIZER_FILE} beside {model}"
    return None


class LocalModels:
    """Models in files, each loaded once, at its first text."""

    def __init__(self) -> None:
        self._models: dict[str, _LocalModel] = {}
        self._lock = threading.Lock()
        self._pool: ThreadPoolExecutor | None = None

    async def embed_texts(self, path: str, texts: Sequence[str]) -> tuple[list[float], ...]:
        """Return a vector for each text. Raise ModelError."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(THREADS, "embedding")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, self._embed, path, tuple(texts))

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None

    def _embed(self, path: str, texts: Sequence[str]) -> tuple[list[float], ...]:
        with self._lock:
            model = self._models.get(path)
            if model is None:
                model = self._models[path] = _LocalModel(path)
        return model.embed_texts(texts)


class _LocalModel:
    def __init__(self, path: str) -> None:
        if missing := list_missing_modules():
            raise ModelError(f"a local model needs {', '.join(missing)}", INSTALL_HINT)
        if fault := find_file_fault(path):
            raise ModelError(fault, "check retrieval.embedding_model")
        self._numpy = import_module("numpy")
        runtime = import_module("onnxruntime")
        try:
            options = runtime.SessionOptions()
            options.intra_op_num_threads = 1
            options.log_severity_level = 4  # fatal: its other messages go to stderr
            self._session: Any = runtime.InferenceSession(
                path, options, providers=["CPUExecutionProvider"]
            )
            tokenizer = import_module("tokenizers").Tokenizer.from_file(
                str(Path(path).with_name(TOKENIZER_FILE))
            )
        except Exception as exc:  # of two libraries with errors of their own
            raise ModelError(
                f"the model cannot be loaded ({type(exc).__name__})",
                "check the file and its tokenizer.json",
            ) from None
        if tokenizer.truncation is None:
            tokenizer.enable_truncation(MAX_TOKENS)
        tokenizer.enable_padding(**_keep_padding(tokenizer.padding))
        self._tokenizer: Any = tokenizer
        self._inputs = frozenset(each.name for each in self._session.get_inputs())

    def embed_texts(self, texts: Sequence[str]) -> tuple[list[float], ...]:
        try:
            return tuple(self._run(texts).tolist())
        except Exception as exc:  # of two libraries with errors of their own
            # from None: the exception's text may quote a text
            raise ModelError(f"the model failed ({type(exc).__name__})") from None

    def _run(self, texts: Sequence[str]) -> Any:
        numpy = self._numpy
        encoded = self._tokenizer.encode_batch(list(texts))
        given = {
            "input_ids": [each.ids for each in encoded],
            "attention_mask": [each.attention_mask for each in encoded],
            "token_type_ids": [each.type_ids for each in encoded],
        }
        arrays = {name: numpy.array(value, numpy.int64) for name, value in given.items()}
        output = self._session.run(
            None, {name: array for name, array in arrays.items() if name in self._inputs}
        )[0]
        if output.ndim == 2:  # one vector for each text
            return output
        mask = arrays["attention_mask"][..., None].astype(output.dtype)
        return (output * mask).sum(axis=1) / numpy.maximum(mask.sum(axis=1), 1)


def _keep_padding(padding: dict[str, Any] | None) -> dict[str, Any]:
    """Return the tokenizer's own padding, but only to the longest text of a batch."""
    kept = (
        {name: padding[name] for name in ("pad_id", "pad_type_id", "pad_token")} if padding else {}
    )
    return {"direction": "right", **kept}
