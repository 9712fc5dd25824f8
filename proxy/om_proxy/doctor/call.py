"""One tiny observer call, to see what the memory model makes of it."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from om_proxy.agents.credentials import find_key
from om_proxy.agents.direct import Direct
from om_proxy.agents.litellm_adapter import LiteLLM
from om_proxy.agents.llm import LLM, Answer, Prompt, Routed, Target
from om_proxy.agents.observer import Observed, Observer, ObserverTask
from om_proxy.agents.targets import choose_model, choose_targets
from om_proxy.doctor.upstreams import Finding
from om_proxy.errors import ModelBusy, ModelError, Unusable
from om_proxy.memory.model import EMPTY_CHAIN, Item, Message
from om_proxy.models import TokenCounter, find_abilities
from om_proxy.settings import Effective, Settings
from om_proxy.settings.validation_messages import redact_credentials
from om_proxy.upstream import AiohttpTransport

CALL_TIMEOUT_S = 60.0
MAX_SHOWN_CHARACTERS = 600  # of what came back
NEEDS_MODEL = (
    "the observer call needs a model: memory.model is inherit, so name the one that clients ask for, as in "
    "doctor --call --model gpt-4o-mini"
)
SAMPLE = (
    ("user", "We drive to Lisbon on May 3. The blue van may carry 75 kg on its roof."),
    ("assistant", "Noted: Lisbon on May 3, at most 75 kg on the roof of the blue van."),
)
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


@dataclass
class OneCall:
    """Asks the model once. Whoever asks again is given the same answer, or the same failure."""

    llm: LLM
    outcome: Answer | ModelError | None = None

    async def complete(self, target: Target, prompt: Prompt) -> Answer:
        if self.outcome is None:
            try:
                self.outcome = await self.llm.complete(target, prompt)
            except ModelError as exc:
                self.outcome = exc
        if isinstance(self.outcome, ModelError):
            raise self.outcome
        return self.outcome


async def try_observer(
    settings: Settings, effective: Effective, actor: str | None, environ: Mapping[str, str]
) -> list[Finding]:
    """Ask the first observer model to note two messages; what came back, usable or not."""
    if actor is None and choose_model(effective.observer_model, 0) == "inherit":
        return [Finding(False, NEEDS_MODEL)]
    transport, litellm = AiohttpTransport(), LiteLLM()
    asked = OneCall(Routed(Direct(transport), litellm))
    began = time.monotonic()
    try:
        target, *_ = _targets(settings, effective, actor, environ)
        async with asyncio.timeout(CALL_TIMEOUT_S):
            made = await _observe(asked, target, effective)
    except TimeoutError:
        return [Finding(False, f"the observer call got no answer within {CALL_TIMEOUT_S:.0f} s")]
    except Unusable as exc:
        back = asked.outcome.text if isinstance(asked.outcome, Answer) else ""
        return [Finding(False, f"the observer call: {exc}; this came back:\n{_printable(back)}")]
    except ModelError as exc:
        return [Finding(False, f"the observer call failed: {exc}")]
    finally:
        await transport.aclose()
        litellm.close()
    seconds = time.monotonic() - began
    size = f"{made.input_tokens} tokens in, {made.output_tokens} out, {seconds:.1f} s"
    return [
        Finding(
            True,
            f"the observer call to {_printable(made.model)} brought notes ({size}):\n{_printable(made.text)}",
        )
    ]


def _targets(
    settings: Settings, effective: Effective, actor: str | None, environ: Mapping[str, str]
) -> tuple[Target, ...]:
    """The models, the one that is asked first at the front."""
    memory = effective.memory
    return choose_targets(
        effective.observer_model,
        inherited=_inherited(settings, actor, environ),
        api_base=memory.api_base,
        api_key=memory.api_key.get_secret_value() if memory.api_key else None,
        input_tokens=0,
        environ=environ,
    )


def _inherited(settings: Settings, actor: str | None, environ: Mapping[str, str]) -> Target | None:
    """What a request for this model would bring, with the upstream's key or the one in its
    provider's variable."""
    upstream = settings.upstream_for(actor)
    if actor is None or upstream is None:
        return None
    key = (
        upstream.api_key.get_secret_value()
        if upstream.api_key
        else find_key(f"openai/{actor}", upstream.base_url, environ)
    )
    return Target(actor, "direct", upstream.base_url, api_key=key)


async def _observe(llm: LLM, target: Target, effective: Effective) -> Observed:
    observer = Observer(llm, tokens=TokenCounter().tokens, sleep=_no_wait, abilities=find_abilities)
    messages = tuple(_message(seq, role, text) for seq, (role, text) in enumerate(SAMPLE, 1))
    observation = effective.memory.observation
    task = ObserverTask(
        messages=messages, instruction=observation.instruction, variant=observation.prompt
    )
    try:
        return await observer.observe(task, [target], observation.model_settings)
    except ModelBusy as exc:
        raise ModelError(str(exc), "try again later, or see whether the server is up") from exc


async def _no_wait(_: float) -> None:
    """Stands for asyncio.sleep: nothing is asked twice here."""


def _message(seq: int, role: str, text: str) -> Message:
    raw = b'{"role":"%s","content":"%s"}' % (role.encode(), text.encode())
    return Message(seq, Item(raw, role, EMPTY_CHAIN), EMPTY_CHAIN, len(text) // 4, time.time())


def _printable(text: str) -> str:
    """Text from outside, for a terminal: without control characters and credentials, and not too
    much of it."""
    clean = redact_credentials(_UNPRINTABLE.sub("", text))
    return clean if len(clean) <= MAX_SHOWN_CHARACTERS else f"{clean[:MAX_SHOWN_CHARACTERS]}…"
