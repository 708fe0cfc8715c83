// One volume or pool in charts: what this page has seen of it, and its miss-ratio curve.

import { get } from "./api.js";
import { BYTES, Chart, SECONDS } from "./charts.js";
import { byId, element, setAttribute, setText } from "./dom.js";
import { bytes, bytesRate, duration, micros, percent, rate, ticks } from "./format.js";
import { History, WINDOW_S } from "./history.js";

/** Paths of requests, as the statistics name them, in the colour of what they do. */
const PATHS = [
  ["read_hit", "hit"], ["read_miss", "miss"], ["read_bypass", "read", "dash"], ["write", "write"], ["write_through", "write", "dash"], ["write_past", "write", "dot"],
  ["flush", "other"], ["zero", "other", "dash"]];
const QUANTILES = ["p50_us", "p99_us"];
/** A young page shows this much, so that a line is no dot. */
const LEAST_S = 60;
/** The curve counts by hour: it hardly changes in a minute. */
const CURVE_MS = 60_000;

const requests = { title: "Requests", series: [
  { key: "reads_per_s", label: "reads", colour: "read", format: (n) => `${rate(n)}/s`, fill: true }, { key: "writes_per_s", label: "writes", colour: "write", format: (n) => `${rate(n)}/s` }],
  axes: [{ scale: "y", ticks: ticks.count }] };
const hits = { title: "Hit ratio", series: [{ key: "read_hit_ratio", label: "hits, of blocks read", colour: "hit", format: percent, fill: true }],
  axes: [{ scale: "y", ticks: ticks.percent, range: () => [0, 1] }] };
const dirty = { title: "Dirty level and age", lines: 2, series: [
  { key: "dirty_ratio", label: "dirty, of the cache", colour: "dirty", format: percent, fill: true },
  { key: "oldest_s", label: "oldest", colour: "dirty", format: duration, scale: "age", line: "dash" }],
  axes: [{ scale: "y", ticks: ticks.percent, range: (_, __, most) => [0, Math.max(most * 1.1, 0.001)] }, { scale: "age", ticks: ticks.duration, steps: SECONDS, range: (_, __, most) => [0, Math.max(most * 1.1, 10)] }] };
const destage = { title: "Destage", lines: 3, series: [
  { key: "destaged_bytes_per_s", label: "written back", colour: "clean", format: bytesRate, fill: true }, { key: "dirtied_bytes_per_s", label: "newly dirty", colour: "dirty", format: bytesRate }],
  axes: [{ scale: "y", ticks: ticks.bytes, steps: BYTES }] };
const flash = { title: "Written to flash", lines: 2, series: [
  { key: "flash_written_bytes_per_s", label: "to the devices", colour: "flash", format: bytesRate, fill: true }, { key: "written_bytes_per_s", label: "by clients", colour: "write", format: bytesRate }],
  axes: [{ scale: "y", ticks: ticks.bytes, steps: BYTES }] };
const latency = { title: "Latency by path", lines: 3, series: PATHS.map(([key, colour, line]) => ({ key, label: key.replaceAll("_", " "), colour, line, format: micros })),
  axes: [{ scale: "y", ticks: ticks.micros, log: true }] };
const curve = { title: "Miss-ratio curve", lines: 5, x: { ticks: ticks.eachBytes, log: true }, empty: "nothing was read yet", series: [
  { key: "miss", label: "misses", colour: "miss", format: percent, fill: true, points: true }, { key: "now", label: "the present size", colour: "text", format: percent, points: true }],
  axes: [{ scale: "y", ticks: ticks.percent, range: (_, __, most) => [0, Math.max(most * 1.1, 0.01)] }] };

const OF_VOLUME = { requests, hits, latency, dirty, destage, curve };
const OF_POOL = { requests, hits, dirty, destage, flash, curve };

/** Shows what is selected: "volume=NAME" or "pool=NAME". */
export class Detail {
  constructor() {
    Object.assign(this, { root: byId("charts"), histories: new Map(), opened: null, last: null, charts: {}, selected: null, curveAt: 0, served: false, quantile: "p99_us" });
  }

  /** Remembers what everything did, also of what is not shown now. */
  remember(overview, now) {
    this.opened ??= now;
    this.last = now;
    const capacity = new Map(overview.pools.map((pool) => [pool.name, pool.capacity_bytes]));
    const keep = new Set();
    const add = (key, values) => {
      keep.add(key);
      if (!this.histories.has(key)) this.histories.set(key, new History());
      this.histories.get(key).add(now, values);
    };
    for (const volume of overview.volumes) {
      const level = { dirty_ratio: volume.dirty_bytes / capacity.get(volume.pool), oldest_s: volume.oldest_dirty_age_ns / 1e9 };
      add(`volume=${volume.name}`, { ...overview.volume_rates[volume.name], ...level });
    }
    for (const pool of overview.pools) {
      const ages = overview.volumes.filter((volume) => volume.pool === pool.name).map((volume) => volume.oldest_dirty_age_ns / 1e9);
      add(`pool=${pool.name}`, { ...overview.pool_rates[pool.name], dirty_ratio: pool.dirty_bytes / pool.capacity_bytes, oldest_s: Math.max(0, ...ages) });
    }
    for (const key of this.histories.keys()) if (!keep.has(key)) this.histories.delete(key);
  }

  gap(now) {
    for (const history of this.histories.values()) history.gap(now);
    this.draw();
  }

  select(selected) {
    if (selected === this.selected) return;
    this.selected = selected;
    this.curveAt = 0;
    Object.values(this.charts).forEach((chart) => chart.destroy());
    this.charts = {};
    this.root.replaceChildren();
    if (!selected) return;
    for (const [name, options] of Object.entries(selected.startsWith("volume=") ? OF_VOLUME : OF_POOL)) {
      const chart = new Chart(options.title, options);
      this.charts[name] = chart;
      this.root.append(chart.root);
    }
    if (this.charts.latency) this.charts.latency.root.querySelector("figcaption").append(this.quantiles());
    this.draw();
  }

