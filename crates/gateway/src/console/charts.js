// Two charts over the runs that ended last: what was computed for nobody, and how long each part of the way from leaving to release took.

import { $, h, redraw, s, say } from "./dom.js";
import { clock, count, long, percent, plural, quantile, span } from "./format.js";
import { endedAt } from "./runs.js";
import { WASTE_MAX } from "./health.js";

const BUCKETS = 30;
const BUCKET_MIN_MS = 1000;
/** Cancelled runs that are drawn one by one. */
const SHOWN_MAX = 40;
const WAYS = [
  ["cancel_sent", "cancel sent"],
  ["cancel_received", "received by the worker"],
  ["cancel_applied", "applied by the engine"],
  ["cancel_acknowledged", "acknowledged"],
  ["last_compute", "last compute"],
  ["released", "released"],
];
/** The scale of latencies: 10 µs to 10 s. */
const LOG = [-2, 4];
const POWER_LABEL = 48;

const generated = (run) => (run.tokens?.generated ?? 0) + (run.tokens?.prompt ?? 0) - (run.tokens?.cached_prompt ?? 0);
const inVain = (run) => (run.tokens?.after_disconnect ?? 0) + (run.tokens?.prompt_computed_after_disconnect ?? 0);

/** The waste ratio over runs: tokens computed after abandonment over all tokens computed. */
export function ratio(runs) {
  const known = runs.filter((run) => run.tokens?.generated !== undefined);
  const sum = (of) => known.reduce((sum, run) => sum + of(run), 0);
  return { runs: known.length, tokens: sum(generated), wasted: sum(inVain) };
}

export function drawWaste(runs, windows, width) {
  const known = runs.filter((run) => run.tokens?.generated !== undefined && run.created_ms);
  const { tokens, wasted } = ratio(known);
  const share = known.length ? `${percent(tokens ? wasted / tokens : 0)} of ${plural(tokens, "token")} in the last ${plural(known.length, "ended run")}` : null;
  const window = windows && windows.window !== null ? `${percent(windows.window)} of the last ${long(1000 * windows.seconds)}` : null;
  const total = windows && windows.total !== null ? `${percent(windows.total)} since the start` : null;
  say($("waste-sum"), [window, total, share].filter(Boolean).join(" · "));
  const cancelled = known.filter(({ outcome }) => ["cancelled", "expired"].includes(outcome?.kind));
  redraw($("waste-body"), JSON.stringify([known[0]?.id, known.length, tokens, wasted, width]), () => {
    if (!known.length) return h("p", { class: "none", text: "No run has ended yet." });
    return [overTime(known, width), beside(cancelled, width)];
  });
}

/** Tokens by when their run ended; those in vain below on a scale of their own, for there are few. */
function overTime(runs, width) {
  const ends = runs.map(endedAt);
  const [first, last] = [Math.min(...ends), Math.max(...ends)];
  const bucket = Math.max(BUCKET_MIN_MS, (last - first) / (BUCKETS - 1));
  const sums = Array.from({ length: BUCKETS }, () => ({ all: 0, vain: 0 }));
  runs.forEach((run, i) => {
    const sum = sums[BUCKETS - 1 - Math.min(BUCKETS - 1, Math.floor((last - ends[i]) / bucket))];
    sum.all += generated(run);
    sum.vain += inVain(run);
  });
  const [top, low] = [54, 34];
  const most = { all: Math.max(1, ...sums.map(({ all }) => all)), vain: Math.max(1, ...sums.map(({ vain }) => vain)) };
  const each = (width - 2) / BUCKETS;
  const bars = sums.flatMap(({ all, vain }, i) => {
    const bar = (y, high, kind) => s("rect", { class: kind, x: i * each + 1, y, width: Math.max(1, each - 2), height: high }, s("title", { text: `${count(vain)} of ${count(all)} tokens in vain (${percent(all ? vain / all : 0)})` }));
    const up = (all / most.all) * top;
    const down = (vain / most.vain) * low;
    return [up > 0 ? bar(14 + top - up, up, "all") : null, down > 0 ? bar(14 + top + 14, down, vain / all > WASTE_MAX ? "vain over" : "vain") : null];
  });
  const height = 14 + top + 14 + low + 16;
  const label = `Tokens over time: ${count(most.all)} at most in ${span(bucket)}, of them at most ${count(most.vain)} in vain`;
  return h("figure", {}, h("figcaption", { text: `Tokens computed, by when their run ended; each bar ${span(bucket).replace(".000", "")}` }),
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label },
      s("text", { class: "axis", x: 0, y: 10, text: `computed, most ${count(most.all)}` }),
      s("line", { class: "base", x1: 0, x2: width, y1: 14 + top + 0.5, y2: 14 + top + 0.5 }),
      s("text", { class: "axis", x: 0, y: 14 + top + 11, text: sums.some(({ vain }) => vain > 0) ? `in vain, most ${count(most.vain)}` : "in vain: none" }),
      ...bars.filter(Boolean),
      s("text", { class: "axis", x: 0, y: height - 3, text: clock(last - bucket * BUCKETS) }),
      s("text", { class: "axis end", x: width, y: height - 3, text: clock(last) })));
}

