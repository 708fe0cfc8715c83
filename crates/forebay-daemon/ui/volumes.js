// The table of volumes: sorted by a column or by trouble and load, filtered by words, one of them shown below in detail.

import { byId, element, Keyed, setAttribute, setText } from "./dom.js";
import { bytes, bytesRate, duration, micros, percent, rate } from "./format.js";
import { hasTrouble } from "./rank.js";
import { pointsAt } from "./still.js";

/** From so many volumes on there is a filter. */
const FILTER_FROM = 8;
/** The state, and what is wrong with the backing store. */
export function stateOf(volume) {
  return hasTrouble(volume) ? `${volume.state}, backing ${volume.backing_state}` : volume.state;
}
const age = (volume) => volume.oldest_dirty_age_ns / 1e9;

const NAME = { name: "volume", value: (v) => v.name, words: true };
/** Further columns: what is in the head, the value to sort by, its text, and from which width on it is there (style.css). */
const COLUMNS = [
  { name: "state", value: stateOf, text: stateOf, words: true },
  { name: "pool", value: (v) => v.pool, text: (v) => v.pool, words: true, rank: 3 },
  { name: "mode", value: (v) => v.mode, text: (v) => v.mode || "-", words: true, rank: 3 },
  { name: "size", value: (v) => v.size_bytes, text: (v) => bytes(v.size_bytes), rank: 4 },
  { name: "hits", value: (v, r) => r.read_hit_ratio, text: (v, r) => percent(r.read_hit_ratio) },
  { name: "reads/s", value: (v, r) => r.reads_per_s, text: (v, r) => rate(r.reads_per_s) },
  { name: "read latency", label: "mean latency of reads, last 10 s", value: (v, r) => r.read_latency_mean_us, text: (v, r) => micros(r.read_latency_mean_us), rank: 2 },
  { name: "writes/s", value: (v, r) => r.writes_per_s, text: (v, r) => rate(r.writes_per_s) },
  { name: "write latency", label: "mean latency of writes, last 10 s", value: (v, r) => r.write_latency_mean_us, text: (v, r) => micros(r.write_latency_mean_us), rank: 2 },
  { name: "dirty", value: (v) => v.dirty_bytes, text: (v) => (v.dirty_bytes === null ? "-" : bytes(v.dirty_bytes)) },
  { name: "oldest", label: "age of the oldest dirty block", value: age, text: (v) => (v.dirty_bytes > 0 && v.state !== "absent" ? duration(age(v)) : "-"), rank: 2 },
  { name: "destage", value: (v, r) => r.destaged_bytes_per_s, text: (v, r) => bytesRate(r.destaged_bytes_per_s), rank: 2 },
  { name: "limited by", value: (v) => v.destage_limited_by, text: (v) => v.destage_limited_by || "-", words: true, rank: 2 },
];

const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : (b ?? -1) - (a ?? -1));

export class Volumes {
  constructor(root, page) {
    Object.assign(this, { page, order: null, reversed: false, overview: null });
    this.filter = byId("filter");
    this.filter.addEventListener("input", () => this.draw());
    this.empty = element("p", { class: "nothing" });
    const head = element("tr", {}, ...[NAME, ...COLUMNS].map((column) => this.heading(column)));
    const body = element("tbody");
    this.table = element("table", {}, element("thead", {}, head), body);
    root.append(this.table, this.empty);
    this.rows = new Keyed(body, (volume) => this.make(volume), (row, volume) => this.update(row, volume));
    this.heads = [...head.children];
  }

  /** A click sorts, another one reverses, a third one brings back the order by trouble and load. */
  heading(column) {
    const sort = () => {
      const again = this.order === column;
      if (!again || this.reversed) this.order = again ? null : column;
      this.reversed = again && !this.reversed;
      this.draw();
    };
    const { name, label, words, rank } = column;
    const button = element("button", { type: "button", onclick: sort, title: label ?? null }, name);
    const head = element("th", { scope: "col", "data-rank": rank ?? null, class: words ? null : "number", "data-name": name }, button);
    head.column = column;
    return head;
  }

  show(overview) {
    this.overview = overview;
    this.draw(pointsAt(this.table));
  }

  /** With `still`, rows stay where they are. */
  draw(still = false) {
    if (!this.overview) return;
    const { volumes, volume_rates: rates } = this.overview;
    const words = this.filter.value.trim().toLowerCase();
    this.filter.parentElement.hidden = volumes.length < FILTER_FROM && words === "";
    const has = (volume) => [volume.name, volume.pool, volume.state, volume.mode].some((text) => text.toLowerCase().includes(words));
    const shown = volumes.filter((volume) => words === "" || has(volume));
    const place = new Map(this.page.ranking.names.map((name, at) => [name, at]));
    const value = (volume) => this.order.value(volume, rates[volume.name] ?? {});
    if (this.order) shown.sort((a, b) => compare(value(a), value(b)) || a.name.localeCompare(b.name));
    else shown.sort((a, b) => place.get(a.name) - place.get(b.name));
    if (this.reversed) shown.reverse();
    for (const head of this.heads) {
      const down = !head.column.words !== this.reversed;
      setAttribute(head, "aria-sort", head.column === this.order ? (down ? "descending" : "ascending") : null);
    }
    this.rows.show(shown, (volume) => volume.name, still);
    const number = shown.length === volumes.length ? String(volumes.length) : `${shown.length} of ${volumes.length}`;
    setText(byId("volumes-count"), this.order || shown.length < 2 ? number : `${number}, by trouble and load`);
    this.table.hidden = shown.length === 0;
    this.empty.hidden = shown.length > 0;
    setText(this.empty, volumes.length === 0 ? "there are no volumes yet: forebay volume attach NAME --backing URI --export URI" : "no volume has these words");
  }

  make(volume) {
    const link = element("a", { href: `#volume=${encodeURIComponent(volume.name)}` }, volume.name);
    const cells = COLUMNS.map((column) => element("td", { "data-name": column.name, "data-rank": column.rank ?? null, class: column.words ? null : "number" }));
    const row = element("tr", {}, element("th", { scope: "row" }, link), ...cells);
    row.parts = { link, cells };
    return row;
  }

  update(row, volume) {
    const rates = this.overview.volume_rates[volume.name] ?? {};
    COLUMNS.forEach((column, at) => {
      const text = column.text(volume, rates);
      setText(row.parts.cells[at], text);
      if (column.words) setAttribute(row.parts.cells[at], "title", text); // it may be cut
    });
    setAttribute(row, "data-bad", volume.state === "serving" && volume.lost_bytes === 0 && !hasTrouble(volume) ? null : "");
    setAttribute(row, "title", volume.why ?? volume.backing_why);
    const selected = this.page.selected === `volume=${volume.name}`;
    setAttribute(row, "data-selected", selected ? "" : null);
    setAttribute(row.parts.link, "aria-current", selected ? "true" : null);
  }
}
