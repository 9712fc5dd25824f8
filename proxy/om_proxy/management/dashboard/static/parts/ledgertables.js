// The saving by resource and by model.
import { useAnswer } from "../data.js";
import { formatCount, formatMoney, formatShare, nameOfTenant } from "../format.js";
import { dayStart, hasCosts, promptTokens, readTokens } from "../ledger.js";
import { linkTo } from "../route.js";
import { Name, Stale } from "./basics.js";
import { html } from "../view.js";

const MAX_LINES = 10;
const MAX_NAME_CHARS = 40;

export function LedgerTables({ range }) {
  const [from, to] = [range.from, range.to].map((day) => (day ? dayStart(day) : null));
  return html`<div class="pair">
    <${LedgerTable} by="resource" title="By resource" from=${from} to=${to} nameOf=${nameOfResource} />
    <${LedgerTable} by="model" title="By model" from=${from} to=${to}
      nameOf=${({ model }) => (model ? html`<${Name} text=${model} />` : "not named")} />
  </div>`;
}

// Two keys may have a resource of one name each.
function nameOfResource({ tenant, resource }, lines) {
  if (!resource) return "requests without memory";
  const hasTenants = lines.some((line) => line.tenant !== tenant && line.resource);
  return html`<a href=${linkTo("resource", tenant, resource)}><${Name} text=${resource} length=${MAX_NAME_CHARS} /></a>
    ${hasTenants && html` <span class="muted small">key <${Name} text=${nameOfTenant(tenant)} length=${24} /></span>`}`;
}

function LedgerTable({ by, title, from, to, nameOf }) {
  const answer = useAnswer("/stats", { by, from, to, limit: 1_000 });
  const lines = [...(answer.data?.items ?? [])].sort((a, b) => weigh(b) - weigh(a));
  const isPriced = lines.some(({ ledger }) => hasCosts(ledger));
  return html`<section class="card" aria-label=${title}><h2>${title}</h2>
    <${Stale} answer=${answer} />
    <div class="scroll" tabindex="0" role="group" aria-label=${title}><table class="stacked" role="table">
      <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">${COLUMNS[by]}</th>
        ${NUMBERS.slice(0, isPriced ? 4 : 3).map((name) => html`<th scope="col" role="columnheader" class="end">${name}</th>`)}</tr></thead>
      <tbody role="rowgroup">${lines.slice(0, MAX_LINES).map((line) => html`<${Row} line=${line} name=${nameOf(line, lines)} isPriced=${isPriced} />`)}</tbody>
    </table></div>
    ${by === "model" && lines.some(({ ledger }) => ledger.memory_calls > 0) && html`<p class="hint">Memory's own calls stand with
      the model that made them. By resource, they are taken off what was saved.</p>`}
    ${lines.length > MAX_LINES && html`<p class="hint">And ${formatCount(lines.length - MAX_LINES)} more:${" "}
      <code>om-proxy stats --by ${by}</code> lists them all.</p>`}
  </section>`;
}

const NUMBERS = ["Calls", "Tokens sent", "Tokens saved", "Cost saved"];
const COLUMNS = { resource: "Resource", model: "Model" };

// A memory model has calls, and no turns.
const countCalls = ({ ledger }) => ledger.turns + ledger.memory_calls;
const weigh = ({ ledger }) => readTokens(ledger).sent + promptTokens(ledger.memory_tokens);

// Of a model without a list price nothing is known; zero would be a claim.
const isPricedAtAll = (ledger) => hasCosts(ledger) || ledger.saving.memory_cost > 0;

function Row({ line, name, isPriced }) {
  const tokens = readTokens(line.ledger);
  return html`<tr role="row"><th scope="row" role="rowheader">${name}</th>
    <td role="cell" data-column="Calls" class="end number">${formatCount(countCalls(line))}</td>
    <td role="cell" data-column="Tokens sent" class="end number">${formatCount(weigh(line))}</td>
    <td role="cell" data-column="Tokens saved" class=${`end number ${tokens.without > 0 && tokens.net < 0 ? "loss" : ""}`}>${tokens.without > 0 ? formatShare(tokens.share) : ""}</td>
    ${isPriced && html`<td role="cell" data-column="Cost saved" class=${`end number ${line.ledger.saving.net < 0 ? "loss" : ""}`}>${isPricedAtAll(line.ledger) ? formatMoney(line.ledger.saving.net) : "–"}</td>`}</tr>`;
}
