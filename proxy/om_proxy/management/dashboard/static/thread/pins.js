// Notes that people pinned: they stand before all others in every later prompt.
import { askThread } from "../api.js";
import { countOf } from "../format.js";
import { Badge, Dialog, Text, Time } from "../parts/basics.js";
import { Buttons, useChange } from "./change.js";
import { WordsDialog } from "./editing.js";
import { html, useState } from "../view.js";

const ABOUT = `It stands before all other notes from the next request on, is never condensed, and
  stays when the conversation goes back. Where threads share their notes, it is in all of them.`;

// `version`: of the thread, as the pins are read.
export function Pins({ thread, pins, version, changed }) {
  const [shown, setShown] = useState(null); // {kind: "add", "edit" or "remove", pin, version}
  // a new note is in nobody's way
  const show = (kind, pin) => setShown({ kind, pin, version: kind === "add" ? undefined : version });
  const close = () => setShown(null);
  const done = () => {
    close();
    changed();
  };
  return html`<section class="pins" aria-label="Pinned notes">
    <div class="row spread"><h3>Pinned notes</h3>
      <button class="quiet" onClick=${() => show("add")}>Pin a note</button></div>
    ${pins.length === 0 && html`<p class="muted small">What the model must never
      forget: your own words, in every later prompt.</p>`}
    ${pins.map((pin) => html`<${PinCard} key=${pin.id} pin=${pin} show=${show} />`)}
    ${shown && html`<${PinDialog} thread=${thread} shown=${shown} refresh=${changed} done=${done}
      close=${close} />`}
  </section>`;
}

function PinCard({ pin, show }) {
  return html`<article class="card entry pinned" aria-label="Pinned note">
    <header class="entry-head"><${Badge} kind="pinned">Pinned<//>
      <span class="muted small"><${Time} at=${pin.at} /></span>
      <span class="number small">${countOf(pin.tokens, "token")}</span></header>
    ${pin.text === null
      ? html`<p class="muted">Hidden: server.admin_reads is off.</p>`
      : html`<${Text} text=${pin.text} />`}
    <div class="row entry-actions">
      <button class="quiet" onClick=${() => show("edit", pin)}>Edit</button>
      <button class="quiet" onClick=${() => show("remove", pin)}>Remove</button>
    </div>
  </article>`;
}

function PinDialog({ thread, shown, ...rest }) {
  const { kind, pin, version } = shown;
  if (kind === "remove") {
    return html`<${RemovePin} thread=${thread} pin=${pin} version=${version} ...${rest} />`;
  }
  const [method, path] = kind === "add" ? ["POST", "/pins"] : ["PATCH", `/pins/${pin.id}`];
  return html`<${WordsDialog} title=${kind === "add" ? "Pin a note" : "Edit a pinned note"}
    about=${ABOUT} name=${kind === "add" ? "Pin" : "Save"} text=${pin?.text ?? ""} version=${version}
    work=${(seen, text) => askThread(method, thread, path, { body: { text }, version: seen })}
    ...${rest} />`;
}

function RemovePin({ thread, pin, version, refresh, done, close }) {
  const change = useChange(
    (seen) => askThread("DELETE", thread, `/pins/${pin.id}`, { version: seen }),
    done,
    { version, refresh },
  );
  const submit = (event) => {
    event.preventDefault();
    change.send();
  };
  return html`<${Dialog} title="Remove this pinned note" close=${close}>
    <form onSubmit=${submit}>
      <p>The model does not see it from the next request on.</p>
      <${Buttons} name="Remove" kind="danger" change=${change} close=${close} />
    </form>
  <//>`;
}
