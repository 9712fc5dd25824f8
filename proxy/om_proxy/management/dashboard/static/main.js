// Start the page: sign in where the server asks for it, then show the page that the address names.
import { Shell } from "./parts/shell.js";
import { Spinner } from "./parts/basics.js";
import { Login } from "./pages/login.js";
import { findPage, listPages } from "./pages/pages.js";
import { identify } from "./api.js";
import { usePlace } from "./route.js";
import { onCredentialChange, onRefusal } from "./session.js";
import { html, render, useEffect, useState } from "./view.js";

// Return "unknown", "in" or "out", and why the visitor must sign in.
function useAccess() {
  const [access, setAccess] = useState({ state: "unknown", error: null, visitor: 0 });
  useEffect(() => {
    let visitor = 0;
    const probe = async () => {
      visitor += 1; // another credential: nothing that was shown stays
      try {
        const who = await identify();
        setAccess({ state: "in", error: null, visitor, ...who });
      } catch (error) {
        setAccess({ state: error.status === 401 ? "out" : "in", error, visitor });
      }
    };
    probe();
    const ends = [
      onCredentialChange(probe),
      onRefusal((error) => setAccess({ state: "out", error, visitor })),
    ];
    return () => ends.forEach((end) => end());
  }, []);
  return access;
}

function App() {
  const access = useAccess();
  const place = usePlace();
  const [isSigningIn, setSigningIn] = useState(false);
  useEffect(() => onCredentialChange(() => setSigningIn(false)), []);
  if (access.state === "unknown") return html`<${Spinner} />`;
  if (access.state === "out" || isSigningIn) {
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
