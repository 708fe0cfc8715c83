// One volume or pool in charts: what this page has seen of it, and its miss-ratio curve.

import { get } from "./api.js";
import { BYTES, Chart, SECONDS } from "./charts.js";
import { byId, element, setText } from "./dom.js";
import { bytes, bytesRate, duration, micros, percent, rate } from "./format.js";
import { History } from "./history.js";

/** Paths of requests, as the statistics name them. */
const PATHS = ["read_hit", "read_miss", "read_bypass", "write", "write_through", "write_past", "flush", "zero"];
/** The curve counts by hour: it hardly changes in a minute. */
const CURVE_MS = 60_000;

const requests = { title: "Requests", series: [
  { key: "reads_per_s", label: "reads", format: (n) => `${rate(n)}/s`, fill: true }, { key: "writes_per_s", label: "writes", format: (n) => `${rate(n)}/s` }],
  axes: [{ scale: "y", format: rate }] };
const hits = { title: "Hit ratio", series: [{ key: "read_hit_ratio", label: "of blocks read", format: percent, fill: true }],
  axes: [{ scale: "y", format: (n) => `${Math.round(n * 100)} %`, range: () => [0, 1] }] };
const dirty = { title: "Dirty level and age", series: [
  { key: "dirty_ratio", label: "of the cache", format: percent, fill: true },
  { key: "oldest_s", label: "oldest", format: duration, scale: "age", dash: true }],
  axes: [{ scale: "y", format: percent, range: (_, __, most) => [0, Math.max(most * 1.1, 0.001)] }, { scale: "age", format: duration, steps: SECONDS, range: (_, __, most) => [0, Math.max(most * 1.1, 10)] }] };
const destage = { title: "Destage", words: 1, series: [
  { key: "destaged_bytes_per_s", label: "written back", format: bytesRate, fill: true }, { key: "dirtied_bytes_per_s", label: "newly dirty", format: bytesRate }],
  axes: [{ scale: "y", format: bytes, steps: BYTES }] };
const flash = { title: "Written to flash", series: [
  { key: "flash_written_bytes_per_s", label: "to the devices", format: bytesRate, fill: true }, { key: "written_bytes_per_s", label: "by clients", format: bytesRate }],
  axes: [{ scale: "y", format: bytes, steps: BYTES }] };
const latency = { title: "Latency by path", series: PATHS.map((key) => ({ key, label: key.replaceAll("_", " "), format: micros })),
  axes: [{ scale: "y", format: micros, log: true }] };
const curve = { title: "Miss-ratio curve", words: 2, x: { format: bytes, log: true }, empty: "nothing was read yet", series: [
  { key: "miss", label: "misses", format: percent, fill: true, points: true }, { key: "now", label: "the cache as it is", format: percent, points: true }],
  axes: [{ scale: "y", format: (n) => `${Math.round(n * 100)} %`, range: (_, __, most) => [0, Math.max(most * 1.1, 0.01)] }] };

const OF_VOLUME = { requests, hits, latency, dirty, destage, curve };
const OF_POOL = { requests, hits, dirty, destage, flash, curve };

/** Shows what is selected: "volume=NAME" or "pool=NAME". */
export class Detail {
  constructor() {
    Object.assign(this, { root: byId("charts"), histories: new Map(), latencies: new Map(), charts: {}, selected: null, curveAt: 0, quantile: "p99_us" });
  }

  /** Remembers what everything did, also of what is not shown now. */
  remember(overview, now) {
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
    for (const all of [this.histories, this.latencies]) {
      for (const key of all.keys()) if (!keep.has(key)) all.delete(key);
    }
  }

  gap(now) {
    for (const history of [...this.histories.values(), ...this.latencies.values()]) history.gap(now);
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
    setText(byId("detail-words"), found ? (kind === "volume" ? volumeWords(found) : `${found.volumes.length} volumes, ${found.io_engine || "not open"}`) : kind ? "it is gone" : "");
    if (found && kind === "volume") this.charts.destage?.say(`limited by: ${found.destage_limited_by || "nothing"}`);
    this.draw();
  }

  split() {
    const at = this.selected?.indexOf("=") ?? -1;
    return at < 0 ? [null, null] : [this.selected.slice(0, at), this.selected.slice(at + 1)];
  }

  /** Asks what is known of the selected one alone. */
  async look(now) {
    const [kind, name] = this.split();
    if (!kind) return;
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
    if (!this.latencies.has(selected)) this.latencies.set(selected, new History());
    const values = {};
    for (const key of PATHS) {
      const last = paths?.[key]?.["10s"];
      if (!last || last.count === 0) continue;
      for (const quantile of ["p50_us", "p99_us"]) values[`${key}.${quantile}`] = last[quantile];
    }
    this.latencies.get(selected).add(now, values);
    if (this.selected === selected) this.draw();
  }

  draw() {
    const history = this.histories.get(this.selected);
    for (const [name, chart] of Object.entries(this.charts)) {
      if (name === "latency") {
        const latencies = this.latencies.get(this.selected);
        if (latencies) chart.show(latencies.data(PATHS.map((path) => `${path}.${this.quantile}`)));
      } else if (name !== "curve" && history) chart.show(history.data(chart.series.map((one) => one.key)));
    }
  }
}

function volumeWords(volume) {
  if (volume.state !== "serving") return [volume.state, volume.why].filter(Boolean).join(": ");
  const use = `${volume.connections} client${volume.connections === 1 ? "" : "s"}`;
  const lost = volume.lost_bytes > 0 ? `, ${bytes(volume.lost_bytes)} lost` : "";
  return `${bytes(volume.size_bytes)}, ${volume.mode}, ${use}, ${volume.cached_bytes === null ? "unknown" : bytes(volume.cached_bytes)} cached, from ${volume.backing}${lost}${volume.backing_why ? `. ${volume.backing_why}` : ""}`;
}

/** The curve, and what forebay advise says of twice and half the cache. */
function showCurve(chart, advice) {
  const sizes = advice.sizes;
  const misses = sizes.map((size) => 1 - size.hit_pct / 100);
  const at = sizes.findIndex((size) => size.times === 1);
  chart.show([sizes.map((size) => size.capacity_bytes), misses, misses.map((miss, index) => (index === at ? miss : null))], at);
  const words = (times, name) => {
    const other = sizes.find((size) => size.times === times);
    if (!other || at < 0) return null;
    const more = (size) => `${size.hit_pct.toFixed(1)}${size.is_lower_bound ? "+" : ""}`;
    const read = other.read_mean_us === null || sizes[at].read_mean_us === null ? "" : `, a read ${micros(sizes[at].read_mean_us)} → ${micros(other.read_mean_us)}`;
    return `${name}: hits ${more(sizes[at])} → ${more(other)} %${read}`;
  };
  chart.say([words(2, "twice"), words(0.5, "half")].filter(Boolean).join("\n"));
}