/** Cancelled runs one by one: generated beside delivered; those that delivered nothing stand apart. */
function beside(cancelled, width) {
  const shown = cancelled.slice(0, SHOWN_MAX).reverse();
  if (!shown.length) return h("p", { class: "muted", text: "None of them was cancelled or ran out of time." });
  const none = cancelled.filter((run) => !run.tokens.delivered);
  const most = Math.max(1, ...shown.map((run) => run.tokens.generated));
  const high = 54;
  const each = Math.min(28, (width - 2) / shown.length);
  const bars = shown.flatMap((run, i) => {
    const { generated: made, delivered } = run.tokens;
    const vain = run.tokens.after_disconnect;
    const up = (n) => (n / most) * high;
    const title = () => s("title", { text: `${run.id}: ${count(made)} generated, ${count(delivered)} delivered, ${count(vain)} after the leaving` });
    const wide = Math.max(1, each - 3);
    return [
      s("rect", { class: "made", x: i * each + 1, y: 4 + high - up(made), width: wide, height: Math.max(1, up(made)) }, title()),
      s("rect", { class: "given", x: i * each + 1, y: 4 + high - up(delivered), width: wide, height: up(delivered) }, title()),
      vain > 0 ? s("rect", { class: "vain", x: i * each + 1, y: 4 + high - up(made), width: wide, height: Math.max(2, up(vain)) }, title()) : null,
    ];
  });
  const zero = none.length ? `${plural(none.length, "run")} delivered nothing, and cost ${plural(none.reduce((sum, run) => sum + generated(run), 0), "token")}` : "each delivered something";
  const label = `Of ${shown.length} runs that were cancelled or ran out of time, tokens generated beside delivered`;
  return h("figure", {}, h("figcaption", {}, `Generated beside delivered, the last ${plural(shown.length, "run")} that did not complete; ${zero}`),
    s("svg", { class: "chart", viewBox: `0 0 ${width} ${high + 6}`, width, height: high + 6, role: "img", "aria-label": label }, s("line", { class: "base", x1: 0, x2: width, y1: high + 4.5, y2: high + 4.5 }), ...bars.filter(Boolean)),
    h("ul", { class: "legend small" }, ...[["given", "delivered"], ["made", "generated, not delivered"], ["vain", "generated after the leaving"]].map(([kind, text]) => h("li", {}, h("i", { class: `key ${kind}` }), text))));
}

