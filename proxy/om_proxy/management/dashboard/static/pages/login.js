// Ask for the admin token or a key of the visitor's own.
import { LINK_REFUSED, identify } from "../api.js";
import { Notice } from "../parts/basics.js";
import { hasCredential, headersOf, keepCredential } from "../session.js";
import { html, useState } from "../view.js";

const CREDENTIAL = /^[\x20-\x7e]+$/; // what a header can carry
const UNREADABLE = "This holds characters that no key or token has. Was something else copied with it?";

export function Login({ error, cancel }) {
  const [refusal, setRefusal] = useState(hasCredential() || error?.code === LINK_REFUSED ? error : null);
  const [isBusy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    const form = event.currentTarget;
    const text = form.elements.credential.value.trim();
    if (!text) return;
    if (!CREDENTIAL.test(text)) {
      setRefusal(new Error(UNREADABLE));
      return;
    }
    setBusy(true);
    try {
      await identify(headersOf(text));
      keepCredential(text);
    } catch (failure) {
      setRefusal(failure);
    }
    setBusy(false);
  };
  return html`<main class="login">
    <form class="card login-card" onSubmit=${submit}>
      <h1><span class="brand-mark" aria-hidden="true"></span>om-proxy</h1>
      <p class="muted">See what memory knows. Sign in with your own key to see your threads, or with
        the admin token to see all of them.</p>
      ${refusal && html`<${Notice} kind="bad">${describe(refusal)}<//>`}
      <label class="field">
        <span>Key or admin token</span>
        <input name="credential" type="password" autocomplete="off" spellcheck=${false} autofocus
          required />
        <span class="hint">Your own key is the API key that your client sends. The admin token${" "}
          is <code>server.admin_token</code>, mostly what <code>OM_PROXY_ADMIN_TOKEN</code> holds. A
          container that was given none makes one, and its log says in which file.</span>
      </label>
      <div class="row">
        <button class="primary" type="submit" disabled=${isBusy}>
          ${isBusy ? "Signing in…" : "Sign in"}</button>
        ${cancel && html`<button type="button" onClick=${cancel}>Cancel</button>`}
      </div>
      <p class="hint">It is sent to this server only, and kept until this tab is closed. On your own
        machine you need none: <code>om-proxy</code> prints a link at its start that signs in once.</p>
    </form>
  </main>`;
}

function describe(error) {
  if (error.status !== 401) return error.message;
  return "The server knows neither an admin token nor a key like this.";
}
