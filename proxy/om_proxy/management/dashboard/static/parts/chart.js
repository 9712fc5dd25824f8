// Bars over days, of parts that stand on each other, with a table behind them. A day: {at, parts,
// values}, one part for each series and one value for each column of the table.
import { formatLedgerDay, formatShort, formatShortLedgerDay, formatSigned } from "../format.js";
import { html, useEffect, useRef, useState } from "../view.js";

const HEIGHT_PX = 220;
const MARGIN_S = 43_200; // before the first day and behind the last one
const LABEL_PX = 64; // from one day's name below the bars to the next
const DARK = matchMedia("(prefers-color-scheme: dark)");

function readColour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

// `series`: [{name, kind}], the lowest first. `columns`: names of the table's.
export function DayChart({ label, days, series, columns, format = formatSigned, formatTick = formatShort }) {
  const place = useRef(null);
  const [pointed, setPointed] = useState(null); // the day below the pointer; null: the newest
  useEffect(() => {
    let plot = null;
    const draw = () => {
      plot?.destroy();
      plot = drawPlot(place.current, days, series, formatTick, setPointed);
    };
    const resize = new ResizeObserver(([{ contentRect }]) =>
      plot?.setSize({ width: contentRect.width, height: HEIGHT_PX }),
    );
    draw();
    resize.observe(place.current);
    DARK.addEventListener("change", draw);
    return () => {
      resize.disconnect();
      DARK.removeEventListener("change", draw);
      plot?.destroy();
    };
  }, [JSON.stringify(days)]);
  return html`<figure class="chart">
    <figcaption class="chart-head"><h2>${label}</h2>
      <ul class="row legend-row">${series.map(
        ({ name, kind }) => html`<li><span class=${`dot ${kind}`} aria-hidden="true"></span>${name}</li>`,
      )}</ul>
    </figcaption>
    <div ref=${place} aria-hidden="true"></div>
    <div class="chart-foot">
      <details><summary>Show as a table</summary>
        <${DayTable} label=${label} days=${days} columns=${columns} format=${format} />
      </details>
      <${DayFigures} day=${days[pointed] ?? days[days.length - 1]} columns=${columns} format=${format} />
    </div>
  </figure>`;
}

// The figures of the day that is pointed at. A screen reader has the table.
function DayFigures({ day, columns, format }) {
  const figures = columns.map((name, index) => `${name} ${format(day.values[index])}`);
  return html`<p class="small muted number-line" aria-hidden="true"><strong>${formatLedgerDay(day.at)}</strong>
    ${figures.map((words) => html`<span class="number">${words}</span>`)}</p>`;
}

// Return the days that have a name below their bar: the newest, and of those before as many as have room.
function chooseNamedDays(days, low, high, width) {
  const named = [];
  for (const { at } of [...days].reverse()) {
    const isApart = named.length === 0 || ((named[0] - at) / (high - low)) * width >= LABEL_PX;
    if (isApart) named.unshift(at);
  }
  return named;
}

function drawPlot(parent, days, series, formatTick, point) {
  const { uPlot } = globalThis; // a classic script, loaded before this module
  const bars = uPlot.paths.bars({ size: [0.6, 48], radius: 0.15 });
  const axis = { stroke: readColour("--muted"), grid: { stroke: readColour("--line"), width: 1 }, ticks: { show: false } };
  // a part reaches from 0 to the top of those below it and itself, and the lower ones stand in front
  const drawn = series.map((_, index) => index).reverse();
  const heights = drawn.map((index) => days.map(({ parts }) => (parts[index] > 0 ? sum(parts.slice(0, index + 1)) : null)));
  const options = {
    width: parent.clientWidth,
    height: HEIGHT_PX,
    legend: { show: false },
    cursor: { x: false, y: false, points: { show: false }, drag: { x: false, y: false } },
    hooks: { setCursor: [({ cursor }) => point(cursor.left < 0 ? null : cursor.idx)] },
    scales: { x: { time: true, range: [days[0].at - MARGIN_S, days[days.length - 1].at + MARGIN_S] }, y: { range: (_, low, high) => [0, high * 1.1 || 1] } },
    axes: [
      { ...axis, grid: { show: false }, size: 28, splits: (plot, _, low, high) => chooseNamedDays(days, low, high, plot.width), values: (_, ticks) => ticks.map(formatShortLedgerDay) },
      { ...axis, size: 56, values: (_, ticks) => ticks.map(formatTick) },
    ],
    series: [
      {},
      ...drawn.map((index) => ({ label: series[index].name, fill: readColour(`--${series[index].kind}`), width: 0, points: { show: false }, paths: bars })),
    ],
  };
  return new uPlot(options, [days.map(({ at }) => at), ...heights], parent);
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

function DayTable({ label, days, columns, format }) {
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${label}><table>
    <thead><tr><th scope="col">Day (UTC)</th>${columns.map((name) => html`<th scope="col" class="end">${name}</th>`)}</tr></thead>
    <tbody>${days.map(
      ({ at, values }) => html`<tr><th scope="row">${formatLedgerDay(at)}</th>
        ${values.map((value) => html`<td class="end number">${format(value)}</td>`)}</tr>`,
    )}</tbody>
  </table></div>`;
}
