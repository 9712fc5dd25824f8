// Talk to a model through the proxy, and watch what memory does.
import { askThread, threadPath, threadQuery } from "../api.js";
import { useAnswer } from "../data.js";
import { formatCount } from "../format.js";
import { Badge, Notice } from "../parts/basics.js";
import { Columns } from "../parts/columns.js";
import { PageHead } from "../parts/shell.js";
import { linkToThread } from "../route.js";
import { headersOf, ownKey, setTrialKey } from "../session.js";
import { ContextColumn } from "../thread/context.js";
import { MemoryColumn } from "../thread/memory.js";
import { Message } from "../thread/message.js";
import { html, useEffect, useRef, useState } from "../view.js";

const CHAT = "Conversation";
const REFRESH_S = 2; // notes are made in the background
// so that a short conversation has notes
const EARLY = { message_tokens: 200, buffer_tokens: 50, buffer_activation: 0.8 };
const V1 = "../v1";

export function TryPage({ who }) {
  const [name] = useState(() => `try-${new Date().toISOString().slice(0, 19).replace(/\D/g, "")}`);
  const [typedKey, setTypedKey] = useState("");
  const key = typedKey || (who.isAdmin ? null : ownKey());
  const thread = { tenant: key ? null : "local", resource: name, thread: name };
  useEffect(() => setTrialKey(typedKey || null), [typedKey]);
  useEffect(() => () => setTrialKey(null), []);
  const [talk, setTalk] = useState({ lines: [], isBusy: false, error: null });
  const [shown, setShown] = useState(CHAT);
  const isBegun = talk.lines.length > 0;
  const send = async (text, model, isEarly) => {
    const asked = [...talk.lines, { message: { role: "user", content: text } }];
    setTalk({ lines: asked, isBusy: true, error: null });
    try {
      const answered = await askModel(name, key, model, asked.map(({ message }) => message));
      if (isEarly && !isBegun) {
        await askThread("PATCH", thread, "/settings", { body: { observation: EARLY } });
      }
      setTalk({ lines: [...asked, answered], isBusy: false, error: null });
      return true;
    } catch (error) {
      setTalk({ lines: talk.lines, isBusy: false, error });
      return false;
    }
  };
  const columns = [{
    name: CHAT,
    about: "Each answer with its receipt: what memory did for it.",
    body: html`<${Chat} talk=${talk} send=${send} isBegun=${isBegun} headers=${key ? headersOf(key) : {}}
      typedKey=${typedKey} setTypedKey=${setTypedKey} />`,
  }];
  if (isBegun && !talk.isBusy) columns.push(...describeMemory(thread, talk.lines.length));
  return html`<${PageHead} title="Try it" about="Talk to a model through the proxy, and watch what memory does. It is
    stored like any conversation.">
      ${isBegun && who.isAdmin && !key && html`<a href=${linkToThread(thread)}>Its page</a>`}
    <//>
    <${Columns} columns=${columns} shown=${shown} onShow=${setShown} />`;
}

function describeMemory(thread, tick) {
  return [
    { name: "Memory", about: "The notes, as they are made.", body: html`<${Notes} thread=${thread} tick=${tick} />` },
    {
      name: "What the model sees",
      short: "Next prompt",
      about: "The next prompt, part by part.",
      body: html`<${ContextColumn} thread=${thread} tick=${tick} />`,
    },
  ];
}

function Notes({ thread, tick }) {
  const status = useAnswer(threadPath(thread), threadQuery(thread), { interval_s: REFRESH_S, tick });
  const notes = useAnswer(threadPath(thread, "/observations"), threadQuery(thread), { interval_s: REFRESH_S, tick });
  return status.data && html`<${MemoryColumn} thread=${thread} status=${status.data} notes=${notes} selected=${null}
    select=${() => null} changed=${notes.reload} tick=${status.data.version} />`;
}

