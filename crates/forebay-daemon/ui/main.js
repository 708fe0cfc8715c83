// The page: asks the daemon, hands the answers to the parts, and says when there are none.
//
// One look at everything each two seconds, and one at what is selected; none while the tab is hidden. Whatever goes wrong, the next
// look is tried: a daemon that was restarted is found again.

import { get, Refused, token } from "./api.js";
import { Alarms } from "./alarms.js";
import { followColours } from "./charts.js";
import { Detail } from "./detail.js";
import { byId, element, setAttribute, setText } from "./dom.js";
import { Events } from "./events.js";
import { bytes, duration, time } from "./format.js";
import { isOpen, Jobs } from "./jobs.js";
import { Pools } from "./pools.js";
import { Ranking } from "./rank.js";
import { keepHeights, pointsAt, releaseHeights } from "./still.js";
import { Tiles } from "./tiles.js";
import { Volumes } from "./volumes.js";

const EVERY_MS = 2000;
const CHANGES = "forebay-changes";

class Page {
  constructor() {
    Object.assign(this, { changes: false, mayOperate: false, ranking: new Ranking(), overview: null, selected: null, answered: null, timer: null, looking: false, wake: false });
    this.alarms = new Alarms(byId("alarms"), this);
    this.jobs = new Jobs(byId("jobs"), this);
    this.parts = [new Tiles(byId("tiles")), new Pools(byId("pools")), this.alarms, new Volumes(byId("volume-table"), this), this.jobs];
    // Boxes above something that can be clicked, whose height is that of their content.
    this.boxes = [byId("pools"), byId("volume-table"), byId("detail-words")];
    this.detail = new Detail();
    this.events = new Events(byId("events"), byId("severity"), this);
    followColours();
    addEventListener("hashchange", () => this.choose());
    document.addEventListener("visibilitychange", () => this.visible());
    byId("sign-out").addEventListener("click", () => this.signOut());
    byId("acknowledge").addEventListener("click", () => this.alarms.acknowledgeSome());
    byId("cancel").addEventListener("click", () => this.jobs.cancelSome());
    const changes = byId("allow");
    changes.checked = sessionStorage.getItem(CHANGES) === "yes";
    changes.addEventListener("change", () => {
      sessionStorage.setItem(CHANGES, changes.checked ? "yes" : "no");
      if (this.overview) this.show(this.overview);
    });
    byId("login").addEventListener("close", () => this.signIn());
    // Without the token there is nothing to see: Escape does not close it.
    byId("login").addEventListener("cancel", (event) => event.preventDefault());
  }

  visible() {
    if (document.hidden) {
      clearTimeout(this.timer);
      this.events.pause();
    } else {
      this.detail.gap(Date.now() / 1000);
      this.look();
    }
  }

  /** One look. Only one is under way at a time, and the next comes when it has ended. */
  async look() {
    if (this.looking) {
      this.wake = true;
      return;
    }
    clearTimeout(this.timer);
    this.looking = true;
    this.wake = false;
    const began = Date.now();
    try {
      const overview = await get("/v1/overview");
      this.answered = new Date();
      this.detail.remember(overview, began / 1000);
      keepHeights(document.querySelector("main"), this.boxes);
      this.ranking.take(overview);
      this.show(overview);
      // What is selected may be gone in the meantime.
      await this.detail.look(began / 1000).catch((error) => this.unlessUnknown(error));
      this.connection("live", "live");
      this.events.resume();
    } catch (error) {
      this.trouble(error);
    }
    this.looking = false;
    if (document.hidden || byId("login").open) return;
    const rest = this.wake ? 0 : Math.max(200, EVERY_MS - (Date.now() - began));
    this.timer = setTimeout(() => this.look(), rest);
  }

  unlessUnknown(error) {
    if (!(error instanceof Refused) || ![404, 409].includes(error.status)) throw error;
  }

