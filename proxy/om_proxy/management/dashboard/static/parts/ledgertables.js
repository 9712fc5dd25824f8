// The saving by resource and by model.
import { useAnswer } from "../data.js";
import { commonDigits, formatCount, formatMoney, formatShare } from "../format.js";
import { dayStart, hasCosts, promptTokens, readTokens } from "../ledger.js";
import { linkTo } from "../route.js";
import { Name, Stale } from "./basics.js";
import { html } from "../view.js";

const MAX_LINES = 20;
const MAX_NAME_CHARS = 60;

export function LedgerTables({ days, isAll }) {
  const from = isAll || days.length === 0 ? null : dayStart(days[0].day);
  return html`<div class="pair">
    <${LedgerTable} by="resource" title="By resource" from=${from} nameOf=${nameOfResource} />
    <${LedgerTable} by="model" title="By model" from=${from}
      nameOf=${({ model }) => (model ? html`<${Name} text=${model} />` : "not named")} />
  </div>`;
}

function nameOfResource({ tenant, resource }) {
  if (!resource) return "requests without memory";
  return html`<a href=${linkTo("resource", tenant, resource)}><${Name} text=${resource} length=${MAX_NAME_CHARS} /></a>`;
}

function LedgerTable({ by, title, from, nameOf }) {
  const answer = useAnswer("/stats", { by, from, limit: 1_000 });
  const lines = [...(answer.data?.items ?? [])].sort((a, b) => weigh(b) - weigh(a));
  const isPriced = lines.some(({ ledger }) => hasCosts(ledger));
  const digits = commonDigits(lines.map(({ ledger }) => ledger.saving.net));
  return html`<section class="card" aria-label=${title}><h2>${title}</h2>
    <${Stale} answer=${answer} />
    <div class="scroll" tabindex="0" role="group" aria-label=${title}><table>
      <thead><tr><th scope="col">${COLUMNS[by]}</th><th scope="col" class="end">Calls</th>
        <th scope="col" class="end">Tokens sent</th><th scope="col" class="end">Tokens saved</th>
        ${isPriced && html`<th scope="col" class="end">Cost saved</th>`}</tr></thead>
      <tbody>${lines.slice(0, MAX_LINES).map((line) => html`<${Row} line=${line} nameOf=${nameOf} isPriced=${isPriced} digits=${digits} />`)}</tbody>
    </table></div>
    ${lines.length > MAX_LINES && html`<p class="hint">And ${formatCount(lines.length - MAX_LINES)} more.</p>`}
  </section>`;
}

const COLUMNS = { resource: "Resource", model: "Model" };

// A memory model has calls, and no turns.
const countCalls = ({ ledger }) => ledger.turns + ledger.memory_calls;
const weigh = ({ ledger }) => readTokens(ledger).sent + promptTokens(ledger.memory_tokens);

// Of a model without a list price nothing is known; zero would be a claim.
const isPricedAtAll = (ledger) => hasCosts(ledger) || ledger.saving.memory_cost > 0;

function Row({ line, nameOf, isPriced, digits }) {
  const tokens = readTokens(line.ledger);
  return html`<tr><th scope="row">${nameOf(line)}</th>
    <td class="end number">${formatCount(countCalls(line))}</td>
    <td class="end number">${formatCount(weigh(line))}</td>
    <td class=${`end number ${tokens.without > 0 && tokens.net < 0 ? "loss" : ""}`}>${tokens.without > 0 ? formatShare(tokens.share) : ""}</td>
    ${isPriced && html`<td class=${`end number ${line.ledger.saving.net < 0 ? "loss" : ""}`}>${isPricedAtAll(line.ledger) ? formatMoney(line.ledger.saving.net, digits) : "–"}</td>`}</tr>`;
}
