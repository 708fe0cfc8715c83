// A card for each pool: how it stands, how full it is, its devices, and what was written to them.

import { element, Keyed, setAttribute, setText } from "./dom.js";
import { bytes, bytesRate, duration, percent } from "./format.js";

/** How a pool stands, in a word, and whether that is bad. */
export function stateOf(pool) {
  if (pool.not_open) return ["not open", true];
  if (pool.not_answering) return ["does not answer", true];
  if (pool.cache_failed) return ["cache failed", true];
  if (pool.fenced) return ["fenced", true];
  const trouble = pool.devices.find((device) => !["", "ok", "filling", "out", "missing"].includes(device.state ?? ""));
  if (trouble) return [`device ${trouble.state}`, true];
  if (pool.mirror && pool.mirror !== "whole") return [pool.mirror, true];
  return [pool.mirror ? "open, mirror whole" : "open", false];
}

function words(pool, rates) {
  if (pool.not_open) return pool.why ?? "it is not open";
  if (pool.not_answering) return pool.why;
  const flash = rates
    ? `flash: ${bytes(rates.flash_written_bytes)} written in ${duration(rates.uptime_s)}, now ${bytesRate(rates.flash_written_bytes_per_s)}`
    : "";
  const lost = pool.lost_bytes > 0 ? `; lost: ${bytes(pool.lost_bytes)} in ${pool.lost_ranges} ranges` : "";
  const absent = Object.entries(pool.absent).filter(([, dirty]) => dirty > 0).map(([name, dirty]) => `${name}, ${bytes(dirty)} dirty`);
  return flash + lost + (absent.length > 0 ? `; not attached: ${absent.join("; ")}` : "");
}

/** What a device reports of its wear, and how long it lasts: a line for each, as `forebay pool show` has them. */
function wearOf({ path, flash }) {
  const disks = (flash?.wear ?? []).map((disk) => {
    const said = [
      typeof disk.used_pct === "number" ? `${disk.used_pct} % of its rated life used` : null,
      typeof disk.spare_pct === "number" ? `${disk.spare_pct} % spare` : null,
      disk.media_errors > 0 ? `${disk.media_errors} media errors` : null,
      disk.failing ? "it calls itself failing" : null,
      ...disk.warnings,
    ];
    return `${disk.disk}: ${said.filter((words) => words).join(", ")}`;
  });
  return flash?.life ? [...disks, `${path} lasts: ${flash.life}`] : disks;
}

/** How the endurance budget stands, and what it costs. */
function budgetOf({ endurance }) {
  if (!endurance) return [];
  const cost = endurance.read_blocks > 0 ? `, ${percent(endurance.missed_blocks / endurance.read_blocks)} of the hits at most` : "";
  return [`endurance budget: ${bytes(endurance.budget_bytes)} a day; ${endurance.restraint}${cost}`];
}

export class Pools {
  constructor(root) {
    this.empty = element("p", { class: "nothing" }, "there are no pools yet: forebay pool create NAME --device DEVICE");
    const list = element("div", { class: "cards" });
    root.append(this.empty, list);
    this.cards = new Keyed(list, (pool) => this.make(pool), (card, pool) => this.update(card, pool));
  }

  show(overview, selected) {
    this.overview = overview;
    this.selected = selected;
    this.empty.hidden = overview.pools.length > 0;
    this.cards.show(overview.pools, (pool) => pool.name);
  }

  make(pool) {
    const parts = {
      link: element("a", { href: `#pool=${encodeURIComponent(pool.name)}` }, pool.name),
      state: element("span", { class: "state" }), devices: element("p", { class: "devices" }), wear: element("p", { class: "devices" }), words: element("p"),
      cached: element("span", { class: "cached" }), dirty: element("span", { class: "dirty" }), level: element("p"),
    };
    const bar = element("div", { class: "bar", "aria-hidden": "true" }, parts.dirty, parts.cached);
    const card = element("article", { class: "card" }, element("h3", {}, parts.link, parts.state), parts.level, bar, parts.words, parts.devices, parts.wear);
    card.parts = parts;
    return card;
  }

  update({ parts }, pool) {
    const [state, bad] = stateOf(pool);
    setText(parts.state, state);
    setAttribute(parts.state, "data-bad", bad ? "" : null);
    setAttribute(parts.link, "aria-current", this.selected === `pool=${pool.name}` ? "true" : null);
    const clean = Math.max(0, pool.cached_bytes - pool.dirty_bytes);
    const limit = this.overview.pool_rates[pool.name]?.dirty_limit_pct;
    setText(parts.level, pool.not_open || pool.not_answering ? "what is in its cache is not known" : `${bytes(pool.cached_bytes)} cached of ${bytes(pool.capacity_bytes)}, ${bytes(pool.dirty_bytes)} of it dirty ` +
      `(${percent(pool.dirty_bytes / pool.capacity_bytes)}${limit ? `, limit ${limit} %` : ""})`);
    parts.dirty.style.width = `${(pool.dirty_bytes / pool.capacity_bytes) * 100 || 0}%`;
    parts.cached.style.width = `${(clean / pool.capacity_bytes) * 100 || 0}%`;
    setText(parts.words, words(pool, this.overview.pool_rates[pool.name]));
    setText(parts.devices, pool.devices.map((device) => `${device.path} (${bytes(device.size_bytes)}${device.state ? `, ${device.state}` : ""})`).join("  "));
    setText(parts.wear, [...pool.devices.flatMap(wearOf), ...budgetOf(pool)].join("; "));
  }
}
