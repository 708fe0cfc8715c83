// Active alarms, the worst and newest first. Who may operate can say that somebody knows.

import { call } from "./api.js";
import { byId, element, Keyed, setAttribute, setText } from "./dom.js";
import { time } from "./format.js";

const RANK = { error: 0, warning: 1, info: 2, debug: 3 };
/** More are counted, and not shown. */
const SHOWN_MAX = 100;

export class Alarms {
  constructor(root, page) {
    this.page = page;
    this.empty = element("p", { class: "nothing" }, "no alarms");
    const list = element("ul", { class: "alarms" });
    this.more = element("p", { class: "nothing" });
    root.append(this.empty, list, this.more);
    this.list = new Keyed(list, (alarm) => this.make(alarm), (item, alarm) => this.update(item, alarm));
  }

  show(overview) {
    const all = [...overview.alarms];
    all.sort((a, b) => RANK[a.severity] - RANK[b.severity] || (a.raised < b.raised ? 1 : -1));
    const total = overview.alarms_total;
    this.empty.hidden = total > 0;
    setText(byId("alarms-count"), total > 0 ? String(total) : "");
    setAttribute(byId("alarms-count"), "data-bad", total > 0 ? "" : null);
    const shown = all.slice(0, SHOWN_MAX);
    this.list.show(shown, (alarm) => alarm.id);
    setText(this.more, total > shown.length ? `and ${total - shown.length} more: forebay alarms` : "");
  }

  make(alarm) {
    const parts = { severity: element("span", { class: "severity" }), about: element("b"), when: element("small"), message: element("p"),
      known: element("small"),
      button: element("button", { type: "button", onclick: () => this.acknowledge(alarm.id) }, "acknowledge") };
    const item = element("li", {}, element("div", { class: "head" }, element("span", {}, parts.severity, " ", parts.about, " ", parts.when),
      element("span", {}, parts.known, parts.button)), parts.message);
    item.parts = parts;
    return item;
  }

  update({ parts }, alarm) {
    setText(parts.severity, alarm.severity);
    setAttribute(parts.severity, "data-severity", alarm.severity);
    setText(parts.about, [alarm.condition, alarm.volume ?? alarm.pool].filter(Boolean).join(" of "));
    setText(parts.when, `since ${time(alarm.raised)}${alarm.repeats > 0 ? `, seen ${alarm.repeats + 1} times` : ""}`);
    setText(parts.message, alarm.message);
    setText(parts.known, alarm.acknowledged ? `known to ${alarm.acknowledged.by}` : "");
    parts.button.hidden = !this.page.changes || Boolean(alarm.acknowledged);
    setAttribute(parts.button, "aria-label", `acknowledge ${alarm.condition}`);
  }

  async acknowledge(id) {
    await this.page.attempt(() => call("POST", `/v1/alarms/${encodeURIComponent(id)}/acknowledge?by=dashboard`));
  }
}