  show(overview) {
    this.overview = overview;
    document.querySelector("main").removeAttribute("data-waiting");
    this.choose(false);
    this.mayOperate = overview.may_operate;
    this.changes = this.mayOperate && byId("allow").checked;
    byId("changes").hidden = !this.mayOperate;
    byId("acknowledge").disabled = !this.changes || !overview.alarms.some((alarm) => !alarm.acknowledged);
    byId("cancel").disabled = !this.changes || !overview.jobs.some((job) => isOpen(job) && !job.stopping);
    byId("sign-out").hidden = token.get() === null;
    const { daemon } = overview;
    setText(byId("about"), `${location.host}, version ${daemon.version}, up ${duration(Date.now() / 1000 - daemon.started_unix_s)}, ${bytes(daemon.resident_bytes)}`);
    const bad = overview.alarms_total > 0 ? `(${overview.alarms_total}) ` : "";
    document.title = `${bad}Forebay ${location.hostname}`;
    setAttribute(byId("icon"), "href", bad ? "icon-alarm.svg" : "icon.svg");
    for (const part of this.parts) part.show(overview, this.selected);
    this.detail.show(overview);
  }

  /** The address says what is selected: what a person has chosen. Without that, the first volume in trouble, or the busiest. */
  choose(again = true) {
    const [, kind, name] = /^#(volume|pool)=(.*)$/.exec(location.hash) ?? [];
    let selected = null;
    if (kind) {
      try {
        selected = `${kind}=${decodeURIComponent(name)}`;
      } catch {
        selected = null; // an address that somebody has cut
      }
    }
    const { overview } = this;
    const shown = this.selected?.startsWith("volume=") ? this.selected.slice("volume=".length) : null;
    if (!selected && overview?.volumes.some((volume) => volume.name === shown) && pointsAt(document.querySelector("main"))) selected = this.selected;
    if (!selected && overview?.volumes.length > 0) selected = `volume=${this.ranking.first(shown)}`;
    if (!selected && overview?.pools.length > 0) selected = `pool=${overview.pools[0].name}`;
    if (selected === this.selected) return;
    this.selected = selected;
    this.detail.select(selected);
    if (again && overview) {
      releaseHeights(this.boxes);
      this.show(overview);
      this.look();
    }
  }

  connection(state, words) {
    setAttribute(byId("connection"), "data-state", state);
    setText(byId("connection"), words);
  }

  trouble(error) {
    const now = Date.now() / 1000;
    if (error instanceof Refused && error.status === 401) {
      this.askForToken();
      return;
    }
    this.detail.gap(now);
    const since = this.answered ? `no connection since ${time(this.answered)}` : "no connection";
    this.connection("gone", error instanceof Refused ? error.message : since);
  }

  askForToken() {
    const refused = token.get() !== null;
    token.forget();
    this.events.pause();
    this.connection("gone", "no token");
    setText(byId("login-error"), refused ? "the daemon does not know this token" : "");
    byId("token").value = "";
    if (!byId("login").open) byId("login").showModal();
  }

  signIn() {
    const given = byId("token").value.trim();
    byId("token").value = "";
    // What cannot be in a header is no token.
    if (/^[\x21-\x7e]+$/.test(given)) token.set(given);
    this.look();
  }

  signOut() {
    token.forget();
    location.reload();
  }

  /** Asks whether something is to be done. */
  ask(title, words, yes, choices = []) {
    const dialog = byId("ask");
    byId("ask-choices").replaceChildren(...choices.map(({ value, label, checked }) =>
      element("label", {}, element("input", { type: "checkbox", value, checked }), label)));
    setText(byId("ask-title"), title);
    setText(byId("ask-words"), words);
    setText(dialog.querySelector("button[value=yes]"), yes);
    dialog.returnValue = "no";
    dialog.showModal();
    return new Promise((answer) => dialog.addEventListener("close", () => answer(dialog.returnValue === "yes"), { once: true }));
  }

  /** Asks to which of several something is to be done: gives the values of those, none if it is left. */
  async pick(title, words, yes, choices) {
    if (!await this.ask(title, words, yes, choices)) return [];
    return [...byId("ask-choices").querySelectorAll("input:checked")].map((one) => one.value);
  }

  /** Does something, and looks what came of it; a refusal is shown in the daemon's words. */
  async attempt(change) {
    try {
      await change();
    } catch (error) {
      await this.ask("That was not done", error.message, "understood");
    }
    this.look();
  }
}

new Page().look();
