// Search the original messages, or the notes, by words. A result leads to its place.
import { countOf, formatFull, formatMoment, formatShare, nameOfTenant, titleOf } from "../format.js";
import { useAnswer } from "../data.js";
import { Empty, MarkedText, Name, NameBesideTitle, Notice, Spinner, Stale } from "../parts/basics.js";
import { PageHead } from "../parts/shell.js";
import { linkTo, linkToMessage, replaceQuery } from "../route.js";
import { FoundNotes } from "../parts/foundnotes.js";
import { nameRole } from "../thread/message.js";
import { html, useEffect, useRef, useState } from "../view.js";

const FIRST_RESULTS = 20;
const MAX_RESULTS = 100; // of one answer of the API
const MAX_LISTED_THREADS = 1_000; // that the admin's choice of keys is made of
const SLOW_MS = 2_000;
const SEARCHED = { messages: "Messages", notes: "Notes" };
const ROLES = { "": "Everybody", user: "User", assistant: "Assistant", tool: "Tool results" };

export function SearchPage({ place, who }) {
  const [asked, setAsked] = useState(() => readAsked(place.query));
  useEffect(() => setAsked(readAsked(place.query)), [place.query]);
  const form = useRef({ query: place.query, key: 0 }); // begins anew with another address
  if (form.current.query !== place.query) form.current = { query: place.query, key: form.current.key + 1 };
  const search = (next) => {
    setAsked(next);
    replaceQuery("search", next);
  };
  const tenants = useTenants(who, asked.tenant);
  const tenant = asked.tenant || tenants.names[0] || "";
  const isReady = !who.isAdmin || tenant !== "";
  return html`<${PageHead} title="Search" about=${isOfNotes(asked)
      ? "Every line of the notes that the model reads now."
      : "Every message word for word, also those that notes stand for."} />
    <${Stale} answer=${tenants} />
    <${SearchForm} key=${form.current.key} asked=${asked} search=${search} tenant=${tenant}
      tenants=${who.isAdmin ? tenants.names : []} />
    ${!isReady && !tenants.data && !tenants.error && html`<${Spinner} />`}
    ${who.isAdmin && tenants.data && tenant === "" && html`<${Empty} title="No conversations yet"><p>There is
      nothing to search. <a href="#/try">Try it here</a>, or let a client name a thread.</p><//>`}
    ${asked.q !== "" && isReady && html`<${Results} key=${JSON.stringify({ ...asked, tenant })} asked=${asked}
      tenant=${who.isAdmin ? tenant : null} />`}
    ${asked.q === "" && isReady && html`<${Invitation} asked=${asked} />`}`;
}

function Invitation({ asked }) {
  if (isOfNotes(asked)) {
    return html`<${Empty} title="What was noted?"><p>Write names, things and words that the notes probably have.
      Endings, accents and capitals do not matter. The best line comes first, and opens the note that it
      stands in. Notes that only stand ready are not searched, nor those that were condensed.</p><//>`;
  }
  return html`<${Empty} title="What was said?"><p>Write names, things and words that were probably used, in the
    language of the conversation. Endings, accents and capitals do not matter. The best result comes first,
    and opens the conversation where it was said.</p><//>`;
}

const isOfNotes = (asked) => asked.in === "notes";

function readAsked(query) {
  const read = (name) => query.get(name) ?? "";
  const role = query.get("role") in ROLES ? read("role") : "";
  const searched = isOfNotes({ in: read("in") }) ? "notes" : ""; // "": messages
  return { q: read("q"), in: searched, role, resource: read("resource"), thread: read("thread"), tenant: read("tenant") };
}

// With the admin token a search is about one key: those whose threads are the newest.
function useTenants(who, chosen) {
  const query = { order: "recent", limit: MAX_LISTED_THREADS };
  const answer = useAnswer(who.isAdmin ? "/threads" : null, query);
  const found = (answer.data?.items ?? []).map((line) => line.tenant);
  const names = [...new Set(chosen ? [chosen, ...found] : found)];
  return { ...answer, names };
}

function SearchForm({ asked, search, tenant, tenants }) {
  const searchFor = (form, searched) => {
    const { q, role, resource, tenant: key } = form.elements;
    const thread = resource.value.trim() === asked.resource ? asked.thread : "";
    search({ q: q.value.trim(), in: searched, role: role?.value ?? asked.role, resource: resource.value.trim(), thread,
      tenant: key?.value ?? "" });
  };
  const submit = (event) => {
    event.preventDefault();
    searchFor(event.currentTarget, asked.in);
  };
  return html`<form class="search-form ${isOfNotes(asked) ? "notes" : ""}" role="search" onSubmit=${submit}>
    <div class="row search-what" role="group" aria-label="What is searched">
      ${Object.entries(SEARCHED).map(
        ([searched, name]) => html`<button type="button" class="chip"
          aria-pressed=${(searched === "notes") === isOfNotes(asked) ? "true" : "false"}
          onClick=${(event) => searchFor(event.currentTarget.form, searched === "notes" ? "notes" : "")}>${name}</button>`,
      )}
    </div>
    <label class="field search-words"><span>Words</span>
      <input type="search" name="q" dir="auto" autocomplete="off" defaultValue=${asked.q} /></label>
    ${!isOfNotes(asked) && html`<label class="field"><span>Said by</span><select name="role">
      ${Object.entries(ROLES).map(
        ([role, name]) => html`<option value=${role} selected=${role === asked.role}>${name}</option>`,
      )}</select></label>`}
    <label class="field"><span>Only in the resource</span>
      <input name="resource" dir="auto" autocomplete="off" defaultValue=${asked.resource} /></label>
    ${tenants.length > 0 && html`<label class="field"><span>Of the key</span><select name="tenant">
      ${tenants.map(
        (name) => html`<option value=${name} selected=${name === tenant}>${nameOfTenant(name).slice(0, 24)}</option>`,
      )}</select></label>`}
    <button type="submit" class="primary">Search</button>
    ${asked.thread && html`<p class="small search-thread">Only in the thread <${Name} text=${asked.thread} />.${" "}
      <button type="button" class="inline" onClick=${() => search({ ...asked, thread: "" })}>Search all threads</button></p>`}
  </form>`;
}

