// Bars over days, of parts that stand on each other, with a table behind them. A day: {at, parts,
// values}, a number for each series and a text for each column of the table.
import { formatLedgerDay, formatShort, formatShortLedgerDay } from "../format.js";
import { html, useEffect, useRef, useState } from "../view.js";

const DAY_S = 86_400;
const HEIGHT_PX = 220;
const FOOT_PX = 28; // for the days' names
const SCALE_PX = 56; // for the scale's numbers
const MAX_BAR_PX = 48;
const LABEL_PX = 52; // from one day's name to the next
const MAX_LINES = 4;

// `series`: [{name, kind}], the lowest first. `columns`: names of the table's. `children`: beside the name.
export function DayChart({ label, days, series, columns, formatTick = formatShort, children }) {
  const place = useRef(null);
  const [width, setWidth] = useState(0);
  const [pointed, setPointed] = useState(null); // the day below the pointer; null: the newest
  useEffect(() => {
    const resize = new ResizeObserver(([{ contentRect }]) => setWidth(contentRect.width));
    resize.observe(place.current);
    return () => resize.disconnect();
  }, []);
  return html`<figure class="chart">
    <figcaption class="chart-head"><h2>${label}</h2>${children}
      <ul class="row legend-row">${series.map(
        ({ name, kind }) => html`<li><span class=${`dot ${kind}`} aria-hidden="true"></span>${name}</li>`,
      )}</ul>
    </figcaption>
    <div ref=${place} class="plot" aria-hidden="true">${width > SCALE_PX && days.length > 0 && html`<${Bars} days=${days}
      series=${series} width=${width} formatTick=${formatTick} point=${setPointed} />`}</div>
    <div class="chart-foot">
      <details><summary>Show as a table</summary>
        <${DayTable} label=${label} days=${days} columns=${columns} />
      </details>
      ${days.length > 0 && html`<${DayFigures} day=${days[pointed] ?? days[days.length - 1]} columns=${columns} />`}
    </div>
  </figure>`;
}

function Bars({ days, series, width, formatTick, point }) {
  const [first, last] = [days[0].at, days[days.length - 1].at];
  const room = (width - SCALE_PX) / ((last - first) / DAY_S + 1); // of one day
  const bar = Math.max(2, Math.min(MAX_BAR_PX, room * 0.6));
  const leastStep = formatTick === formatShort ? 1 : 0; // a count has no halves
  const ticks = listTicks(Math.max(...days.map(({ parts }) => sum(parts))), leastStep);
  const ground = HEIGHT_PX - FOOT_PX;
  const placeOf = (at) => SCALE_PX + ((at - first) / DAY_S + 0.5) * room;
  const heightOf = (value) => (value / ticks[ticks.length - 1]) * (ground - 12);
  const placeOfName = (at) => Math.min(placeOf(at), width - LABEL_PX / 2); // the last would be cut off
  const named = chooseNamedDays(days, placeOfName);
  return html`<svg width=${width} height=${HEIGHT_PX} onPointerLeave=${() => point(null)}>
    ${ticks.map((tick) => html`<g class="tick-line">
      <line x1=${SCALE_PX} x2=${width} y1=${ground - heightOf(tick)} y2=${ground - heightOf(tick)} />
      <text x=${SCALE_PX - 8} y=${ground - heightOf(tick) + 4} text-anchor="end">${formatTick(tick)}</text></g>`)}
    ${days.map(({ at, parts }, index) => html`<g onPointerEnter=${() => point(index)}>
      ${parts.map((part, number) => part > 0 && html`<rect x=${placeOf(at) - bar / 2} width=${bar} rx="2"
        y=${ground - heightOf(sum(parts.slice(0, number + 1)))} height=${heightOf(part)}
        style=${{ fill: `var(--${series[number].kind})` }} />`)}
      <rect class="reach" x=${placeOf(at) - Math.max(bar, room) / 2} width=${Math.max(bar, room)} height=${ground} />
      ${named.has(at) && html`<text x=${placeOfName(at)} y=${HEIGHT_PX - 8}
        text-anchor="middle">${formatShortLedgerDay(at)}</text>`}</g>`)}
  </svg>`;
}

// Return round numbers from 0 to at least `top`.
function listTicks(top, leastStep) {
  const least = Math.max((top || 1) / MAX_LINES, leastStep);
  const unit = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((size) => size >= least);
  return Array.from({ length: Math.ceil((top || 1) / step) + 1 }, (_, index) => index * step);
}

// Return the days that have a name below their bar: the newest, and of those before as many as have room.
function chooseNamedDays(days, placeOfName) {
  const named = [];
  for (const { at } of [...days].reverse()) {
    if (named.length === 0 || placeOfName(named[named.length - 1]) - placeOfName(at) >= LABEL_PX) named.push(at);
  }
  return new Set(named);
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

// The figures of the day that is pointed at. A screen reader has the table.
function DayFigures({ day, columns }) {
  return html`<p class="small muted number-line" aria-hidden="true"><strong>${formatLedgerDay(day.at)}</strong>
    ${columns.map((name, index) => html`<span class="number">${name} ${day.values[index]}</span>`)}</p>`;
}

function DayTable({ label, days, columns }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}><table>
    <thead><tr><th scope="col">Day (UTC)</th>${columns.map((name) => html`<th scope="col" class="end">${name}</th>`)}</tr></thead>
    <tbody>${days.map(
      ({ at, values }) => html`<tr><th scope="row">${formatLedgerDay(at)}</th>
        ${values.map((value) => html`<td class="end number">${value}</td>`)}</tr>`,
    )}</tbody>
  </table></div>`;
}