  /** A choice between the median and the slowest hundredth. */
  quantiles() {
    const choose = (event) => {
      this.quantile = event.target.value;
      this.draw();
    };
    const one = (value, label) => element("label", {}, element("input", { type: "radio", name: "quantile", value, checked: value === this.quantile, onchange: choose }), label);
    return element("span", { class: "choice", role: "radiogroup", "aria-label": "quantile" }, one("p50_us", "p50"), one("p99_us", "p99"));
  }

  show(overview) {
    const [kind, name] = this.split();
    const found = kind && overview[`${kind}s`].find((one) => one.name === name);
    setText(byId("detail-title"), kind ? `${kind[0].toUpperCase()}${kind.slice(1)} ${name}` : "\u00a0");
    this.served = Boolean(found) && (kind === "pool" || found.state === "serving");
    const words = found ? (kind === "volume" ? volumeWords(found) : `${found.volumes.length} volumes, ${found.io_engine || "not open"}`) : kind ? "it is gone" : "";
    setText(byId("detail-words"), words);
    setAttribute(byId("detail-words"), "title", words);
    if (found && kind === "volume") {
      this.charts.destage?.say(`limited by: ${found.destage_limited_by || "nothing"}`);
      const why = found.state === "serving" ? "nothing yet" : `the volume is ${found.state}`;
      for (const [name, chart] of Object.entries(this.charts)) if (name !== "curve") chart.explain(why);
    }
    this.draw();
  }

  split() {
    const at = this.selected?.indexOf("=") ?? -1;
    return at < 0 ? [null, null] : [this.selected.slice(0, at), this.selected.slice(at + 1)];
  }

  /** Asks for statistics of the selected one alone; a volume that is not served has none. */
  async look(now) {
    const [kind, name] = this.split();
    if (!kind || !this.served) return;
    const selected = this.selected;
    const path = `/v1/${kind}s/${encodeURIComponent(name)}`;
    if (kind === "volume") await this.lookAtLatencies(selected, path, now);
    if (Date.now() - this.curveAt > CURVE_MS && this.selected === selected) {
      this.curveAt = Date.now();
      const advice = await get(`${path}/advice`);
      if (this.selected === selected) showCurve(this.charts.curve, advice);
    }
  }

  async lookAtLatencies(selected, path, now) {
    const { latency: paths } = await get(`${path}/stats`);
    const values = {};
    for (const [key] of PATHS) {
      const last = paths?.[key]?.["10s"];
      if (!last || last.count === 0) continue;
      for (const quantile of QUANTILES) values[`${key}.${quantile}`] = last[quantile];
    }
    this.histories.get(selected)?.amend(now, values);
    if (this.selected === selected) this.draw();
  }

  /** Times that the axis of each chart begins and ends at: since the page was opened, and at most as far back as it remembers. */
  span() {
    const length = Math.min(WINDOW_S, Math.max(LEAST_S, this.last - this.opened));
    return [this.last - length, this.last];
  }

  draw() {
    const history = this.histories.get(this.selected);
    if (!history) return;
    const span = this.span();
    for (const [name, chart] of Object.entries(this.charts)) {
      if (name === "curve") continue;
      const columns = name === "latency" ? PATHS.map(([path]) => `${path}.${this.quantile}`) : chart.series.map((one) => one.key);
      const data = history.data(columns);
      chart.show(data, { span, rest: name === "latency" ? lastKnown(data) : undefined });
    }
  }
}

/** The last row, or the one before: latencies come in an answer of their own, a moment later. */
function lastKnown([times, ...columns]) {
  const last = times.length - 1;
  return columns.some((column) => Number.isFinite(column[last])) ? last : last - 1;
}

function volumeWords(volume) {
  if (volume.state !== "serving") return [volume.state, volume.why].filter(Boolean).join(": ");
  const use = `${volume.connections} client${volume.connections === 1 ? "" : "s"}`;
  const lost = volume.lost_bytes > 0 ? `, ${bytes(volume.lost_bytes)} lost` : "";
  return `${bytes(volume.size_bytes)}, ${volume.mode}, ${use}, ${volume.cached_bytes === null ? "unknown" : bytes(volume.cached_bytes)} cached, from ${volume.backing}${lost}${volume.backing_why ? `. ${volume.backing_why}` : ""}`;
}

/** The curve, and the estimates of forebay advise for twice and half the cache. */
function showCurve(chart, advice) {
  const sizes = advice.sizes;
  const misses = sizes.map((size) => 1 - size.hit_pct / 100);
  const at = sizes.findIndex((size) => size.times === 1);
  chart.show([sizes.map((size) => size.capacity_bytes), misses, misses.map((miss, index) => (index === at ? miss : null))], { rest: at });
  const words = (times, name) => {
    const other = sizes.find((size) => size.times === times);
    if (!other || at < 0) return null;
    const now = sizes[at];
    // Without hits, a comparison has no content.
    if (Math.max(now.hit_pct, other.hit_pct) < 0.05) return null;
    const hits = (size) => `${size.is_lower_bound ? "≥ " : ""}${size.hit_pct.toFixed(1)}`;
    const read = other.read_mean_us === null || now.read_mean_us === null ? "" : `, read ${micros(now.read_mean_us)} → ${micros(other.read_mean_us)}`;
    return `${name}: hits ${hits(now)} → ${hits(other)} %${read}`;
  };
  chart.say([words(2, "twice"), words(0.5, "half")].filter(Boolean).join("\n"));
}
