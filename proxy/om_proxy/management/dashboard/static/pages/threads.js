// Every thread that the visitor may see.
import { askJson } from "../api.js";
import { useAnswer } from "../data.js";
import { Empty, Notice, Spinner, Stale } from "../parts/basics.js";
import { PageHead } from "../parts/shell.js";
import { NoThreads, ThreadList } from "../parts/threads.js";
import { Trouble } from "../parts/trouble.js";
import { replaceQuery } from "../route.js";
import { html, useEffect, useState } from "../view.js";

const PAGE_THREADS = 50;
const REFRESH_S = 10;
const TYPING_PAUSE_MS = 250;
const STATES = { "": "All", observed: "With notes", failing: "Failing", parked: "Given up" };
const ORDERS = { recent: "Newest first", name: "By name" };

export function ThreadsPage({ who, signIn, place }) {
  const [filter, setFilter] = useState(() => readFilter(place.query));
  const change = (changes) => {
    const next = { ...filter, ...changes };
    setFilter(next);
    replaceQuery("threads", next);
  };
  const isFiltered = Boolean(filter.q || filter.state || filter.resource);
  return html`<${PageHead} title="Threads" about="One thread is one conversation and what memory
    keeps of it." />
    <${Trouble} isShown=${!isFiltered} />
    <${Filters} filter=${filter} change=${change} />
    <${FoundThreads} key=${JSON.stringify(filter)} filter=${filter} isFiltered=${isFiltered}
      who=${who} signIn=${signIn} />`;
}

function readFilter(query) {
  const read = (name, choices) => (query.get(name) in choices ? query.get(name) : Object.keys(choices)[0]);
  return {
    q: query.get("q") ?? "",
    state: read("state", STATES),
    order: read("order", ORDERS),
    resource: query.get("resource") ?? "",
  };
}

function Filters({ filter, change }) {
  const [typed, setTyped] = useState(filter.q);
  useEffect(() => {
    if (typed === filter.q) return undefined;
    const timer = setTimeout(() => change({ q: typed }), TYPING_PAUSE_MS);
    return () => clearTimeout(timer);
  }, [typed]);
  return html`<form class="row toolbar" role="search" onSubmit=${(event) => event.preventDefault()}>
    <input type="search" aria-label="Search by the beginning of a name or title" dir="auto"
      placeholder="Search names and titles" value=${typed}
      onInput=${(event) => setTyped(event.currentTarget.value)} />
    <div class="row" role="group" aria-label="State">
      ${Object.entries(STATES).map(
        ([state, name]) => html`<button type="button" class="chip"
          aria-pressed=${state === filter.state ? "true" : "false"}
          onClick=${() => change({ state })}>${name}</button>`,
      )}
    </div>
    <select aria-label="Order" onChange=${(event) => change({ order: event.currentTarget.value })}>
      ${Object.entries(ORDERS).map(
        ([order, name]) => html`<option value=${order} selected=${order === filter.order}>${name}</option>`,
      )}
    </select>
  </form>`;
}

function FoundThreads({ filter, isFiltered, who, signIn }) {
  const query = {
    limit: PAGE_THREADS,
    q: filter.q || null,
    state: filter.state || null,
    order: filter.order,
    resource: filter.resource || null,
  };
  const first = useAnswer("/threads", query, { interval_s: REFRESH_S });
  const [more, setMore] = useState({ items: [], cursor: undefined, error: null });
  useEffect(() => setMore({ items: [], cursor: undefined, error: null }), [first.data?.cursor]);
  const items = [...(first.data?.items ?? []), ...more.items];
  const cursor = more.cursor === undefined ? first.data?.cursor : more.cursor;
  const readOn = async () => {
    try {
      const page = await askJson("GET", "/threads", { query: { ...query, cursor } });
      setMore({ items: [...more.items, ...page.items], cursor: page.cursor, error: null });
    } catch (error) {
      setMore({ ...more, error });
    }
  };
  return html`<${Stale} answer=${first} />
    ${!first.data && !first.error && html`<${Spinner} />`}
    ${first.data && items.length === 0 && !cursor &&
    (isFiltered
      ? html`<${Empty} title="No such thread"><p>Search looks at the beginning of names and titles.</p><//>`
      : html`<${NoThreads} who=${who} signIn=${signIn} />`)}
    ${items.length > 0 && html`<${ThreadList} items=${items} label="Threads" />`}
    ${more.error && html`<${Notice} kind="bad">${more.error.message}<//>`}
    ${cursor && html`<div><button onClick=${readOn}>Show more threads</button></div>`}`;
}
