// Events as they happen, the newest first, after those that the daemon remembers. The stream goes on where it was after each
// interruption.

import { follow, Refused } from "./api.js";
import { element } from "./dom.js";
import { time } from "./format.js";

/** Older ones are not shown: the daemon has them. */
const SHOWN_MAX = 200;
/** Between two attempts, and between two drawings. */
const REST_MS = 3000;
const DRAW_MS = 200;

export class Events {
  constructor(root, severity, page) {
    Object.assign(this, { root, severity, page, last: null, waiting: [], timer: null, stop: null });
    this.empty = element("p", { class: "nothing" }, "no events");
    this.list = element("ol", { class: "events" });
    root.append(this.empty, this.list);
    severity.addEventListener("change", () => this.restart());
  }

  /** From the beginning: another severity, or another token. */
  restart() {
    this.pause();
    this.last = null;
    this.waiting = [];
    this.list.replaceChildren();
    this.empty.hidden = false;
    this.resume();
  }

  pause() {
    this.stop?.abort();
    this.stop = null;
  }

  resume() {
    if (!this.stop && !document.hidden) this.run();
  }

  async run() {
    const stop = new AbortController();
    this.stop = stop;
    const path = `/v1/events?after=oldest&severity=${encodeURIComponent(this.severity.value)}`;
    while (!stop.signal.aborted) {
      try {
        await follow(path, this.last, stop.signal, (event) => this.take(event));
      } catch (error) {
        // Without a connection or a token the page says so; the stream is only tried again.
        if (error instanceof Refused && error.status === 400) this.last = null;
      }
      if (!stop.signal.aborted) await new Promise((done) => setTimeout(done, REST_MS));
    }
  }

  take({ id, event, data }) {
    if (id) this.last = id;
    // Progress is with the jobs.
    if (!data || event === "job.progress") return;
    let told;
    try {
      told = JSON.parse(data);
    } catch {
      return;
    }
    if (event === "gap") told = { severity: "warning", message: `events are missing here (${told.reason})`, kind: "gap", time: new Date() };
    this.waiting.push(told);
    if (this.waiting.length > SHOWN_MAX) this.waiting.shift();
    this.timer ??= setTimeout(() => this.draw(), DRAW_MS);
  }

  draw() {
    this.timer = null;
    this.list.prepend(...this.waiting.reverse().map((event) =>
      element("li", {}, element("time", {}, time(event.time)), element("span", { class: "severity", "data-severity": event.severity }, event.severity),
        element("span", {}, element("b", {}, event.kind), " ", event.message))));
    this.waiting = [];
    while (this.list.childElementCount > SHOWN_MAX) this.list.lastElementChild.remove();
    this.empty.hidden = this.list.childElementCount > 0;
  }
}
