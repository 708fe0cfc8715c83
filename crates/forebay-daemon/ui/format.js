// Numbers as the command line prints them (crates/forebay-cli/src/screen.rs). What is not known is a dash.

const DASH = "-";
const known = (number) => typeof number === "number" && Number.isFinite(number);

/** 1234567 as "1,234,567". */
export function count(number) {
  return known(number) ? Math.round(number).toString().replace(/\B(?=(\d{3})+$)/g, ",") : DASH;
}

/** Bytes in the largest binary unit, with one decimal. */
export function bytes(number) {
  if (!known(number)) return DASH;
  if (number < 1024) return `${Math.round(number)} B`;
  const units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
  let value = number / 1024;
  let unit = 0;
  while (value >= 1023.95 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return `${value.toFixed(1)} ${units[unit]}`;
}

/** Microseconds in the unit that fits. */
export function micros(us) {
  if (!known(us)) return DASH;
  if (us < 1) return `${Math.round(us * 1e3)} ns`;
  if (us < 1e3) return `${us.toFixed(0)} µs`;
  if (us < 1e4) return `${(us / 1e3).toFixed(2)} ms`;
  if (us < 1e6) return `${(us / 1e3).toFixed(0)} ms`;
  return `${(us / 1e6).toFixed(1)} s`;
}

/** Seconds as "1h 02m 03s", from a day on as "1d 02h 03m". */
export function duration(seconds) {
  if (!known(seconds)) return DASH;
  const two = (number) => String(number).padStart(2, "0");
  const all = Math.floor(seconds);
  const [hours, minutes] = [Math.floor(all / 3600), Math.floor(all / 60) % 60];
  if (hours >= 24) return `${Math.floor(hours / 24)}d ${two(hours % 24)}h ${two(minutes)}m`;
  if (hours > 0) return `${hours}h ${two(minutes)}m ${two(all % 60)}s`;
  return minutes > 0 ? `${minutes}m ${two(all % 60)}s` : `${all}s`;
}

/** A share from 0 to 1. */
export function percent(ratio) {
  return known(ratio) ? `${(ratio * 100).toFixed(1)} %` : DASH;
}

/** A rate: one decimal below ten. */
export function rate(number) {
  if (!known(number)) return DASH;
  return number > 0 && number < 10 ? number.toFixed(1) : count(number);
}

/** Bytes in a second. */
export function bytesRate(number) {
  return known(number) ? `${bytes(number)}/s` : DASH;
}

/** The time of day, of a date or of text in RFC 3339; with the day if that is another one. */
export function time(when, now = new Date()) {
  const date = new Date(when);
  if (Number.isNaN(date.getTime())) return DASH;
  const clock = date.toLocaleTimeString([], { hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false });
  if (date.toDateString() === now.toDateString()) return clock;
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${clock}`;
}

// Labels of an axis: of all its ticks at once, so that no two of them are the same, in one unit, with the decimals that they need. What
// uPlot leaves out is null.

const DECIMALS_MAX = 6;

/** The decimals that all of these need. */
function decimals(numbers) {
  for (let digits = 0; digits < DECIMALS_MAX; digits += 1) {
    if (numbers.every((number) => Math.abs(number * 10 ** digits - Math.round(number * 10 ** digits)) < 1e-6)) return digits;
  }
  return DECIMALS_MAX;
}

function labels(splits, divisor, unit) {
  const numbers = splits.filter((split) => split !== null).map((split) => split / divisor);
  const digits = decimals(numbers);
  return splits.map((split) => {
    if (split === null) return null;
    const number = split / divisor;
    return `${digits === 0 ? count(number) : number.toFixed(digits)}${unit}`;
  });
}

const largest = (splits) => Math.max(0, ...splits.filter((split) => split !== null));

export const ticks = {
  count: (splits) => labels(splits, 1, ""),
  percent: (splits) => labels(splits, 0.01, " %"),
  bytes(splits) {
    const units = [" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB"];
    const power = Math.max(0, Math.min(units.length - 1, Math.floor(Math.log2(largest(splits) || 1) / 10)));
    return labels(splits, 1024 ** power, units[power]);
  },
  duration: (splits) => splits.map((split) => (split === null ? null : duration(split))),
  /** Each tick of a logarithmic axis in its own unit. */
  micros: (splits) => splits.map((split) => {
    if (split === null) return null;
    const [divisor, unit] = split < 1 ? [1e-3, " ns"] : split < 1e3 ? [1, " µs"] : split < 1e6 ? [1e3, " ms"] : [1e6, " s"];
    return labels([split], divisor, unit)[0];
  }),
  eachBytes: (splits) => splits.map((split) => (split === null ? null : ticks.bytes([split])[0])),
};
