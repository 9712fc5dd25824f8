// Requests without memory since the server's start: why, whose, and what to do. The counts are the
// metrics', and the words come from the server (pages.py makes that module).
import { formatCount } from "../format.js";
import { CLIENT_PAGES, REASONS } from "../reasons.js";
import { credentialHeaders } from "../session.js";
import { Sentence } from "./basics.js";
import { html, useEffect, useState } from "../view.js";

const LINE = /^om_requests_total\{([^}]*)\} (\S+)$/gm;
const LABEL = /(\w+)="([^"]*)"/g;

// Of the reasons with this page the client's own page is more to the point.
const CLIENTS_PAGE = "docs/clients/README.md";

// Return [{reason, client, where, count}], the most first, of the requests whose status is `off`.
export function readUnremembered(page) {
  const counts = new Map();
  for (const [, text, value] of page.matchAll(LINE)) {
    const { status, reason, api, client, route } = Object.fromEntries([...text.matchAll(LABEL)].map(([, name, word]) => [name, word]));
    const group = JSON.stringify({ reason, client, where: route || api });
    if (status === "off" && reason) counts.set(group, (counts.get(group) ?? 0) + Number(value));
  }
  return [...counts].map(([group, count]) => ({ ...JSON.parse(group), count })).sort((a, b) => b.count - a.count);
}

// For an admin alone: the counts are those of all callers.
export function Unremembered() {
  const [lines, setLines] = useState([]);
  useEffect(() => {
    fetch("../metrics", { headers: credentialHeaders(), cache: "no-store", credentials: "omit" })
      .then((answer) => (answer.ok ? answer.text() : ""))
      .then((page) => setLines(readUnremembered(page)))
      .catch(() => setLines([])); // the figures above say that the server is away
  }, []);
  if (lines.length === 0) return null;
  return html`<section class="card" aria-label="Requests without memory"><h2>Requests without memory</h2>
    <p class="muted small">Since the server's start. They reached the model as they were sent.</p>
    <div class="scroll" tabindex="0" role="group" aria-label="Requests without memory"><table class="stacked" role="table">
      <thead role="rowgroup"><tr role="row"><th scope="col" role="columnheader">Why</th><th scope="col" role="columnheader">Client</th>
        <th scope="col" role="columnheader">API or route</th><th scope="col" role="columnheader">Requests</th><th scope="col" role="columnheader">What to do</th></tr></thead>
      <tbody role="rowgroup">${lines.map(({ reason, client, where, count }) => {
        const [what, advice, reasonPage] = REASONS[reason] ?? [reason, "", "docs/reference/reasons.md"];
        const page = reasonPage === CLIENTS_PAGE ? (CLIENT_PAGES[client] ?? reasonPage) : reasonPage;
        return html`<tr role="row"><th scope="row" role="rowheader"><${Sentence} text=${what} /> <code class="muted small">${reason}</code></th>
          <td role="cell" data-column="Client">${client}</td>
          <td role="cell" data-column="API or route">${where}</td>
          <td role="cell" data-column="Requests" class="number">${formatCount(count)}</td>
          <td role="cell" data-column="What to do"><span><${Sentence} text=${advice} /> <span class="muted small">${page}</span></span></td></tr>`;
      })}</tbody>
    </table></div>
  </section>`;
}
