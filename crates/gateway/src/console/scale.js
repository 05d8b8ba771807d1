// Where a moment lies on the timeline: over time, with what follows abandonment drawn finer, or over the run's steps.

/** Least and largest share of the width for what follows abandonment, which takes milliseconds of a run of seconds. */
const AFTER = [0.45, 0.75];
/** From this much on a finer scale is named. */
const FINER = 1.5;

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

/** Over time, in milliseconds. */
export function overTime(width, end, gone) {
  const split = gone !== null && gone < end && gone >= 0 ? [gone, width * (1 - clamp((end - gone) / end, ...AFTER))] : null;
  const place = (at, from, to, first, last) => first + (to > from ? clamp((at - from) / (to - from), 0, 1) : 0) * (last - first);
  const x = (at) => {
    if (!split) return place(at, 0, end, 0, width);
    return at <= split[0] ? place(at, 0, split[0], 0, split[1]) : place(at, split[0], end, split[1], width);
  };
  let finer = null;
  if (split && split[1] > 0) {
    finer = split[0] / split[1] / ((end - split[0]) / (width - split[1]));
    if (!(finer >= FINER) || !Number.isFinite(finer)) finer = null;
  }
  return { x, split, finer };
}

/** Round numbers between two moments, few enough to read. */
export function ticks(from, to, most) {
  if (!(to > from) || most < 1) return [];
  const rough = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const found = [];
  for (let n = Math.ceil(from / step); n * step < to; n++) found.push(n * step);
  return found;
}

/**
 * Over steps: each step of the run has a place, and so has each milestone between two of them, since most of them fall between the same two.
 * `steps` are the moments at which steps were over, in order; `stamps` those of the milestones.
 */
export function overSteps(width, steps, stamps) {
  const stops = [...steps.map((at, i) => ({ at, step: i })), ...[...new Set(stamps)].map((at) => ({ at, step: null }))];
  stops.sort((a, b) => a.at - b.at || (a.step === null) - (b.step === null));
  const marks = stops.filter(({ step }) => step === null).length;
  // Half of the width is the milestones', but for a run of few steps.
  const weight = Math.max(1, steps.length / Math.max(1, marks));
  const sum = stops.reduce((sum, { step }) => sum + (step === null ? weight : 1), 0) || 1;
  let at = 0;
  const places = new Map();
  const columns = [];
  for (const stop of stops) {
    const wide = ((stop.step === null ? weight : 1) / sum) * width;
    if (stop.step === null) places.set(stop.at, at + wide / 2);
    else columns[stop.step] = [at, wide];
    at += wide;
  }
  const x = (moment) => {
    if (places.has(moment)) return places.get(moment);
    const next = stops.find((stop) => stop.at >= moment);
    if (!next) return width;
    return next.step === null ? places.get(next.at) : columns[next.step][0];
  };
  return { x, columns, split: null, finer: null };
}
