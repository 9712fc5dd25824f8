"""The cause of a thread's last failure, in plain words with a remedy."""

from __future__ import annotations

CAUSES = {  # by the code of the error (proxy/om_proxy/errors.py)
    "om_broken_answer": "the connection to the memory model ended within its answer",
    "om_cut_off": "the memory model's answer was cut off; raise model_settings.max_output_tokens, or choose another memory.model",
    "om_model": "the memory model cannot be asked",
    "om_model_busy": "the memory model was busy or could not be reached",
    "om_model_timeout": "the memory model was not done within background.call_timeout; choose a faster one, or raise it",
    "om_oversized": "the memory model's notes were longer than what they are about; choose another memory.model",
    "om_prompt_too_long": "the messages are too long for the memory model; choose one with a larger window",
    "om_unusable": "the memory model's answer held no notes (empty, prose, a refusal, a loop); choose another memory.model",
}
WORK = {"observe": "observing", "reflect": "condensing notes"}
UNKNOWN_CAUSE = "its cause was not recorded"


def explain_cause(stored: str) -> str:
    """A stored cause (`Failures.cause`, as `observe om_model 401: check memory.api_key`) as a
    sentence."""
    head, _, advice = stored.partition(": ")
    work, _, rest = head.partition(" ")
    code, _, status = rest.partition(" ")
    if code not in CAUSES:
        return UNKNOWN_CAUSE
    cause = f"the memory model's server answered {status}" if status else CAUSES[code]
    return f"{WORK.get(work, work)} failed: {cause}{f'; {advice}' if advice else ''}"
