// The saving and what it consists of.
import { formatCount, formatMoney, formatShare, formatShort } from "../format.js";
import { hasCosts, readTokens } from "../ledger.js";
import { Notice } from "./basics.js";
import { html } from "../view.js";

export function Savings({ ledger }) {
  const tokens = readTokens(ledger);
  return html`<section class="savings" aria-label="What memory saves">
    ${hasCosts(ledger) ? html`<${Money} ledger=${ledger} />` : html`<${Tokens} tokens=${tokens} />`}
    <dl class="tiles">
      <${Tile} name="Turns" value=${formatCount(ledger.turns)} about="requests and their look-ups" />
      <${Tile} name="Tokens a turn" value=${formatShort(tokens.sent / Math.max(1, ledger.turns))}
        about=${`instead of ${formatShort(tokens.without / Math.max(1, ledger.turns))}`} />
      <${Tile} name="From the prompt cache" value=${formatShare(tokens.cachedShare)} about="of the tokens sent" />
      <${Tile} name="Memory's own calls" value=${formatCount(ledger.memory_calls)}
        about=${`${formatShort(tokens.memory)} tokens`} />
    </dl>
    <${Remarks} ledger=${ledger} />
  </section>`;
}

function Tile({ name, value, about }) {
  return html`<div class="card tile"><dt>${name}</dt><dd><span class="figure">${value}</span>
    <span class="muted small">${about}</span></dd></div>`;
}

function Money({ ledger }) {
  const { saving } = ledger;
  const isLoss = saving.net < 0;
  const isMemoryPriced = ledger.priced || saving.memory_cost > 0; // a dash: no price is known
  return html`<div class="card hero">
    <p class="hero-main"><span class="muted">${isLoss ? "Memory cost more than it saved" : saving.net === 0 ? "Memory has saved nothing yet" : "Saved by memory"}</span>
      <span class=${`hero-figure ${isLoss ? "loss" : saving.net > 0 ? "gain" : ""}`}>${formatMoney(saving.net)}</span>
      <span class="muted">${saving.baseline > 0 && `${formatShare(Math.abs(saving.net) / saving.baseline)} ${isLoss ? "more than" : "of"} the cost without it`}</span></p>
    <dl class="sum">
      <div><dt>Without memory</dt><dd>${formatMoney(saving.baseline)}</dd></div>
      <div><dt><span aria-hidden="true">− </span>Paid</dt><dd>${formatMoney(saving.cost)}</dd></div>
      <div><dt><span aria-hidden="true">− </span>Memory's own calls</dt><dd>${isMemoryPriced ? formatMoney(saving.memory_cost) : "–"}</dd></div>
    </dl>
  </div>`;
}

function Tokens({ tokens }) {
  const isLoss = tokens.net < 0;
  return html`<div class="card hero">
    <p class="hero-main"><span class="muted">${isLoss ? "More tokens than without memory" : "Fewer tokens than without memory"}</span>
      <span class=${`hero-figure ${isLoss ? "loss" : "gain"}`}>${formatShare(Math.abs(tokens.share))}</span>
      <span class="muted">memory's own calls included</span></p>
    <dl class="sum">
      <div><dt>Without memory</dt><dd>${formatCount(tokens.without)}</dd></div>
      <div><dt><span aria-hidden="true">− </span>Sent</dt><dd>${formatCount(tokens.sent)}</dd></div>
      <div><dt><span aria-hidden="true">− </span>Memory's own calls</dt><dd>${formatCount(tokens.memory)}</dd></div>
    </dl>
  </div>`;
}

function Remarks({ ledger }) {
  const whole = ledger.versus_whole_history;
  return html`
    ${whole.baseline > 0 && html`<${Notice}>Clients that send only their newest messages: sending the
      whole conversation would have cost ${formatMoney(whole.baseline)}, this cost${" "}
      ${formatMoney(whole.cost + whole.memory_cost)}. It is no saving: they never paid for their
      history.<//>`}
    <p class="hint">${hasCosts(ledger) && "Costs are at list prices. "}
      ${!ledger.priced && (hasCosts(ledger)
        ? "Of some models no list price is known: their tokens count here, their costs do not. "
        : "No list price of these models is known, so tokens stand here instead of costs. ")}
      ${ledger.estimated > 0 && html`${formatCount(ledger.estimated)} calls reported no tokens; they are
        counted by the proxy.`}</p>`;
}
