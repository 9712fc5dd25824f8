// What people change about a thread. Each action says first what it will do.
import { askThread } from "../api.js";
import { Dialog } from "../parts/basics.js";
import { ExportButton } from "../parts/export.js";
import { ForgetDialog } from "../parts/forget.js";
import { Buttons, useChange } from "./change.js";
import { Thresholds } from "./thresholds.js";
import { MemoryWork } from "./work.js";
import { html, useState } from "../view.js";

export function ThreadActions({ thread, status, changed }) {
  const [shown, setShown] = useState(null);
  const close = () => setShown(null);
  const done = () => {
    close();
    changed();
  };
  const dialogs = {
    rename: html`<${Rename} thread=${thread} status=${status} done=${done} close=${close} />`,
    undo: html`<${Undo} thread=${thread} status=${status} done=${done} close=${close}
      refresh=${changed} />`,
    thresholds: html`<${Thresholds} thread=${thread} status=${status} done=${done} close=${close}
      refresh=${changed} />`,
    work: html`<${MemoryWork} thread=${thread} done=${done} close=${close} />`,
    forget: html`<${ForgetDialog} title="Forget this thread" name=${thread.thread} close=${close}
      forget=${() => askThread("DELETE", thread)}>
      Its messages and all notes about it are removed, also from a log that it shares with other
      threads. This cannot be undone. Backups are not touched.<//>`,
  };
  return html`
    <button onClick=${() => setShown("work")}>Work now</button>
    <button onClick=${() => setShown("rename")}>Rename</button>
    <button onClick=${() => setShown("thresholds")}>Thresholds</button>
    ${status.generation > 0 && html`<button onClick=${() => setShown("undo")}>Undo</button>`}
    <${ExportButton} name=${thread.thread}
      query=${{ tenant: thread.tenant, resource: thread.resource, thread: thread.thread }} />
    <button class="danger" onClick=${() => setShown("forget")}>Forget</button>
    ${dialogs[shown]}`;
}

function Rename({ thread, status, done, close }) {
  const change = useChange(
    (_version, title) => askThread("PATCH", thread, "", { body: { title } }),
    done,
  );
  const submit = (event) => {
    event.preventDefault();
    change.send(event.currentTarget.elements.title.value.trim() || null);
  };
  return html`<${Dialog} title="Rename this thread" close=${close}>
    <form onSubmit=${submit}>
      <p>Your title stays. Leave it empty, and memory finds titles itself again.</p>
      <label class="field"><span>Title</span>
        <input name="title" dir="auto" defaultValue=${status.title ?? ""} /></label>
      <${Buttons} name="Save" change=${change} close=${close} />
    </form>
  <//>`;
}

function Undo({ thread, status, done, close, refresh }) {
  const change = useChange(
    (version) => askThread("POST", thread, "/undo", { body: {}, version }),
    done,
    { version: status.version, refresh },
  );
  const submit = (event) => {
    event.preventDefault();
    change.send();
  };
  return html`<${Dialog} title="Take back the newest change" close=${close}>
    <form onSubmit=${submit}>
      <p>The newest edit, withdrawal or condensing is taken back: the notes before it stand again.
        The beginning of the next prompt changes once.</p>
      <${Buttons} name="Undo" change=${change} close=${close} />
    </form>
  <//>`;
}
