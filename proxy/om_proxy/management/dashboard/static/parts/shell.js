// The frame around every page: the name, the pages, and who is signed in.
import { signOut } from "../api.js";
import { isSignedIn } from "../session.js";
import { html, useEffect, useRef } from "../view.js";

export function Shell({ pages, page, who, signIn, children }) {
  const current = page.under ?? page.step;
  const nav = useRef(null);
  useEffect(() => showCurrent(nav.current), [current]);
  return html`<div class="shell">
    <a class="skip" href="#content" onClick=${skipToContent}>Skip to content</a>
    <header class="side">
      <a class="brand" href="#/"><span class="brand-mark" aria-hidden="true"></span>om-proxy</a>
      <nav aria-label="Pages" ref=${nav}>
        ${pages.map(
          ({ step, name }) => html`<a href=${`#/${step}`}
            aria-current=${step === current ? "page" : undefined}>${name}</a>`,
        )}
      </nav>
      <${Account} who=${who} signIn=${signIn} />
    </header>
    <main id="content" tabindex="-1">${children}</main>
  </div>`;
}

// A narrow screen does not show all pages at once.
function showCurrent(nav) {
  const link = nav.querySelector("[aria-current]");
  if (link) nav.scrollLeft = link.offsetLeft - nav.offsetLeft - (nav.clientWidth - link.offsetWidth) / 2;
}

function skipToContent(event) {
  event.preventDefault(); // the address names the page, not a place on it
  document.getElementById("content").focus();
}

function Account({ who, signIn }) {
  if (!isSignedIn(who)) {
    return html`<div class="account">
      <span class="muted">Threads without a key</span>
      <button class="quiet" onClick=${signIn}>Sign in</button>
    </div>`;
  }
  return html`<div class="account">
    <span class="muted">${who.isAdmin ? "All threads" : "Threads of your key"}</span>
    <button class="quiet" onClick=${signOut}>Sign out</button>
  </div>`;
}

// A page's heading. It takes the focus when the page comes, so that a screen reader says it.
export function PageHead({ title, about, children }) {
  const heading = useRef(null);
  const plain = typeof title === "string" ? title : title.props?.text ?? "";
  useEffect(() => {
    document.title = `${plain.slice(0, 80)} · om-proxy`;
  }, [plain]);
  useEffect(() => heading.current?.focus({ preventScroll: true }), []);
  return html`<div class="page-head">
    <div class="page-title">
      <h1 ref=${heading} tabindex="-1">${title}</h1>
      ${about && html`<p class="muted">${about}</p>`}
    </div>
    ${children && html`<div class="row actions">${children}</div>`}
  </div>`;
}
