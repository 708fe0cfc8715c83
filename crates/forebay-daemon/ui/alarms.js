// Active alarms, the gravest and newest first: a bar in the header with their number and the first of them, and a list that the bar
// opens. The bar is always there and always as high, and the list lies over the page, so an alarm moves nothing.

import { call } from "./api.js";
import { byId, element, Keyed, setAttribute, setText } from "./dom.js";
import { time } from "./format.js";
import { pointsAt } from "./still.js";

const RANK = { error: 0, warning: 1, info: 2, debug: 3 };
/** More are counted, and not shown. */
const SHOWN_MAX = 100;

const nameOf = (alarm) => [alarm.condition, alarm.volume ?? alarm.pool].filter(Boolean).join(" of ");
const acknowledge = (id) => call("POST", `/v1/alarms/${encodeURIComponent(id)}/acknowledge?by=dashboard`);

export class Alarms {
  constructor(root, page) {
    Object.assign(this, { root, page, toggle: byId("alarms-toggle") });
    this.empty = element("p", { class: "nothing" }, "no alarms");
    const list = element("ul", { class: "alarms" });
    this.more = element("p", { class: "nothing" });
    root.append(this.empty, list, this.more);
    this.list = new Keyed(list, (alarm) => this.make(alarm), (item, alarm) => this.update(item, alarm));
    this.toggle.addEventListener("click", () => this.open(root.hidden));
    const bar = byId("alarm-bar");
    bar.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || root.hidden) return;
      this.open(false);
      this.toggle.focus();
    });
    document.addEventListener("pointerdown", (event) => {
      if (!event.target.closest("header, dialog")) this.open(false);
    });
  }

  open(open) {
    this.root.hidden = !open;
    setAttribute(this.toggle, "aria-expanded", String(open));
    if (!open) this.toggle.disabled = (this.page.overview?.alarms_total ?? 0) === 0;
  }

  show(overview) {
    const all = [...overview.alarms];
    all.sort((a, b) => RANK[a.severity] - RANK[b.severity] || (a.raised < b.raised ? 1 : -1));
    const total = overview.alarms_total;
    const shown = all.slice(0, SHOWN_MAX);
    const number = total === 0 ? "no alarms" : `${total} alarm${total === 1 ? "" : "s"}`;
    const [first] = all;
    setText(byId("alarms-count"), number);
    setText(byId("alarms-first"), first ? `${nameOf(first)} (${first.severity}): ${first.message}` : "");
    setText(byId("alarms-told"), first ? `${number}: ${nameOf(first)}` : number);
    setAttribute(byId("alarm-bar"), "data-bad", total > 0 ? "" : null);
    // An open list can be closed, also when it has become empty.
    this.toggle.disabled = total === 0 && this.root.hidden;
    this.empty.hidden = total > 0;
    this.list.show(shown, (alarm) => alarm.id, pointsAt(this.root));
    this.more.hidden = total <= shown.length;
    setText(this.more, total > shown.length ? `and ${total - shown.length} more: forebay alarms` : "");
  }

  make(alarm) {
    const parts = { severity: element("span", { class: "severity" }), about: element("b"), when: element("small"), message: element("p"),
      known: element("small"),
      button: element("button", { type: "button", onclick: () => this.page.attempt(() => acknowledge(alarm.id)) }, "acknowledge") };
    const item = element("li", {}, element("div", { class: "head" }, element("span", {}, parts.severity, " ", parts.about, " ", parts.when),
      element("span", {}, parts.known, parts.button)), parts.message);
    item.parts = parts;
    return item;
  }

  update({ parts }, alarm) {
    setText(parts.severity, alarm.severity);
    setAttribute(parts.severity, "data-severity", alarm.severity);
    setText(parts.about, nameOf(alarm));
    setText(parts.when, `since ${time(alarm.raised)}${alarm.repeats > 0 ? `, seen ${alarm.repeats + 1} times` : ""}`);
    setText(parts.message, alarm.message);
    setText(parts.known, alarm.acknowledged ? `acknowledged by ${alarm.acknowledged.by}` : "");
    parts.button.hidden = !this.page.mayOperate || Boolean(alarm.acknowledged);
    parts.button.disabled = !this.page.changes;
    setAttribute(parts.button, "aria-label", `acknowledge ${nameOf(alarm)}`);
  }

  /** The button in the header: a choice among all alarms that nobody has acknowledged. */
  async acknowledgeSome() {
    const open = this.page.overview.alarms.filter((alarm) => !alarm.acknowledged).slice(0, SHOWN_MAX);
    const choices = open.map((alarm) => ({ value: alarm.id, label: nameOf(alarm), checked: true }));
    const ids = await this.page.pick("Acknowledge alarms", "They stay until their conditions end.", "acknowledge", choices);
    if (ids.length > 0) await this.page.attempt(() => Promise.all(ids.map(acknowledge)));
  }
}
