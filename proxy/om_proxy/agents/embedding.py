"""Ask a model for vectors of texts: one of litellm's names, or `local:` and the path of a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from om_proxy.agents.local_embedding import LocalModels
from om_proxy.agents.model_access.litellm_adapter import LiteLLM

LOCAL_PREFIX = "local:"


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
