// Memory work that a person asks for before its threshold is reached.
import { askThread } from "../api.js";
import { Dialog } from "../parts/basics.js";
import { Buttons, useChange } from "./change.js";
import { html, useState } from "../view.js";

const WAIT_S = 30;
const MAX_INSTRUCTION_CHARS = 4_000;

// name → its label, what it will do, its path and its body
const WORK = {
  observe: [
    "Write notes of the messages so far",
    "A memory model reads the messages that no note covers. Its notes stand ready, and reach the prompt later.",
    "/observe",
    () => ({ wait: WAIT_S }),
  ],
  activate: [
    "Put the ready notes into the prompt",
    "The notes that stand ready take their messages' place in the next prompt. Its beginning changes once.",
    "/activate",
    () => ({}),
  ],
  reflect: [
    "Condense the notes",
    "A memory model writes all notes anew, shorter. The result is kept only if it is smaller; undo brings the old notes back.",
    "/reflect",
    (form) => ({ wait: WAIT_S, instruction: form.elements.instruction.value.trim() || null }),
  ],
};

export function MemoryWork({ thread, done, close }) {
  const [chosen, setChosen] = useState("observe");
  const change = useChange(
    (_version, path, body) => askThread("POST", thread, path, { body }),
    done,
  );
  const submit = (event) => {
    event.preventDefault();
    const [, , path, readBody] = WORK[chosen];
    change.send(path, readBody(event.currentTarget));
  };
  return html`<${Dialog} title="Let memory work now" close=${close}>
    <form onSubmit=${submit}>
      <div class="choices" role="radiogroup" aria-label="What to do">
        ${Object.entries(WORK).map(
          ([name, [label, about]]) => html`<label class="choice">
            <input type="radio" name="work" value=${name} checked=${name === chosen}
              onChange=${() => setChosen(name)} />
            <span><strong>${label}</strong><span class="hint">${about}</span></span></label>`,
        )}
      </div>
      ${chosen === "reflect" &&
      html`<label class="field"><span>What matters, if you want to say so</span>
        <input name="instruction" dir="auto" maxlength=${MAX_INSTRUCTION_CHARS} /></label>`}
      <${Buttons} name="Begin" change=${change} close=${close} />
    </form>
  <//>`;
}
