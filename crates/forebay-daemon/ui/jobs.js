// Jobs: those under way first, then the newest that have ended.

import { call } from "./api.js";
import { byId, element, Keyed, setAttribute, setText } from "./dom.js";
import { bytes, bytesRate, duration, time } from "./format.js";
import { pointsAt } from "./still.js";

export const nameOf = (job) => `${job.kind} of ${job.volume ?? job.pool}`;
export const isOpen = (job) => job.state === "queued" || job.state === "running";

function words(job) {
  if (!isOpen(job)) return [job.state, `at ${time(job.finished)}`, job.error].filter(Boolean).join(" ");
  const left = job.bytes_left === null ? "" : `${bytes(job.bytes_left)} left`;
  const speed = job.rate_bytes_per_s === null ? "" : bytesRate(job.rate_bytes_per_s);
  const eta = job.eta_s === null ? "" : `${duration(job.eta_s)} to go`;
  const limit = job.limited_by ? `limited by: ${job.limited_by}` : "";
  return [job.stopping ? "is being stopped" : job.phase, left, speed, eta, limit, job.deadline_at_risk ? "will miss its deadline" : ""].filter(Boolean).join(", ");
}

const UNDONE = "The daemon undoes what the job began. Blocks that were written back stay written back.";
const cancelJob = (id) => call("DELETE", `/v1/jobs/${encodeURIComponent(id)}`);

export class Jobs {
  constructor(root, page) {
    Object.assign(this, { root, page });
    const list = element("ul", { class: "jobs" });
    root.append(list);
    this.list = new Keyed(list, (job) => this.make(job), (item, job) => this.update(item, job));
  }

  show(overview) {
    const newest = [...overview.jobs].reverse();
    const jobs = [...newest.filter(isOpen), ...newest.filter((job) => !isOpen(job))];
    this.root.hidden = jobs.length === 0;
    setText(byId("jobs-count"), jobs.length === 0 ? "none" : "");
    this.list.show(jobs, (job) => job.id, pointsAt(this.root));
  }

  make(job) {
    const name = nameOf(job);
    const parts = { words: element("p"), bar: element("progress", { max: "100", "aria-label": `progress of ${name}` }),
      button: element("button", { type: "button", "aria-label": `cancel ${name}`, onclick: () => this.cancel(job.id, name) }, "cancel") };
    const item = element("li", {}, element("div", { class: "head" }, element("span", {}, element("b", {}, name), " ", element("small", {}, job.id)), parts.button),
      parts.bar, parts.words);
    item.parts = parts;
    return item;
  }

  update({ parts }, job) {
    setText(parts.words, words(job));
    parts.bar.hidden = !isOpen(job);
    if (job.percent === null) parts.bar.removeAttribute("value");
    else parts.bar.value = job.percent;
    parts.button.hidden = !this.page.mayOperate || !isOpen(job);
    parts.button.disabled = !this.page.changes || job.stopping;
    setAttribute(parts.words, "data-bad", job.state === "failed" ? "" : null);
  }

  async cancel(id, name) {
    const sure = await this.page.ask(`Cancel ${name}?`, UNDONE, "cancel the job");
    if (sure) await this.page.attempt(() => cancelJob(id));
  }

  /** The button in the header: a choice among all jobs under way. */
  async cancelSome() {
    const open = this.page.overview.jobs.filter((job) => isOpen(job) && !job.stopping);
    const choices = open.map((job) => ({ value: job.id, label: `${nameOf(job)} (${job.id})`, checked: open.length === 1 }));
    const ids = await this.page.pick("Cancel jobs", UNDONE, "cancel the jobs", choices);
    if (ids.length > 0) await this.page.attempt(() => Promise.all(ids.map(cancelJob)));
  }
}
