// Numbers as a person reads them.

const whole = new Intl.NumberFormat("en");

export const count = (n) => (n === null || n === undefined ? "–" : whole.format(n));

/** A span of milliseconds, with the digits that matter. */
export function span(ms) {
  if (ms === null || ms === undefined || Number.isNaN(ms)) return "–";
  const size = Math.abs(ms);
  if (size < 10) return `${ms.toFixed(3)} ms`;
  if (size < 1000) return `${ms.toFixed(1)} ms`;
  return long(ms);
}

/** One of seconds or more, for ages. */
export function long(ms) {
  const seconds = ms / 1000;
  if (seconds < 60) return `${seconds < 10 ? seconds.toFixed(1) : Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min${seconds % 60 >= 1 ? ` ${String(Math.floor(seconds % 60)).padStart(2, "0")} s` : ""}`;
  return `${Math.floor(seconds / 3600)} h ${String(Math.floor((seconds / 60) % 60)).padStart(2, "0")} min`;
}

/** A short age for a table. */
export function age(ms) {
  if (ms === null || ms === undefined) return "–";
  const seconds = Math.max(0, ms / 1000);
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

export function percent(share) {
  if (!Number.isFinite(share)) return "–";
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 2 : 1)} %`;
}

export function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (n >= 1024 && unit < units.length - 1) [n, unit] = [n / 1024, unit + 1];
  return `${n < 10 && unit > 0 ? n.toFixed(1) : Math.round(n)} ${units[unit]}`;
}

export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

/** The value below which a share of the sorted values lies. */
export const quantile = (sorted, share) => sorted[Math.min(sorted.length - 1, Math.ceil(share * sorted.length) - 1)];
