// Start the page: sign in where the server asks for it, then show the page that the address names.
import { Shell } from "./parts/shell.js";
import { Spinner } from "./parts/basics.js";
import { Login } from "./pages/login.js";
import { findPage, listPages } from "./pages/pages.js";
import { identify, signInByLink } from "./api.js";
import { usePlace } from "./route.js";
import { onCredentialChange, onRefusal } from "./session.js";
import { html, render, useEffect, useState } from "./view.js";

// Return "unknown", "in" or "out", and why the visitor must sign in.
function useAccess() {
  const [access, setAccess] = useState({ state: "unknown", error: null, visitor: 0 });
  useEffect(() => {
    let visitor = 0;
    let isOut = false;
    const update = (next) => {
      isOut = next.state === "out";
      setAccess(next);
    };
    const probe = async (refusal = null) => {
      visitor += 1; // another credential: nothing that was shown stays
      try {
        const who = await identify();
        update({ state: "in", error: refusal, visitor, ...who });
      } catch (error) {
        update({ state: error.status === 401 ? "out" : "in", error: refusal ?? error, visitor });
      }
    };
    onCredentialChange(probe);
    onRefusal((error) => update({ state: "out", error, visitor }));
    addEventListener("hashchange", ({ oldURL }) => signInByLink(oldURL && new URL(oldURL).hash));
    addEventListener("focus", () => isOut && probe()); // a link may have been opened in another tab
    signInByLink().then((isLink) => isLink || probe());
  }, []);
  return access;
}

function App() {
  const access = useAccess();
  const place = usePlace();
  const [isSigningIn, setSigningIn] = useState(false);
  useEffect(() => onCredentialChange((refusal) => setSigningIn(refusal !== null)), []);
  if (access.state === "unknown") return html`<${Spinner} />`;
  const mustSignIn = access.state === "out" || (isSigningIn && !access.isAdmin);
  if (mustSignIn) {
    const cancel = access.state === "in" ? () => setSigningIn(false) : null;
    return html`<${Login} error=${access.error} cancel=${cancel} />`;
  }
  const page = findPage(place.steps);
  return html`<${Shell} pages=${listPages(access)} page=${page} who=${access} signIn=${() => setSigningIn(true)}>
    <${page.view} key=${`${access.visitor} ${place.steps.join("/")}`} place=${place} who=${access}
      signIn=${() => setSigningIn(true)} />
  <//>`;
}

document.body.replaceChildren();
render(html`<${App} />`, document.body);
