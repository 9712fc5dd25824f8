// What memory saves and costs, what needs somebody, and what happens now.
import { useAnswer } from "../data.js";
import { useFeed } from "../feed.js";
import { Empty, Notice, Spinner, Stale } from "../parts/basics.js";
import { EventList } from "../parts/feed.js";
import { LedgerTables } from "../parts/ledgertables.js";
import { OverTime } from "../parts/overtime.js";
import { Savings } from "../parts/savings.js";
import { PageHead } from "../parts/shell.js";
import { NoThreads, ThreadList } from "../parts/threads.js";
import { NewestTiers } from "../parts/tiers.js";
import { Trouble } from "../parts/trouble.js";
import { Unremembered } from "../parts/unremembered.js";
import { dayBefore, selectDays, sumLedgers } from "../ledger.js";
import { replaceQuery } from "../route.js";
import { html, useState } from "../view.js";

const REFRESH_S = 10;
const LISTED_THREADS = 6;
const TIER_THREADS = 20;
const STORED_EVENTS = 30; // at first; some are of kinds that are not shown
const BY_DAY = { by: "day", limit: 1_000 }; // of one answer
const RANGES = { "7 days": 7, "30 days": 30, All: null };

export function OverviewPage({ who, signIn, place }) {
  const [range, setRange] = useState({ from: place.query.get("from") ?? "", to: place.query.get("to") ?? "" });
  const choose = (changes) => {
    const next = { ...range, ...changes };
    setRange(next);
    replaceQuery("overview", next);
  };
  const stats = useAnswer("/stats", BY_DAY, { interval_s: REFRESH_S });
  const recent = useAnswer("/threads", { order: "recent", limit: TIER_THREADS }, { interval_s: REFRESH_S });
  const days = selectDays(stats.data?.items ?? [], range);
  const ledger = sumLedgers(days.map((line) => line.ledger));
  const isNew = recent.data?.items.length === 0 && stats.data?.items.length === 0;
  return html`<${PageHead} title="Overview" about="What memory saves, and what it does now.">
      ${!isNew && html`<${RangeChoice} range=${range} choose=${choose} />`}
    <//>
    <${Stale} answer=${stats} />
    <${Trouble} />
    ${!stats.data && !stats.error && html`<${Spinner} />`}
    ${isNew && html`<${NoThreads} who=${who} signIn=${signIn} />`}
    ${!isNew && stats.data && !ledger && html`<${Empty} title="No turns in this time">
      <p>Choose a longer time, or talk to a model through the proxy.</p><//>`}
    ${ledger && html`<${Savings} ledger=${ledger} />
      <${OverTime} days=${days} query=${BY_DAY} interval_s=${REFRESH_S} range=${range} />`}
    ${who.hasMetrics && html`<${Unremembered} />`}
    ${recent.data?.items.length > 0 && html`<${NewestTiers} lines=${recent.data.items} />`}
    ${!isNew && html`<section aria-label="Most recent threads"><h2>Most recent threads</h2>
        ${!recent.data && !recent.error && html`<${Spinner} />`}
        ${recent.data && html`<${ThreadList} items=${recent.data.items.slice(0, LISTED_THREADS)} label="Most recent threads" />`}
      </section>
      <${Happenings} />`}
    ${ledger && html`<${LedgerTables} range=${range} />`}`;
}

function RangeChoice({ range, choose }) {
  const DayInput = ({ name, label }) => html`<input type="date" aria-label=${label} title=${label}
    value=${range[name]} onChange=${(event) => choose({ [name]: event.currentTarget.value })} />`;
  return html`<div class="row dates" role="group" aria-label="Time">
    ${Object.entries(RANGES).map(([name, days]) => {
      const from = days === null ? "" : dayBefore(days);
      const isChosen = range.from === from && range.to === "";
      return html`<button class="chip" aria-pressed=${isChosen ? "true" : "false"}
        onClick=${() => choose({ from, to: "" })}>${name}</button>`;
    })}
    ${DayInput({ name: "from", label: "First day" })}<span class="muted" aria-hidden="true">–</span>
    ${DayInput({ name: "to", label: "Last day" })}
  </div>`;
}

function Happenings() {
  const { events, error } = useFeed("/events", STORED_EVENTS);
  const shown = events.filter(({ type }) => !type.endsWith("-start")).slice(0, 6);
  return html`<section aria-label="What happened last"><h2>What happened last</h2>
    ${error && html`<${Notice} kind="bad">${error.message}<//>`}
    ${shown.length > 0
      ? html`<${EventList} events=${shown} /><p><a href="#/live">All events</a></p>`
      : html`<p class="muted card">Nothing yet: notes appear here as soon as they are written.</p>`}
  </section>`;
}
