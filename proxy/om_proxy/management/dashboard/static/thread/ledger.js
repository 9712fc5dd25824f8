// What a thread cost: the prompts, what they would have been without memory, and memory's own calls.
import { countOf, formatCount, formatMoney, formatShare, formatSigned } from "../format.js";
import { hasCosts, readTokens } from "../ledger.js";
import { Notice } from "../parts/basics.js";
import { html } from "../view.js";

export function ThreadLedger({ ledger, scope }) {
  if (ledger.turns + ledger.memory_calls === 0) return null;
  const { without, sent, memory, net: netTokens } = readTokens(ledger);
  const tokens = { baseline: without, cost: sent, memory_cost: memory, net: netTokens };
  const isPriced = hasCosts(ledger);
  const costs = isPriced ? addComparisons(ledger.saving, ledger.versus_whole_history) : null;
  return html`<details class="card thread-ledger">
    <summary><span>What it cost</span><${Headline} tokens=${tokens} costs=${costs} /></summary>
    <div class="scroll" tabindex="0" role="group" aria-label="What it cost"><table>
      <thead><tr><th scope="col"><span class="unseen">What</span></th><th scope="col" class="end">Tokens</th>
        ${costs && html`<th scope="col" class="end">Cost</th>`}</tr></thead>
      <tbody>
        <${Row} name="Without memory" about="the prompts as they would have been" of="baseline" tokens=${tokens} costs=${costs} />
        <${Row} name="Paid" about=${`for ${countOf(ledger.turns, "turn")}, look-ups included`} of="cost" sign="−" tokens=${tokens} costs=${costs} />
        <${Row} name="Memory's own calls" about=${countOf(ledger.memory_calls, "call")} of="memory_cost" sign="−" tokens=${tokens} costs=${costs} />
        <${Row} name=${(costs ?? tokens).net < 0 ? "Lost" : "Saved"} of="net" tokens=${tokens} costs=${costs} isSum />
      </tbody></table></div>
    <${Remarks} ledger=${ledger} isPriced=${isPriced} scope=${scope} />
  </details>`;
}

function addComparisons(one, other) {
  return Object.fromEntries(Object.keys(one).map((name) => [name, one[name] + other[name]]));
}

function Headline({ tokens, costs }) {
  const net = (costs ?? tokens).net;
  if (net === 0) return html`<span class="muted">as much as without memory</span>`;
  const words = costs ? formatMoney(Math.abs(net)) : `${formatCount(Math.abs(net))} tokens`;
  const base = (costs ?? tokens).baseline;
  return html`<span class=${`number ${net < 0 ? "loss" : "gain"}`}>${words} ${net < 0 ? "more" : "less"} than without memory
    ${base > 0 && ` (${formatShare(Math.abs(net) / base)})`}</span>`;
}

function Row({ name, about, of, sign = "", tokens, costs, isSum = false }) {
  const mark = sign && html`<span aria-hidden="true">${sign}</span>`;
  return html`<tr class=${isSum ? "sum-row" : ""}>
    <th scope="row">${name} ${about && html`<span class="muted small">${about}</span>`}</th>
    <td class="end number">${mark}${formatSigned(tokens[of])}</td>
    ${costs && html`<td class="end number">${mark}${formatMoney(costs[of])}</td>`}</tr>`;
}

function Remarks({ ledger, isPriced, scope }) {
  const calls = ledger.turns + ledger.memory_calls;
  return html`${ledger.estimated > 0 && html`<p class="hint"><strong>Estimated:</strong> the model server
      reported no tokens for ${formatCount(ledger.estimated)} of ${countOf(calls, "call")}; they are counted by the proxy.</p>`}
    ${isPriced && html`<p class="hint">Costs are at list prices.</p>`}
    ${isPriced && !ledger.priced && html`<p class="hint">Of some of its models no list price is known: their
      tokens count, their costs do not.</p>`}
    ${!isPriced && html`<p class="hint">No list price of its models is known, so only tokens are shown.</p>`}
    ${ledger.versus_whole_history.baseline > 0 && html`<${Notice}>Its client sends only its newest messages.
      “Without memory” is then the whole conversation, which the client never paid for.<//>`}
    ${scope === "resource" && html`<p class="hint">It shares its notes with other threads of its resource. What
      condensing them cost stands with the resource.</p>`}`;
}
