// What people change about notes: words, withdrawals, dropped chunks. The dialogs stand outside the
// cards: a card goes when its notes change, and what somebody has written must not go with it.
import { askThread } from "../api.js";
import { Dialog } from "../parts/basics.js";
import { Buttons, useChange } from "./change.js";
import { html } from "../view.js";

const MAX_TEXT_CHARS = 20_000;

function pathOf(entry, isChunk) {
  return `/${isChunk ? "chunks" : "observations"}/${entry.id}`;
}

// `ask(kind, entry, isChunk)` opens a dialog: "edit" or "remove".
export function EntryActions({ entry, isChunk, ask }) {
  return html`
    <button class="quiet" onClick=${() => ask("edit", entry, isChunk)}>Edit</button>
    <button class="quiet" onClick=${() => ask("remove", entry, isChunk)}>
      ${isChunk ? "Drop" : "Withdraw"}</button>`;
}

// `shown`: {kind, entry, isChunk, version}.
export function NoteDialog({ shown, ...rest }) {
  const { kind, ...about } = shown;
  const view = kind === "edit" ? EditEntry : about.isChunk ? DropChunk : Withdraw;
  return html`<${view} ...${about} ...${rest} />`;
}

function EditEntry({ thread, entry, isChunk, ...rest }) {
  return html`<${WordsDialog} title="Edit these notes" name="Save" text=${entry.text}
    about=${`The model reads your words from the next request on. They stand for the same messages.${isChunk ? "" : " Undo brings the old words back."}`}
    hint="Keep one line per note; 🔴 important, 🟡 maybe useful, 🟢 background, ✅ done."
    work=${(version, text) => askThread("PATCH", thread, pathOf(entry, isChunk), { body: { text }, version })}
    ...${rest} />`;
}

// A dialog for the words of a note. `work` sends them.
export function WordsDialog({ title, about, hint, name, text, work, version, refresh, done, close }) {
  const change = useChange(work, done, { version, refresh });
  const submit = (event) => {
    event.preventDefault();
    change.send(event.currentTarget.elements.text.value);
  };
  return html`<${Dialog} title=${title} close=${close}>
    <form onSubmit=${submit}>
      <p>${about}</p>
      <label class="field"><span>Words</span>
        <textarea name="text" dir="auto" rows="8" required maxlength=${MAX_TEXT_CHARS}
          defaultValue=${text}></textarea></label>
      ${hint && html`<p class="muted small">${hint}</p>`}
      <${Buttons} name=${name} change=${change} close=${close} />
    </form>
  <//>`;
}

function Withdraw({ thread, entry, version, refresh, done, close }) {
  const change = useChange(
    (seen, forget) =>
      askThread("DELETE", thread, pathOf(entry, false), { query: { forget }, version: seen }),
    done,
    { version, refresh },
  );
  const submit = (event) => {
    event.preventDefault();
    change.send(event.currentTarget.elements.forget.checked || null);
  };
  return html`<${Dialog} title="Withdraw these notes" close=${close}>
    <form onSubmit=${submit}>
      <p>Their words leave the prompt. Their messages do not come back: the model sees neither. Undo
        brings the words back.</p>
      <label class="tick"><input type="checkbox" name="forget" />
        <span>Erase the words from earlier states too. This cannot be undone.</span></label>
      <${Buttons} name="Withdraw" kind="danger" change=${change} close=${close} />
    </form>
  <//>`;
}

function DropChunk({ thread, entry, version, refresh, done, close }) {
  const change = useChange(
    (seen) => askThread("DELETE", thread, pathOf(entry, true), { version: seen }),
    done,
    { version, refresh },
  );
  const submit = (event) => {
    event.preventDefault();
    change.send();
  };
  return html`<${Dialog} title="Drop these notes" close=${close}>
    <form onSubmit=${submit}>
      <p>These ready notes and those behind them are removed. Their messages stay in the prompt word
        for word, until notes are written anew.</p>
      <${Buttons} name="Drop" kind="danger" change=${change} close=${close} />
    </form>
  <//>`;
}
