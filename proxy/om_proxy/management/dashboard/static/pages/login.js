// Ask for the admin token or a key of the visitor's own.
import { identify } from "../api.js";
import { Notice } from "../parts/basics.js";
import { hasCredential, headersOf, keepCredential } from "../session.js";
import { html, useState } from "../view.js";

const CREDENTIAL = /^[\x20-\x7e]+$/; // what a header can carry
const UNREADABLE = "This holds characters that no key or token has. Was something else copied with it?";

export function Login({ error, cancel }) {
  const [refusal, setRefusal] = useState(hasCredential() ? error : null);
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
      keepCredential(text, form.elements.remember.checked);
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
          is <code>server.admin_token</code>; if one is set, the server's start says where it is.</span>
      </label>
      <label class="tick"><input name="remember" type="checkbox" />
        <span>Keep it until this tab is closed</span></label>
      <div class="row">
        <button class="primary" type="submit" disabled=${isBusy}>
          ${isBusy ? "Signing in…" : "Sign in"}</button>
        ${cancel && html`<button type="button" onClick=${cancel}>Cancel</button>`}
      </div>
      <p class="hint">It is sent to this server only, in a header. No cookie is set.</p>
    </form>
  </main>`;
}

function describe(error) {
  if (error.status !== 401) return error.message;
  return "The server knows neither an admin token nor a key like this.";
}
