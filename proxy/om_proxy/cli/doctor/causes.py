"""Explain the cause of a thread's last failure in plain words, with a remedy."""

from __future__ import annotations

CAUSES_BY_CODE = {  # the code of an error in proxy/om_proxy/common/errors.py
    "om_broken_answer": "the connection to the memory model ended in the middle of its answer",
    "om_cut_off": "the memory model's answer was cut off; raise model_settings.max_output_tokens, or choose another memory.model",
    "om_model": "the memory model cannot be called",
    "om_model_busy": "the memory model was busy or could not be reached",
    "om_model_timeout": "the memory model took longer than background.call_timeout; choose a faster model, or raise the timeout",
    "om_oversized": "the memory model's notes were longer than their source; choose another memory.model",
    "om_prompt_too_long": "the messages are too long for the memory model; choose one with a larger window",
    "om_unusable": "the memory model's answer held no notes (empty, prose, a refusal, a loop); choose another memory.model",
}
WORK_NAMES = {"observe": "observing", "reflect": "condensing notes"}
UNKNOWN_CAUSE = "its cause was not recorded"


def explain_cause(stored: str) -> str:
    """Explain a stored cause (`Failures.cause`), such as
    `observe om_model 401: check memory.api_key`."""
    head, _, advice = stored.partition(": ")
    work, _, code_and_status = head.partition(" ")
    code, _, status = code_and_status.partition(" ")
    if code not in CAUSES_BY_CODE:
        return UNKNOWN_CAUSE
    cause = f"the memory model's server answered {status}" if status else CAUSES_BY_CODE[code]
    return f"{WORK_NAMES.get(work, work)} failed: {cause}{f'; {advice}' if advice else ''}"
