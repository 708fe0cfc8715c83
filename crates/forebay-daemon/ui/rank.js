// The order of volumes: those in trouble first, then the busiest.

const ERROR = 0;
const WARNING = 1;
const NONE = 2;
/** A volume passes another one if it is so many times as busy: the order is no dance of equals. */
const BUSIER = 2;

export const hasTrouble = (volume) => Boolean(volume.backing_state) && volume.backing_state !== "ok";

function troubleOf(volume, alarms) {
  if (volume.lost_bytes > 0 || alarms.has("error")) return ERROR;
  return volume.state !== "serving" || hasTrouble(volume) || alarms.has("warning") ? WARNING : NONE;
}

export class Ranking {
  constructor() {
    this.names = [];
    this.ranks = new Map();
  }

  /** Brings the order up to date. */
  take(overview) {
    const alarms = new Map();
    for (const { volume, severity } of overview.alarms) {
      if (volume) alarms.set(volume, (alarms.get(volume) ?? new Set()).add(severity));
    }
    this.ranks = new Map(overview.volumes.map((volume) => {
      const rates = overview.volume_rates[volume.name];
      return [volume.name, { trouble: troubleOf(volume, alarms.get(volume.name) ?? new Set()), load: (rates?.reads_per_s ?? 0) + (rates?.writes_per_s ?? 0), served: volume.state === "serving" }];
    }));
    const known = new Set(this.names);
    const added = [...this.ranks.keys()].filter((name) => !known.has(name));
    const rank = (name) => this.ranks.get(name);
    added.sort((a, b) => rank(a).trouble - rank(b).trouble || rank(b).load - rank(a).load || a.localeCompare(b));
    const names = [...this.names.filter((name) => this.ranks.has(name)), ...added];
    // Each exchange takes away an inversion, so this ends.
    const passes = (a, b) => a.trouble > b.trouble || (a.trouble === b.trouble && b.load > BUSIER * a.load + 1);
    for (let last = 1; last < names.length; last += 1) {
      for (let here = last; here > 0 && passes(rank(names[here - 1]), rank(names[here])); here -= 1) {
        [names[here - 1], names[here]] = [names[here], names[here - 1]];
      }
    }
    this.names = names;
  }

  /**
   * The volume whose charts are shown while nobody has chosen one: the first that is served. `shown` stays, unless it is gone, another
   * one is in graver trouble, or it is idle and another one is not.
   */
  first(shown) {
    const served = this.names.filter((name) => this.ranks.get(name).served);
    const best = served[0] ?? this.names[0] ?? null;
    const has = this.ranks.get(shown);
    if (!has || !has.served) return best;
    const other = this.ranks.get(best);
    return other.trouble < has.trouble || (has.load === 0 && other.load > 0) ? best : shown;
  }
}
