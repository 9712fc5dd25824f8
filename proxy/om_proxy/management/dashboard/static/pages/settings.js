// The settings in force, for any model and resource.
import { useAnswer } from "../data.js";
import { Empty, Name, Notice, Spinner, Stale } from "../parts/basics.js";
import { PageHead } from "../parts/shell.js";
import { html, useState } from "../view.js";

export function SettingsPage() {
  const [asked, setAsked] = useState({ model: "", resource: "" });
  const [words, setWords] = useState("");
  const query = { model: asked.model || null, resource: asked.resource || null };
  const answer = useAnswer("/config", query);
  const submit = (event) => {
    event.preventDefault();
    const { model, resource } = event.currentTarget.elements;
    setAsked({ model: model.value.trim(), resource: resource.value.trim() });
  };
  return html`<${PageHead} title="Settings" about="What is in force, and where it was set. Settings
    change in the configuration file; the server reads it again by itself. All of them: docs/reference/settings.md." />
    <form class="card filters" onSubmit=${submit}>
      <label class="field"><span>Model</span>
        <input name="model" placeholder="as your client names it" dir="auto" /></label>
      <label class="field"><span>Resource</span><input name="resource" placeholder="any" dir="auto" /></label>
      <button type="submit">Show</button>
      <label class="field"><span>Find a setting</span>
        <input type="search" value=${words} onInput=${(event) => setWords(event.currentTarget.value)} /></label>
    </form>
    <${Stale} answer=${answer} />
    ${!answer.data && !answer.error && html`<${Spinner} />`}
    ${answer.data && html`<${Config} config=${answer.data} words=${words} />`}`;
}

function Config({ config, words }) {
  const sought = words.trim().toLowerCase();
  const shown = config.items.filter((line) => `${line.name} ${line.words}`.toLowerCase().includes(sought));
  const sections = groupBySection(shown);
  return html`
    ${config.warnings.map((warning) => html`<${Notice} kind="warn">${warning}<//>`)}
    ${!config.is_complete && html`<${Notice}>With the admin token you also see where each setting was
      set, the servers, and warnings.<//>`}
    ${shown.length === 0 && html`<${Empty} title="No such setting"><p>Try a part of its name, or another word.</p><//>`}
    ${[...sections].map(
      ([section, lines]) => html`<section class="card" aria-label=${section}>
        <h2>${section}</h2><${SettingTable} lines=${lines} section=${section} />
      </section>`,
    )}
    ${config.store && html`<${StorePromises} store=${config.store} />`}
    <p class="muted small">om-proxy ${config.program_version}</p>`;
}

function StorePromises({ store }) {
  return html`<section class="card" aria-label="What the store promises">
    <h2>What the store promises</h2>
    <ul>${store.promises.map((sentence) => html`<li>${sentence}</li>`)}</ul>
    <p class="muted small">${store.kind}, schema ${store.schema_version}</p>
  </section>`;
}

function groupBySection(lines) {
  const sections = new Map();
  for (const line of lines) {
    const section = line.name.split(".")[0];
    if (!sections.has(section)) sections.set(section, []);
    sections.get(section).push(line);
  }
  return sections;
}

// A long name goes on in the next line behind an underscore or a dot.
function breakName(name) {
  return name.split(/(?<=[_.])/).map((part) => html`${part}<wbr />`);
}

export function SettingTable({ lines, section }) {
  const hasOrigins = lines.some(({ origin }) => origin);
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${`Settings of ${section}`}>
    <table class="settings stacked" role="table">
      <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Setting</th>
        <th scope="col" role="columnheader">Value</th>
        ${hasOrigins && html`<th scope="col" role="columnheader">Set in</th>`}</tr></thead>
      <tbody role="rowgroup">${lines.map(
        ({ name, value, origin, words }) => html`<tr role="row" class=${origin && origin !== "default" ? "own" : ""}>
          <th scope="row" role="rowheader"><code>${breakName(name.slice(section.length + 1) || name)}</code>
            ${words && html`<p class="muted small">${words}</p>`}</th>
          <td role="cell" data-column="Value"><code><${Name} text=${value} /></code></td>
          ${hasOrigins && html`<td role="cell" data-column="Set in" class="muted">${origin && html`<${Name} text=${origin} />`}</td>`}</tr>`,
      )}</tbody>
    </table>
  </div>`;
}
