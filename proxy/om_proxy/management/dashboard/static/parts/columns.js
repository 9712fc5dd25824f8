// Columns side by side on a wide screen, tabs on a narrow one: [{name, about, body}], and `short`
// where the name is too long for a tab. Both are the same elements, so nothing that somebody writes
// is lost where the screen is turned.
import { html, useEffect, useRef, useState } from "../view.js";

const WIDE = matchMedia("(min-width: 1000px)");

function useIsWide() {
  const [isWide, setWide] = useState(WIDE.matches);
  useEffect(() => {
    const follow = () => setWide(WIDE.matches);
    WIDE.addEventListener("change", follow);
    return () => WIDE.removeEventListener("change", follow);
  }, []);
  return isWide;
}

export function Columns({ columns, shown, onShow }) {
  const isWide = useIsWide();
  return html`<div class=${isWide ? "columns" : "tabs"} style=${{ "--columns": columns.length }}>
    ${isWide ? null : html`<${TabList} columns=${columns} shown=${shown} onShow=${onShow} />`}
    ${columns.map((column, index) => {
      const isShown = isWide || column.name === shown;
      return html`<section key=${column.name} class="column" id=${`panel-${index}`} hidden=${!isShown}
        role=${isWide ? "region" : "tabpanel"} aria-label=${column.name}>
        <h2 class=${isWide ? "" : "unseen"}>${column.name}</h2>
        <p class="muted small">${column.about}</p>
        <div class="column-body" tabindex="0" role="group" aria-label=${column.name}>${column.body}</div>
      </section>`;
    })}
  </div>`;
}

function TabList({ columns, shown, onShow }) {
  const list = useRef(null);
  const move = (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const at = columns.findIndex(({ name }) => name === shown);
    const next = (at + step + columns.length) % columns.length;
    onShow(columns[next].name);
    list.current.children[next].focus();
  };
  return html`<div role="tablist" aria-label="Parts of the thread" ref=${list} onKeyDown=${move}>
    ${columns.map(
      ({ name, short }, index) => html`<button role="tab" aria-controls=${`panel-${index}`}
        aria-selected=${name === shown ? "true" : "false"} tabindex=${name === shown ? 0 : -1}
        onClick=${() => onShow(name)}>${short ?? name}</button>`,
    )}
  </div>`;
}
