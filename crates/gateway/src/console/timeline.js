// One run's timeline: client, gateway, worker and engine as lanes, the contract's milestones as labelled ticks, the cancel's way from lane to
// lane, and what was computed in vain marked. All of it is read off the run's record, and off its steps where the journal still has them.

import { s } from "./dom.js";
import { count, span } from "./format.js";
import { overSteps, overTime, ticks } from "./scale.js";
import { LANES, MILESTONES } from "./words.js";

const NAME_WIDTH = 62;
const ROW = 14;
const BAR = 12;
const LANE_GAP = 12;
const CHARACTER = 6.1;
const END = 8;
const STEP_LABEL = 80;
/** The way of a cancel, from lane to lane. */
const WAY = ["disconnect_observed", "cancel_sent", "cancel_received", "cancel_applied", "cancel_acknowledged"];

export const wasted = ({ tokens, steps }) =>
  (tokens?.after_disconnect ?? 0) + (tokens?.prompt_computed_after_disconnect ?? 0) > 0 || (steps?.after_disconnect ?? 0) > 0;

/** When anybody first knew that the run was no longer wanted. */
export function abandoned({ milestones }) {
  const seen = ["disconnect_observed", "deadline_fired", "cancel_applied"].map((name) => milestones[name]).filter((at) => at !== null);
  return seen.length ? Math.min(...seen) : null;
}

/** How the caller went, in a word. */
export function leaving(run) {
  if (run.milestones.disconnect_observed === null) return null;
  const causes = [run.outcome?.cause, ...(run.superseded ?? [])].filter(Boolean);
  const gone = causes.find((cause) => cause.startsWith("client_") && cause !== "client_deadline");
  return gone?.slice("client_".length) ?? null;
}

/** Every milestone that was reached, in order of time. */
export const stamps = ({ milestones }) =>
  Object.keys(MILESTONES)
    .filter((name) => milestones?.[name] !== null && milestones?.[name] !== undefined)
    .map((name) => ({ name, at: milestones[name], lane: MILESTONES[name][0] }))
    .sort((a, b) => a.at - b.at);

/** A deadline fires where it was watched: at the gateway, which then has an observation of it. */
function laneOf(run, { name, at, lane }) {
  return name === "deadline_fired" && run.boundaries?.[0]?.observed !== at ? "worker" : lane;
}

/** Puts labels beside one another in as few rows as they need. */
function rows(labels, width) {
  const ends = [];
  for (const label of labels) {
    const length = label.name.length * CHARACTER + 8;
    label.left = Math.max(0, Math.min(label.x - 4, width - length));
    label.row = ends.findIndex((end) => end <= label.left);
    if (label.row < 0) label.row = ends.push(0) - 1;
    ends[label.row] = label.left + length;
  }
  return ends.length;
}

