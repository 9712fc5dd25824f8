// What goes upstream now, part by part: for a new message, or for a whole request of the client.
import { threadPath, threadQuery } from "../api.js";
import { useAnswer } from "../data.js";
import { Spinner, Stale } from "../parts/basics.js";
import { Prompt } from "./prompt.js";
import { RequestPreview } from "./request.js";
import { html, useState } from "../view.js";

const FIRST_TEXT = "Where were we?";
const WAYS = { text: "New message", request: "Whole request" };

export function ContextColumn({ thread, tick }) {
  const [way, setWay] = useState("text");
  return html`<div class="row" role="group" aria-label="What the client sends">
      ${Object.entries(WAYS).map(
        ([key, name]) => html`<button class="chip" aria-pressed=${key === way ? "true" : "false"}
          onClick=${() => setWay(key)}>${name}</button>`,
      )}
    </div>
    ${way === "text"
      ? html`<${TextPreview} thread=${thread} tick=${tick} />`
      : html`<${RequestPreview} thread=${thread} />`}`;
}

function TextPreview({ thread, tick }) {
  const [text, setText] = useState(FIRST_TEXT);
  const answer = useAnswer(threadPath(thread, "/context"), threadQuery(thread, { text }), { tick });
  const submit = (event) => {
    event.preventDefault();
    setText(event.currentTarget.elements.text.value || FIRST_TEXT);
  };
  return html`<form class="ask" onSubmit=${submit}>
      <label class="field"><span>If the user now writes</span>
        <input name="text" dir="auto" defaultValue=${text} /></label>
      <button type="submit">Show</button>
    </form>
    <${Stale} answer=${answer} />
    ${!answer.data && !answer.error && html`<${Spinner} />`}
    ${answer.data && html`<${Prompt} preview=${answer.data} />`}`;
}
