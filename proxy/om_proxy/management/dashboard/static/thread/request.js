// The client's own request beside what the model gets for it.
import { askThread } from "../api.js";
import { countOf, formatCount, formatShare } from "../format.js";
import { Notice } from "../parts/basics.js";
import { readPasted } from "./pasted.js";
import { Prompt } from "./prompt.js";
import { SideBySide } from "./sidebyside.js";
import { html, useState } from "../view.js";

const WITHOUT_MEMORY = {
  "side-request": `Memory takes this for a side request, such as one for a title: it repeats nothing of
    this thread, or offers no tools where the thread does.`,
  disabled: "Memory is switched off for this model.",
};

export function RequestPreview({ thread }) {
  const [state, setState] = useState({ isBusy: false, trouble: null, found: null });
  const submit = async (event) => {
    event.preventDefault();
    const { text, messages, trouble } = readPasted(event.currentTarget.elements.request.value);
    if (trouble) {
      setState({ isBusy: false, trouble, found: null });
      return;
    }
    setState((last) => ({ ...last, isBusy: true, trouble: null }));
    try {
      const preview = await askThread("POST", thread, "/context", { text });
      setState({ isBusy: false, trouble: null, found: { preview, messages } });
    } catch (error) {
      setState({ isBusy: false, trouble: error.message, found: null });
    }
  };
  return html`<form class="paste" onSubmit=${submit}>
      <label class="field"><span>What your client sends</span>
        <textarea name="request" rows="5" dir="auto" spellcheck=${false} aria-describedby="paste-hint"
          placeholder=${'{"model": "…", "messages": […]}'}></textarea></label>
      <p class="hint" id="paste-hint">Paste the body of a request to <code>/v1/chat/completions</code>,
        or its list of messages. It is compared here: nothing is stored, and no model is called.</p>
      <div class="row"><button class="primary" type="submit" disabled=${state.isBusy}>
        ${state.isBusy ? "Comparing…" : "Compare"}</button></div>
    </form>
    ${state.trouble && html`<${Notice} kind="bad">${state.trouble}<//>`}
    ${state.found && html`<${Comparison} ...${state.found} />`}`;
}

function Comparison({ preview, messages }) {
  const [isOpen, setOpen] = useState(false);
  const received = preview.tokens_received;
  return html`${preview.status === "off" &&
    html`<${Notice}>${WITHOUT_MEMORY[preview.reason] ?? `Memory leaves this request alone (${preview.reason}).`}
      ${" "}It goes to the model as it is.<//>`}
    <div class="card versus">
      <${Side} name="Your client sends" count=${messages.length} tokens=${received} />
      <${Side} name="The model gets" count=${preview.messages.length} tokens=${preview.tokens_sent} base=${received} />
      <button onClick=${() => setOpen(true)}>Compare message by message</button>
    </div>
    ${preview.shadow && html`<${Notice}>Memory is in shadow mode: it changes nothing yet. Live, it would send
      ${" "}${formatCount(preview.shadow.tokens)} tokens, without ${countOf(preview.shadow.dropped.length, "message")}
      ${" "}of yours.<//>`}
    ${preview.parts.length > 0 && html`<${Prompt} preview=${preview} />`}
    ${isOpen && html`<${SideBySide} received=${messages} preview=${preview} close=${() => setOpen(false)} />`}`;
}

function Side({ name, count, tokens, base = null }) {
  const share = base && tokens !== null ? ` (${formatShare(tokens / base)})` : "";
  return html`<div><span class="muted small">${name}</span>
    <strong class="number">${countOf(count, "message")}</strong>
    ${tokens !== null && html`<span class="number small">${formatCount(tokens)} tokens${share}</span>`}</div>`;
}