function Results({ asked, tenant }) {
  const [limit, setLimit] = useState(FIRST_RESULTS);
  const { q, role, resource, thread } = asked;
  const query = { q, resource: resource || null, thread: thread || null, tenant, limit };
  if (isOfNotes(asked)) query.in = "notes";
  else query.role = role || null;
  const answer = useAnswer("/search", query);
  const last = useRef(null); // stays while more is read
  last.current = answer.data ?? last.current;
  const found = last.current;
  if (answer.error?.status === 403) {
    return html`<${Notice} kind="warn">With the admin token this server shows no texts, so there is nothing to
      search: <code>server.admin_reads</code> is off. Sign in with the key of a client to search what is its own.<//>`;
  }
  return html`<${Stale} answer=${answer} />
    ${!answer.data && !answer.error && html`<${Waiting} key=${limit} />`}
    ${found && countShown(found) === 0 && html`<${NothingFound} found=${found} asked=${asked} />`}
    ${found && countShown(found) > 0 && html`<div><p role="status">${countFound(found)}.</p><${Limits} found=${found} /></div>
      <${isOfNotes(asked) ? FoundNotes : FoundMessages} found=${found} hasResource=${resource === ""} />
      <${More} found=${found} limit=${limit} setLimit=${setLimit} isBusy=${!answer.data && !answer.error} />`}`;
}

const countShown = ({ items, notes }) => items.length + notes.length;

function countFound(found) {
  const shown = countShown(found);
  const fits = found.notes.length > 0 ? ["line of notes fits", "lines of notes fit"] : ["message fits", "messages fit"];
  const rest = shown < found.total ? `; the best ${shown} stand here` : found.total > 1 ? ", the best first" : "";
  return `${countOf(found.total, ...fits)}${rest}`;
}

function Waiting() {
  const [isSlow, setSlow] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setSlow(true), SLOW_MS);
    return () => clearTimeout(timer);
  }, []);
  return isSlow
    ? html`<p class="muted" role="status">Still searching. The server answers within ten seconds, or says why it cannot.</p>`
    : html`<${Spinner} />`;
}

function NothingFound({ found, asked }) {
  return html`<${Empty} title="Nothing found">
    <p>No ${isOfNotes(asked) ? "note" : "message"} ${asked.thread || asked.resource ? "there " : ""}has these words. Try
      other ones, or fewer${isOfNotes(asked) && ", or search the messages"}.</p>
    <${Limits} found=${found} /><//>`;
}

// What was not found, and what could not be searched.
function Limits({ found }) {
  const { missing, share_read: share, searched, left_out: isLeftOut, by_words_only: byWordsOnly } = found;
  return html`
    ${missing.length > 0 && html`<p class="muted">Words that no ${share < 1 && "searched "}message has:${" "}
      ${missing.map((word, index) => html`${index > 0 && ", "}<${Name} text=${word} length=${64} />`)}.
      ${" "}They stand here without their endings.</p>`}
    ${share < 1 && html`<p class="muted">Only ${formatShare(Math.floor(share * 100) / 100)} of the messages could be
      searched: the others are not indexed yet (<code>om-proxy store index</code> does it), or older than the newest
      2,000.</p>`}
    ${byWordsOnly && html`<p class="muted">By words only: the embedding model failed, was slow, or has made no
      vectors of these messages yet.</p>`}
    ${isLeftOut && html`<p class="muted">Only ${countOf(searched, "resource was", "resources were")} searched. Name one to search it.</p>`}`;
}

function FoundMessages({ found, hasResource }) {
  return html`<ol class="results" aria-label="Messages found">
      ${found.items.map((item) => html`<li class="card result" key=${`${item.resource} ${item.thread} ${item.seq}`}>
        <p class="result-head"><a href=${linkToMessage(item, item.seq)}><${Name} text=${titleOf(item)} length=${80} />,
            no. ${item.seq}</a>
          <${NameBesideTitle} line=${item} />
          <span>${nameRole(item.role)}</span>
          ${item.api !== "chat" && html`<span class="muted">${item.api}</span>`}
          ${hasResource && item.resource !== item.thread && html`<span class="muted">of${" "}
            <a href=${linkTo("resource", item.tenant, item.resource)}><${Name} text=${item.resource} length=${60} /></a></span>`}
          <time class="muted number" datetime=${new Date(item.at * 1000).toISOString()} title=${formatFull(item.at)}>${formatMoment(item.at)}</time></p>
        <${MarkedText} text=${item.excerpt ?? ""} marks=${item.marks} />
      </li>`)}
    </ol>`;
}

function More({ found, limit, setLimit, isBusy }) {
  if (countShown(found) >= found.total) return null;
  if (limit >= MAX_RESULTS && !isBusy) {
    return html`<p class="muted">No more than ${MAX_RESULTS} are shown. Add a word, or name a resource.</p>`;
  }
  return html`<div><button disabled=${isBusy} onClick=${() => setLimit(MAX_RESULTS)}>Show up to ${MAX_RESULTS}</button></div>`;
}
