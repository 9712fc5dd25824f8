// Why memory work failed, and what to do about it, from what the API says of a thread.

// code → [what happened, what to do]. The API's own advice, where it has one, stands instead.
const CAUSES = {
  om_broken_answer: ["the connection broke off in the middle of the memory model's answer", "It is tried again by itself. If it goes on, look at the network between the proxy and the model server."],
  om_cut_off: ["the memory model's answer was cut off", "Raise model_settings.max_output_tokens, or choose another memory.model."],
  om_model: ["the memory model cannot be called", "Look at memory.model and its credential; `om-proxy doctor --call` tries it."],
  om_model_busy: ["the memory model was busy or could not be reached", "It is tried again by itself. If it goes on, raise the limit of that account, or choose another memory.model."],
  om_model_timeout: ["the memory model took too long", "Choose a faster memory.model, or raise background.call_timeout."],
  om_oversized: ["the notes were longer than what they were made from", "Choose another memory.model: this one does not condense."],
  om_prompt_too_long: ["the messages are too long for the memory model", "Choose a memory.model with a larger window."],
  om_unusable: ["the memory model's answer held no notes", "Choose another memory.model: this one does not follow the form of notes."],
};
const WORK = { observe: "Writing notes failed", reflect: "Condensing notes failed" };
const UNKNOWN = ["the cause was not recorded", "`om-proxy doctor` looks for it."];

// Return {title, advice} of a cause such as `observe om_model 401: check memory.api_key`.
export function explainCause(cause) {
  const [, head, own] = /^([^:]*)(?:: (.*))?$/s.exec(cause ?? "");
  const [work, code, status] = head.split(" ");
  const [what, advice] = CAUSES[code] ?? UNKNOWN;
  const happened = status && CAUSES[code] ? `the memory model's server answered ${status}` : what;
  return {
    title: `${WORK[work] ?? "Memory work failed"}: ${happened}`,
    advice: own ? `${own[0].toUpperCase()}${own.slice(1)}.` : advice,
  };
}

// What an error of this code means, in a few words.
export function nameCode(code) {
  return (CAUSES[code] ?? UNKNOWN)[0];
}

// Put threads with the same cause together, the most threads first: [{cause, threads}].
export function groupByCause(threads) {
  const groups = new Map();
  for (const thread of threads) {
    const cause = thread.failure_cause ?? "";
    if (!groups.has(cause)) groups.set(cause, { cause, threads: [] });
    groups.get(cause).threads.push(thread);
  }
  return [...groups.values()].sort((a, b) => b.threads.length - a.threads.length);
}