export function timeline(run, steps, scaleName, width, nowMs) {
  const marks = stamps(run).map((mark) => ({ ...mark, lane: laneOf(run, mark) }));
  const inner = Math.max(120, width - NAME_WIDTH - END);
  const open = run.state !== "ended";
  const last = marks.at(-1)?.at ?? 0;
  const end = open ? Math.max(last, nowMs) : last;
  const gone = abandoned(run);
  const taken = grouped(steps?.rows ?? [], gone, inner);
  const scale = scaleName === "steps" && taken.length
    ? overSteps(inner, taken.map((row) => row.ms), marks.map(({ at }) => at))
    : overTime(inner, end, gone);
  const x = (at) => NAME_WIDTH + scale.x(Math.min(at, end));

  let top = 20;
  const places = {};
  const parts = [];
  for (const lane of LANES) {
    const labels = marks.filter((mark) => mark.lane === lane).map((mark) => ({ ...mark, x: scale.x(mark.at) }));
    if (lane === "client") labels.push(...client(run, scale, end));
    labels.sort((a, b) => a.x - b.x);
    const deep = rows(labels, inner);
    const bar = top + Math.max(1, deep) * ROW + 3;
    places[lane] = { bar, labels, top };
    top = bar + BAR + LANE_GAP;
  }
  const height = top - LANE_GAP + 6;

  parts.push(grid(scale, end, gone, height, scaleName, taken));
  for (const lane of LANES) parts.push(drawLane(lane, places[lane], x));
  parts.push(bars(run, places, x, end, open, gone));
  if (taken.length) parts.push(stepBars(taken, places.engine.bar, scale, x));
  parts.push(way(run, places, x));
  for (const lane of LANES) parts.push(...labelsOf(places[lane], lane));
  const title = `Timeline of ${run.id}: ${marks.map(({ name, at }) => `${name.replaceAll("_", " ")} ${span(at)}`).join(", ")}`;
  return s("svg", { class: "lanes", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": title }, ...parts.flat());
}

/** What was thrown away though nobody had left is overrun, and no waste. */
const inVain = (row, gone) => gone !== null && (row.ms > gone || row.discarded > 0 || row.layers_dropped > 0);

/** Of more steps than there are pixels some are drawn as one; never one that was in vain with one that was not. */
function grouped(rows, gone, most) {
  const together = Math.ceil(rows.length / most);
  const groups = [];
  for (const row of rows) {
    const last = groups.at(-1);
    if (last && last.steps < together && last.vain === inVain(row, gone)) {
      for (const name of ["prompt_tokens", "generated", "discarded", "layers_dropped"]) last[name] += row[name];
      Object.assign(last, { steps: last.steps + 1, to: row.step, ms: row.ms });
    } else {
      groups.push({ ...row, steps: 1, to: row.step, vain: inVain(row, gone) });
    }
  }
  return groups;
}

/** What the client did is seen from the gateway only: it asked, and it left or got its end. */
function client(run, scale, end) {
  const labels = [{ name: "asked", at: 0, x: 0 }];
  const word = leaving(run);
  const { disconnect_observed: left, settled } = run.milestones;
  if (word) labels.push({ name: word, at: left, x: scale.x(left), bad: true });
  else if (settled !== null) labels.push({ name: run.delivery === "complete" ? "answered" : "told", at: settled, x: scale.x(Math.min(settled, end)) });
  return labels;
}

function grid(scale, end, gone, height, scaleName, taken) {
  const parts = [];
  const put = (at, text, kind) => {
    const x = NAME_WIDTH + at;
    parts.push(s("line", { class: kind, x1: x, x2: x, y1: 14, y2: height }));
    parts.push(s("text", { class: "axis", x: x + 3, y: 10, text }));
  };
  if (scale.columns) {
    let next = 0;
    scale.columns.forEach(([at], i) => {
      if (at < next) return;
      put(at, `step ${count(taken[i].step)}`, "grid");
      next = at + STEP_LABEL;
    });
    return parts;
  }
  const width = scale.x(end);
  const [splitAt, splitX] = scale.split ?? [end, width];
  for (const at of ticks(0, splitAt, Math.floor(splitX / 90))) {
    if (at === 0 || splitX - scale.x(at) > 70) put(scale.x(at), at === 0 ? "0" : span(at).replace(/\.0+ /, " "), "grid");
  }
  if (scale.split) {
    put(splitX, `${span(gone)}${scale.finer && width - splitX > 220 ? ` · ×${count(Math.round(scale.finer))} finer from here` : ""}`, "split");
    for (const after of ticks(0, end - gone, Math.floor((width - splitX) / 80))) {
      const at = scale.x(gone + after);
      if (after > 0) parts.push(s("line", { class: "grid", x1: NAME_WIDTH + at, x2: NAME_WIDTH + at, y1: 18, y2: height }));
      if (after > 0 && at - splitX > 210 && width - at > 40) parts.push(s("text", { class: "axis", x: NAME_WIDTH + at + 3, y: 10, text: `+${span(after)}`.replace(/0+ ms/, " ms").replace(". ms", " ms") }));
    }
  }
  return parts;
}

function drawLane(lane, { bar }, x) {
  return [
    s("text", { class: "lane", x: 0, y: bar + BAR - 2, text: lane }),
    s("line", { class: "rail", x1: NAME_WIDTH, x2: x(Infinity), y1: bar + BAR / 2, y2: bar + BAR / 2 }),
  ];
}

function bars(run, places, x, end, open, gone) {
  const m = run.milestones;
  const until = (at) => at ?? end;
  const parts = [];
  const bar = (lane, kind, from, to) => {
    if (from === null || from === undefined || to < from) return;
    const [left, right] = [x(from), x(to)];
    parts.push(s("rect", { class: `span ${kind}`, x: left, y: places[lane].bar, width: Math.max(1, right - left), height: BAR, rx: 2 }));
  };
  bar("client", "there", 0, leaving(run) ? m.disconnect_observed : until(m.settled));
  bar("gateway", "there", 0, until(m.settled));
  bar("worker", "there", m.queued, until(m.released));
  const computed = m.last_compute ?? (open ? end : until(m.released));
  const useful = gone !== null ? Math.min(gone, computed) : computed;
  if (m.blocks_allocated !== null && (gone !== null || m.last_compute !== null)) bar("engine", "held", useful, until(m.released));
  bar("engine", "waiting", m.queued, m.prefill_start ?? until(m.released));
  bar("engine", "prefill", m.prefill_start, Math.min(until(m.first_token), useful));
  bar("engine", "decode", m.first_token, useful);
  if (gone !== null && wasted(run)) bar("engine", "vain", Math.max(gone, m.prefill_start ?? gone), computed);
  return parts;
}

/** The run's steps as the journal has them: a tick each, and what was computed for nobody over the others. */
function stepBars(taken, top, scale, x) {
  const parts = [];
  const narrow = scale.columns ? scale.columns[0]?.[1] ?? 0 : 0;
  taken.forEach((row, i) => {
    if (!scale.columns && !row.vain) return;
    const [left, wide] = scale.columns ? [NAME_WIDTH + scale.columns[i][0], scale.columns[i][1]] : [x(row.ms) - 0.5, 1];
    const kind = row.vain ? "vain" : row.prompt_tokens > 0 ? "prefill" : "decode";
    const title = `${row.steps > 1 ? `steps ${count(row.step)} to ${count(row.to)}` : `step ${count(row.step)}`}: ${count(row.prompt_tokens)} prompt, ${count(row.generated)} generated, ${count(row.discarded)} thrown away, ${count(row.layers_dropped)} layers dropped`;
    parts.push(s("rect", { class: `step ${kind}`, x: left, y: top, width: Math.max(0.6, narrow > 3 ? wide - 1 : wide), height: BAR }, s("title", { text: title })));
  });
  return parts;
}

/** The cancel's way through the lanes. */
function way(run, places, x) {
  const m = run.milestones;
  const points = WAY.filter((name) => m[name] !== null).map((name) => [x(m[name]), places[MILESTONES[name][0]].bar + BAR / 2]);
  if (leaving(run)) points.unshift([x(m.disconnect_observed), places.client.bar + BAR / 2]);
  if (points.length < 2) return [];
  return [s("polyline", { class: "way", points: points.map((point) => point.join(",")).join(" ") })];
}

function labelsOf({ bar, labels }, lane) {
  const kinds = { disconnect_observed: "bad", deadline_fired: "bad", released: "good", settled: "good" };
  return labels.map(({ name, x, left, row, bad, at }) => {
    const deepest = Math.max(...labels.map((label) => label.row));
    const base = bar - 4 - (deepest - row) * ROW;
    const kind = bad ? "bad" : kinds[name] ?? "";
    const means = MILESTONES[name]?.[1];
    return s(
      "g",
      { class: `tick ${kind}`, "data-milestone": MILESTONES[name] ? name : null, "data-lane": lane },
      s("line", { x1: NAME_WIDTH + x, x2: NAME_WIDTH + x, y1: base + 2, y2: bar + BAR }),
      s("circle", { cx: NAME_WIDTH + x, cy: bar + BAR / 2, r: 3.2 }),
      s("text", { x: NAME_WIDTH + left + 4, y: base, text: name.replaceAll("_", " ") }),
      s("title", { text: `${name.replaceAll("_", " ")} at ${span(at)}${means ? `: ${means}` : ""}` }),
    );
  });
}
