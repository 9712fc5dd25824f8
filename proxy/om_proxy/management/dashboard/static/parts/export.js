// Save everything stored of a thread or a resource as a file: one JSON record a line.
import { ApiError, ask } from "../api.js";
import { Dialog, Notice } from "./basics.js";
import { html, useState } from "../view.js";

const END_MARK = '{"om":"end"'; // how the last line begins; without it a part is missing
const MAX_NAME_CHARS = 80;
const BROKEN = "A part is missing: the store failed before the end. Export again.";

// `query`: what to export, as in `GET /export`.
export function ExportButton({ name, query }) {
  const [state, setState] = useState({ isBusy: false, trouble: null });
  const save = async () => {
    setState({ isBusy: true, trouble: null });
    try {
      const content = await (await ask("GET", "/export", { query })).text();
      saveFile(content, `${cleanName(name)}.om.jsonl`);
      const isWhole = content.slice(content.lastIndexOf("\n", content.length - 2) + 1).startsWith(END_MARK);
      setState({ isBusy: false, trouble: isWhole ? null : BROKEN });
    } catch (error) {
      setState({ isBusy: false, trouble: error instanceof ApiError ? error.message : BROKEN });
    }
  };
  return html`<button disabled=${state.isBusy} onClick=${save}>${state.isBusy ? "Exporting…" : "Export"}</button>
    ${state.trouble && html`<${Dialog} title="The export is not whole" close=${() => setState({ isBusy: false, trouble: null })}>
      <${Notice} kind="bad">${state.trouble}<//>
      <div class="row end"><button onClick=${() => setState({ isBusy: false, trouble: null })}>Close</button></div><//>`}`;
}

// A file's name has letters, digits and a few marks: others mean something to some system.
function cleanName(name) {
  return name.replace(/[^\p{L}\p{N}._-]+/gu, "-").replace(/^\.+/, "").slice(0, MAX_NAME_CHARS) || "export";
}

function saveFile(content, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([content], { type: "application/x-ndjson" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000); // once the browser has read it
}
