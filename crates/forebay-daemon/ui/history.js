// What was: columns of numbers over time, for charts. The page remembers what it has seen, the daemon is not asked again.

/** How far back charts show. */
export const WINDOW_S = 600;

/** Rows of [time, values...], at most as old as charts show. */
export class History {
  constructor() {
    this.times = [];
    this.columns = new Map();
  }

  /** Adds a row; columns that it does not have get a gap there, and so do new columns for earlier rows. */
  add(time, values) {
    for (const name of Object.keys(values)) {
      if (!this.columns.has(name)) this.columns.set(name, new Array(this.times.length).fill(null));
    }
    this.times.push(time);
    for (const [name, column] of this.columns) column.push(Number.isFinite(values[name]) ? values[name] : null);
    const old = this.times.findIndex((at) => at >= time - WINDOW_S - 10);
    if (old > 30) {
      this.times.splice(0, old);
      for (const column of this.columns.values()) column.splice(0, old);
    }
  }

  /** Adds columns to the row of this time. */
  amend(time, values) {
    const row = this.times.lastIndexOf(time);
    if (row < 0) return;
    for (const [name, value] of Object.entries(values)) {
      if (!this.columns.has(name)) this.columns.set(name, new Array(this.times.length).fill(null));
      this.columns.get(name)[row] = Number.isFinite(value) ? value : null;
    }
  }

  /** A gap, where nothing was known: lines end there. */
  gap(time) {
    if (this.times.length > 0) this.add(time, {});
  }

  /** Times and the columns of these names, as uPlot takes them. */
  data(names) {
    const none = new Array(this.times.length).fill(null);
    return [this.times, ...names.map((name) => this.columns.get(name) ?? none)];
  }
}
