// All volumes together, in a row of figures.

import { element, setAttribute, setText } from "./dom.js";
import { bytes, bytesRate, count, duration, micros, percent, rate } from "./format.js";

const sum = (all, key) => all.reduce((total, one) => total + (one[key] ?? 0), 0);
/** The mean of a latency, weighed by how many requests had it. */
const mean = (rates, key, weight) => sum(rates.map((one) => ({ v: (one[key] ?? 0) * (one[weight] ?? 0) })), "v") / sum(rates, weight);

/** Name, and what is said of everything: a figure, words below it, and whether it is bad. */
const TILES = [
  ["volumes", ({ volumes }) => {
    const served = volumes.filter((volume) => volume.state === "serving").length;
    return [served === volumes.length ? count(served) : `${served} of ${volumes.length}`, "are served", served < volumes.length];
  }],
  ["hits", ({ rates }) => {
    const [hits, misses] = [sum(rates, "read_hit_blocks_per_s"), sum(rates, "read_miss_blocks_per_s")];
    return [percent(hits / (hits + misses)), "of blocks read"];
  }],
  ["reads", ({ rates }) => [`${rate(sum(rates, "reads_per_s"))}/s`, `mean ${micros(mean(rates, "read_latency_mean_us", "reads_per_s"))}`]],
  ["writes", ({ rates }) => [`${rate(sum(rates, "writes_per_s"))}/s`, `mean ${micros(mean(rates, "write_latency_mean_us", "writes_per_s"))}`]],
  ["dirty", ({ volumes }) => {
    const dirty = sum(volumes, "dirty_bytes");
    const oldest = Math.max(0, ...volumes.map((volume) => volume.oldest_dirty_age_ns / 1e9));
    return [bytes(dirty), dirty > 0 ? `oldest ${duration(oldest)}` : "nothing"];
  }],
  ["destage", ({ rates }) => [bytesRate(sum(rates, "destaged_bytes_per_s")), `new ${bytesRate(sum(rates, "dirtied_bytes_per_s"))}`]],
  ["flash writes", ({ poolRates }) => [bytes(sum(poolRates, "flash_written_bytes_per_s") * 86_400), "a day, at this rate"]],
  ["lost", ({ volumes }) => {
    const lost = sum(volumes, "lost_bytes");
    return [bytes(lost), lost > 0 ? "by the cache" : "nothing", lost > 0];
  }],
];

export class Tiles {
  constructor(root) {
    this.parts = TILES.map(([name]) => {
      const [figure, words] = [element("strong", {}, "-"), element("small")];
      const tile = element("div", { class: "tile" }, element("span", {}, name), figure, words);
      root.append(tile);
      return { tile, figure, words };
    });
  }

  show(overview) {
    const everything = { ...overview, rates: Object.values(overview.volume_rates), poolRates: Object.values(overview.pool_rates) };
    TILES.forEach(([, look], at) => {
      const [figure, words, bad] = look(everything);
      setText(this.parts[at].figure, figure);
      setText(this.parts[at].words, words);
      setAttribute(this.parts[at].tile, "data-bad", bad ? "" : null);
    });
  }
}
