// The thread's own thresholds, beside those that the configuration says.
import { askThread, threadPath, threadQuery } from "../api.js";
import { useAnswer } from "../data.js";
import { Dialog, Spinner, Stale } from "../parts/basics.js";
import { BARS } from "../parts/threads.js";
import { Buttons, useChange } from "./change.js";
import { html } from "../view.js";

// setting → what it counts, in words
const FIELDS = {
  "observation.message_tokens": `${BARS.messages}: at most, in tokens`,
  "reflection.observation_tokens": `${BARS.notes}: at most, in tokens`,
};

export function Thresholds({ thread, status, done, close, refresh }) {
  const answer = useAnswer(threadPath(thread, "/settings"), threadQuery(thread));
  const change = useChange(
    (version, body) => askThread("PATCH", thread, "/settings", { body, version }),
    done,
    { version: status.version, refresh },
  );
  const submit = (event) => {
    event.preventDefault();
    const body = {};
    for (const name of Object.keys(FIELDS)) {
      const [section, field] = name.split(".");
      const text = event.currentTarget.elements[name].value.trim();
      (body[section] ??= {})[field] = text === "" ? null : Number(text);
    }
    change.send(body);
  };
  const inForce = new Map((answer.data?.items ?? []).map((line) => [line.name, line]));
  return html`<${Dialog} title="Thresholds of this thread" close=${close}>
    <form onSubmit=${submit}>
      <p>How full the two bars may become. Then notes take the place of the oldest messages, or old notes
        are condensed. An empty field takes what the configuration says.</p>
      <${Stale} answer=${answer} />
      ${!answer.data && !answer.error && html`<${Spinner} />`}
      ${answer.data &&
      Object.entries(FIELDS).map(([name, words]) => html`<label class="field"><span>${words}</span>
        <input name=${name} type="number" min="1" step="any" inputmode="numeric"
          placeholder=${inForce.get(`memory.${name}`)?.value}
          defaultValue=${ownValue(status.settings, name)} /></label>`)}
      <${Buttons} name="Save" change=${change} isReady=${answer.data !== null} close=${close} />
    </form>
  <//>`;
}

function ownValue(settings, name) {
  const [section, field] = name.split(".");
  return settings[section]?.[field] ?? "";
}