// Send the conversation as any client does. Return the reply and its receipt; raise an error to show.
async function askModel(thread, key, model, messages) {
  let answer;
  try {
    answer = await fetch(`${V1}/chat/completions`, {
      method: "POST",
      headers: { "content-type": "application/json", "x-om-thread": thread, ...(key ? headersOf(key) : {}) },
      body: JSON.stringify({ model, messages }),
      credentials: "omit",
    });
  } catch {
    throw new Error("The proxy does not answer. Is it still running?");
  }
  const content = await answer.json().catch(() => null);
  const message = content?.choices?.[0]?.message;
  if (!answer.ok || !message) throw new Error(content?.error?.message ?? `The server answered ${answer.status}.`);
  return { message, receipt: answer.headers };
}

function Chat({ talk, send, isBegun, headers, typedKey, setTypedKey }) {
  const models = useModels(headers);
  const form = useRef(null);
  useEffect(() => isBegun && form.current.scrollIntoView({ block: "nearest" }), [talk.lines.length]);
  const submit = async (event) => {
    event.preventDefault();
    const { text, model, early } = form.current.elements;
    const isAnswered = text.value.trim() && (await send(text.value, model.value.trim(), early.checked));
    if (isAnswered) text.value = "";
  };
  return html`${talk.lines.map(({ message, receipt }) => html`<${Message} message=${message}
      more=${receipt && html`<${Receipt} receipt=${receipt} />`} />`)}
    ${talk.isBusy && html`<p class="muted" role="status">The model answers…</p>`}
    ${talk.error && html`<${Notice} kind="bad">${talk.error.message}<//>`}
    <form class="card try-form" ref=${form} onSubmit=${submit}>
      <label class="field"><span>Your message</span><textarea name="text" rows="3" dir="auto" required
        placeholder="Tell it a few facts, talk on, then ask for the first one."></textarea></label>
      <div class="try-row">
        <label class="field"><span>Model</span><input name="model" list="models" required defaultValue=${models[0] ?? ""} key=${models[0]} />
          <datalist id="models">${models.map((id) => html`<option value=${id} />`)}</datalist></label>
        <label class="field"><span>Key of the model server</span><input type="password" autocomplete="off"
          value=${typedKey} disabled=${isBegun} placeholder=${headers.authorization ? "the one you signed in with" : "none"}
          onChange=${(event) => setTypedKey(event.currentTarget.value.trim())} /></label>
      </div>
      <label class="tick"><input name="early" type="checkbox" defaultChecked disabled=${isBegun} />
        <span>Write notes early, from ${EARLY.message_tokens} tokens on</span></label>
      <div class="row"><button class="primary" disabled=${talk.isBusy}>Send</button>
        <span class="hint">The key stays in this page's memory.</span></div>
    </form>`;
}

// The names that the model server lists; none where it lists none.
function useModels(headers) {
  const [models, setModels] = useState([]);
  useEffect(() => {
    fetch(`${V1}/models`, { headers, credentials: "omit" })
      .then((answer) => (answer.ok ? answer.json() : { data: [] }))
      .then(({ data }) => setModels((data ?? []).map(({ id }) => id)))
      .catch(() => setModels([])); // a name can be typed all the same
  }, [headers.authorization]);
  return models;
}

function Receipt({ receipt }) {
  const read = (name) => receipt.get(`x-om-${name}`);
  const count = (name) => formatCount(Number(read(name)));
  const status = read("status");
  return html`<p class="row small receipt"><${Badge} kind=${{ applied: "good", degraded: "bad" }[status] ?? ""}>${status}<//>
    ${read("reason") && html`<code>${read("reason")}</code>`}
    ${read("tokens-sent") && html`<span class="number">${count("tokens-received")} → ${count("tokens-sent")} tokens</span>`}
    ${read("observation-tokens") && html`<span class="muted">notes: ${count("observation-tokens")} tokens</span>`}
    ${read("overhead-ms") && html`<span class="muted">${read("overhead-ms")} ms by the proxy</span>`}</p>`;
}
