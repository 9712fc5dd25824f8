// Forgetting a thread or a resource: it asks for the name first.
import { Buttons, useChange } from "../thread/change.js";
import { goTo } from "../route.js";
import { Dialog, Name } from "./basics.js";
import { html, useState } from "../view.js";

// `children` say what is removed.
export function ForgetDialog({ title, name, forget, close, children }) {
  const [typed, setTyped] = useState("");
  const change = useChange(() => forget(), () => goTo("#/threads"));
  const submit = (event) => {
    event.preventDefault();
    if (typed === name) change.send();
  };
  return html`<${Dialog} title=${title} close=${close}>
    <form onSubmit=${submit}>
      <p>${children}</p>
      <label class="field"><span>Type its name to go on: <strong><${Name} text=${name} length=${1_000} /></strong></span>
        <input name="name" autocomplete="off" spellcheck=${false} value=${typed}
          onInput=${(event) => setTyped(event.currentTarget.value)} /></label>
      <${Buttons} name="Forget" kind="danger" change=${change} isReady=${typed === name} close=${close} />
    </form>
  <//>`;
}