/** From the first observation of a leaving to each milestone behind it: a dot a run, on a logarithmic scale, with median and p95. */
export function drawBoundaries(runs, width) {
  const left = runs.map((run) => ({ run, gone: run.boundaries?.[0]?.observed ?? null })).filter(({ gone }) => gone !== null);
  say($("boundaries-sum"), left.length ? `${plural(left.length, "run")} that somebody left, or that was cancelled` : "");
  redraw($("boundaries-body"), JSON.stringify([left[0]?.run.id, left.length, width]), () => {
    if (!left.length) return h("p", { class: "none", text: "Nobody has left yet." });
    const marks = [["dot", "a run"], ["p50", "median"], ["p95", "p95: 95 of 100 are quicker"]];
    const legend = h("ul", { class: "legend small" }, ...marks.map(([kind, text]) => h("li", {}, h("i", { class: `key ${kind}` }), text)));
    return [strips(left, width), legend, numbers(left)];
  });
}

const spans = (left, name) =>
  left
    .map(({ run, gone }) => ({ id: run.id, ms: run.milestones[name] === null ? null : run.milestones[name] - gone }))
    .filter(({ ms }) => ms !== null && ms >= 0)
    .sort((a, b) => a.ms - b.ms);

function strips(left, width) {
  const [row, names] = [24, Math.min(150, width * 0.4)];
  const inner = width - names - 10;
  const x = (ms) => names + Math.max(0, Math.min(1, (Math.log10(Math.max(ms, 1e-9)) - LOG[0]) / (LOG[1] - LOG[0]))) * inner;
  const height = WAYS.length * row + 20;
  const parts = [];
  const every = inner / (LOG[1] - LOG[0]) < POWER_LABEL ? 2 : 1;
  for (let power = LOG[0]; power <= LOG[1]; power++) {
    const at = x(10 ** power);
    const text = power < 0 ? `${10 ** (power + 3)} µs` : power < 3 ? `${10 ** power} ms` : `${10 ** (power - 3)} s`;
    parts.push(s("line", { class: "grid", x1: at, x2: at, y1: 0, y2: height - 16 }));
    if ((power - LOG[0]) % every === 0) parts.push(s("text", { class: `axis ${power === LOG[1] ? "end" : power === LOG[0] ? "" : "middle"}`, x: at, y: height - 4, text }));
  }
  WAYS.forEach(([name, text], i) => {
    const middle = i * row + row / 2;
    const found = spans(left, name);
    parts.push(s("text", { class: "name", x: 0, y: middle + 4, text }), s("line", { class: "base", x1: names, x2: width - 10, y1: middle, y2: middle }));
    found.forEach(({ id, ms }, n) => parts.push(s("circle", { class: "dot", cx: x(ms), cy: middle + ((n * 7) % 9) - 4, r: 2 }, s("title", { text: `${id}: ${span(ms)}` }))));
    if (!found.length) return;
    const ms = found.map((one) => one.ms);
    for (const [kind, share] of [["p50", 0.5], ["p95", 0.95]]) {
      const at = x(quantile(ms, share));
      parts.push(s("line", { class: kind, x1: at, x2: at, y1: middle - 8, y2: middle + 8 }));
    }
  });
  const label = `From leaving to release: ${WAYS.map(([name, text]) => [text, spans(left, name).map(({ ms }) => ms)]).filter(([, ms]) => ms.length).map(([text, ms]) => `${text} p95 ${span(quantile(ms, 0.95))}`).join(", ")}`;
  return s("svg", { class: "chart", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": label }, ...parts);
}

function numbers(left) {
  const rows = WAYS.map(([name, text]) => {
    const ms = spans(left, name).map((one) => one.ms);
    const at = (share) => (ms.length ? span(quantile(ms, share)) : "–");
    return h("tr", {}, h("th", { scope: "row", text }), ...[count(ms.length), at(0.5), at(0.95), ms.length ? span(ms.at(-1)) : "–"].map((value) => h("td", { class: "n", text: value })));
  });
  const head = h("tr", {}, ...["After the first observation", "Runs", "Median", "p95", "Worst"].map((text, i) => h("th", { scope: "col", class: i ? "n" : null, text })));
  return h("table", { class: "tight" }, h("thead", {}, head), h("tbody", {}, ...rows));
}
