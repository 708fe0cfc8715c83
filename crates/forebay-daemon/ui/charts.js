// Charts with uPlot (uplot.js, a classic script that the page loads first). Colours are those of style.css, so they follow light
// and dark; sizes follow the page; the height of a card never changes with its content. Plots of all charts have the same edges, those
// over time also the same axis, and one cursor.

import { element, setAttribute, setText } from "./dom.js";

const HEIGHT = 170;
/** Room for labels at the left and at the right of a plot: the same in each chart, whether it has an axis there or not. */
const LEFT = 62;
const RIGHT = 54;
/** The cursor shows a row if it is at most so far from it: further away, nothing was known. */
const NEAR_S = 5;
const DASHES = { dash: [5, 4], dot: [2, 3] };
const all = new Set();

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

/** Whether everything is drawn anew because colours have changed. */
export function followColours() {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => all.forEach((chart) => chart.make()));
}

/** A card with a title, words, a chart and a legend. */
export class Chart {
  /**
   * `series`: { key, label, colour, format, scale, fill, line, points }; `colour` is a colour of style.css, `line` is "dash" or "dot".
   * `axes`: { scale, ticks, range, log, steps }, the first at the left, the second at the right. `x`: "time", or { ticks, log } for
   * other values. `lines`: so many may be below the plot on a narrow page, where the height of a card is its own.
   */
  constructor(title, { series, axes, x = "time", empty = "nothing yet", lines = 1 }) {
    Object.assign(this, { title, series, axes, x, data: null, plot: null, rest: null, span: null });
    this.words = element("p", { class: "words" });
    this.place = element("div", { class: "plot", role: "img" });
    this.nothing = element("p", { class: "nothing" }, empty);
    this.values = series.map(() => element("b"));
    this.entries = series.map((one, at) =>
      element("li", {}, element("i", { class: `swatch of-${one.colour} ${one.line ?? ""}` }), `${one.label} `, this.values[at]));
    this.legend = element("ul", { class: "legend" }, ...this.entries);
    this.root = element("figure", { class: "chart" }, element("figcaption", {}, title), this.place, element("div", { class: `under lines${lines}` }, this.legend, this.words));
    this.place.append(this.nothing);
    this.observer = new ResizeObserver(() => this.resize());
    this.observer.observe(this.place);
    all.add(this);
  }

  destroy() {
    this.observer.disconnect();
    this.plot?.destroy();
    all.delete(this);
    this.root.remove();
  }

  say(words) {
    setText(this.words, words);
  }

  /** Why there is nothing to show. */
  explain(words) {
    setText(this.nothing, words);
  }

  /**
   * Times or sizes, and a column for each series. The legend has the figures of the row `rest` while nobody points at another one.
   * `span`: the first and the last time of the axis.
   */
  show(data, { rest = data[0].length - 1, span = null } = {}) {
    Object.assign(this, { data, rest, span });
    const has = data.slice(1).map((column) => column.some((value) => value !== null));
    const some = has.includes(true);
    // Of many series, those that never were are no news.
    if (has.length > 2) this.entries.forEach((entry, at) => (entry.hidden = !has[at]));
    this.nothing.hidden = some;
    if (!some) {
      this.plot?.destroy();
      this.plot = null;
    } else if (this.plot) this.plot.setData(data);
    else this.make();
    this.tell(null);
  }

  resize() {
    const width = this.place.clientWidth;
    if (width === 0) return;
    if (!this.plot) this.make();
    else if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
  }

  /** Figures of a row, or of the usual one; none if the row is far from the time that the cursor is at. */
  tell(at, time = null) {
    const told = [];
    const far = at !== null && time !== null && Math.abs(this.data[0][at] - time) > NEAR_S;
    this.series.forEach((one, index) => {
      const value = far ? null : this.data?.[index + 1]?.[at ?? this.rest];
      const known = value !== null && value !== undefined;
      setText(this.values[index], known ? one.format(value) : "-");
      if (known) told.push(`${one.label} ${one.format(value)}`);
    });
    if (at === null) setAttribute(this.place, "aria-label", `${this.title}: ${told.join(", ")}`);
  }

  make() {
    this.plot?.destroy();
    this.plot = null;
    const width = this.place.clientWidth;
    if (width === 0 || !this.data || !this.nothing.hidden) return;
    this.plot = new uPlot(this.options(width), this.data, this.place);
  }

  options(width) {
    const [text, grid] = [colour("--dim"), colour("--grid")];
    const font = "11px system-ui, sans-serif";
    const line = { stroke: text, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
    const time = this.x === "time";
    const scales = { x: time ? { time: true, range: (_, least, most) => this.span ?? [least, most] } : { time: false, distr: this.x.log ? 3 : 1, log: 2 } };
    const axes = [{ ...line, grid: { show: !time, stroke: grid, width: 1 }, space: time ? 70 : 55, size: 28,
      ...(time ? { values: [[60, "{HH}:{mm}", null, null, null, null, null, null, 1], [1, "{HH}:{mm}:{ss}", null, null, null, null, null, null, 1]] } : { values: (_, splits) => this.x.ticks(splits) }) }];
    this.axes.forEach((axis, at) => {
      scales[axis.scale] = axis.log
        ? { distr: 3, range: (_, least, most) => logRange(least, most) }
        : { range: axis.range ?? ((_, __, most) => [0, most > 0 ? most * 1.08 : 1]) };
      axes.push({ ...line, scale: axis.scale, side: at === 0 ? 3 : 1, size: at === 0 ? LEFT : RIGHT, gap: 4, grid: { show: at === 0, stroke: grid, width: 1 },
        values: (_, splits) => axis.ticks(splits), space: 32, ...(axis.steps ? { incrs: axis.steps } : {}) });
    });
    const series = this.series.map((one) => {
      const stroke = colour(`--${one.colour}`);
      return { label: one.label, scale: one.scale ?? this.axes[0].scale, stroke, width: 1.5, spanGaps: false,
        fill: one.fill ? `${stroke}22` : undefined, dash: DASHES[one.line], points: { show: one.points ?? false, size: 6, fill: stroke } };
    });
    const tell = (plot) => this.tell(plot.cursor.idx ?? null, time && plot.cursor.left >= 0 ? plot.posToVal(plot.cursor.left, "x") : null);
    return {
      width, height: HEIGHT, scales, axes, series: [{}, ...series], legend: { show: false }, padding: [8, this.axes.length > 1 ? 0 : RIGHT, 0, 0],
      cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 }, ...(time ? { sync: { key: "time", scales: ["x", null] } } : {}) },
      hooks: { setCursor: [tell] },
    };
  }
}

/** Steps of axes: of bytes, and of seconds. Ages have no fractions. */
export const BYTES = Array.from({ length: 60 }, (_, power) => 2 ** power);
export const SECONDS = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21_600, 43_200, 86_400, 172_800, 604_800];

/** Whole powers of ten around what is there. */
function logRange(least, most) {
  if (!(least > 0) || !(most > 0)) return [10, 1000];
  const low = 10 ** Math.floor(Math.log10(least));
  return [low, Math.max(10 ** Math.ceil(Math.log10(most)), low * 10)];
}
