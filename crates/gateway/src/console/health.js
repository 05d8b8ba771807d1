// One glance: is it healthy? Each check says what it looked at, and the worst one speaks.

import { count, long, percent, plural } from "./format.js";

/** Above this share of tokens in vain something is wrong (the contract's own alert has the same). */
export const WASTE_MAX = 0.01;
/** Fewer tokens than these say nothing about a share. */
const TOKENS_MIN = 500;
/** A cancel that is not acknowledged for so long is no longer on its way. */
export const LATE_MS = 2000;
/** Firing alerts that are named. */
const NAMED_MAX = 2;

const check = (id, label, level, value, why = null) => ({ id, label, level, value, why });

function ready({ ready, workers }) {
  if (!ready) return check("serving", "Serving", "unknown", "–");
  const here = workers?.filter((worker) => worker.state === "here" && !worker.device_lost).length;
  const all = workers?.length ?? 0;
  if (ready.error) return check("serving", "Serving", "bad", "no", ready.error);
  if (here < all) return check("serving", "Workers", "warn", `${here} of ${all}`, `${plural(all - here, "worker")} not here`);
  return check("serving", "Workers", "ok", `${here} of ${all}`);
}

function account({ kv, engines }) {
  if (engines) return [];
  if (!kv) return [check("kv", "Blocks", "unknown", "–")];
  const lost = [kv, ...(kv.workers ?? [])].find((one) => one.device_lost)?.device_lost;
  return [
    lost ? check("device", "Device", "bad", "lost", `the device is lost: ${lost}`) : null,
    kv.conserved
      ? check("kv", "Account", "ok", "adds up")
      : check("kv", "Account", "bad", "does not add up", "the blocks' account does not add up (C-15)"),
    kv.quarantined > 0
      ? check("quarantined", "Quarantined", "bad", count(kv.quarantined), `${plural(kv.quarantined, "block")} behind a fence that never completes`)
      : check("quarantined", "Quarantined", "ok", "0"),
    kv.orphaned > 0
      ? check("orphaned", "Orphaned", "warn", count(kv.orphaned), `${plural(kv.orphaned, "block")} of runs that no gateway claims`)
      : check("orphaned", "Orphaned", "ok", "0"),
  ].filter(Boolean);
}

function cancels({ metrics, unacknowledged }) {
  if (!metrics) return check("cancels", "Unacknowledged", "unknown", "–");
  const n = metrics.get("kvit_cancels_unacknowledged")?.sum ?? 0;
  const oldest = Math.max(0, ...(unacknowledged ?? []).map((run) => run.since));
  if (n === 0) return check("cancels", "Unacknowledged", "ok", "0");
  const why = `${plural(n, "cancel")} not acknowledged${oldest > 0 ? `, the oldest for ${long(oldest)}` : ""}`;
  return check("cancels", "Unacknowledged", oldest > LATE_MS ? "bad" : "warn", count(n), why);
}

function waste({ waste }) {
  if (!waste || waste.tokens < TOKENS_MIN) return check("waste", "Waste", "ok", waste?.wasted ? `${count(waste.wasted)} tokens` : "0");
  const share = waste.wasted / waste.tokens;
  const why = `${percent(share)} of the tokens of the last ${waste.runs} ended runs were computed for nobody`;
  return check("waste", "Waste", share > WASTE_MAX ? "warn" : "ok", percent(share), share > WASTE_MAX ? why : null);
}

function defects({ metrics }) {
  const n = metrics?.get("kvit_defects_total")?.sum;
  if (n === undefined) return check("defects", "Defects", "unknown", "–");
  return n > 0 ? check("defects", "Defects", "bad", count(n), `${plural(n, "thing")} happened that must not happen`) : check("defects", "Defects", "ok", "0");
}

function alerts({ alerts }) {
  if (!alerts) return null;
  if (alerts.firing.length === 0) return check("alerts", "Alerts", "ok", "none");
  const names = alerts.firing.slice(0, NAMED_MAX).map((alert) => alert.name);
  const more = alerts.firing.length > NAMED_MAX ? ` and ${alerts.firing.length - NAMED_MAX} more` : "";
  return check("alerts", "Alerts", "bad", count(alerts.firing.length), `alerts fire: ${names.join(", ")}${more}`);
}

function diagnosis({ diagnosis }) {
  if (!diagnosis) return null;
  const { verdict, fault, summary } = diagnosis;
  const level = fault ? "bad" : verdict === "cannot_tell" ? "unknown" : "ok";
  return check("diagnosis", "Diagnosis", level, verdict.replaceAll("_", " "), fault ? summary.replace(/\.$/, "") : null);
}

const ORDER = ["ok", "unknown", "warn", "bad"];
const HEADLINES = { ok: "Healthy", unknown: "Not everything is known", warn: "Worth a look", bad: "Something is wrong" };

/** What is known, judged: the level, a headline, why, and each check. */
export function judge(known) {
  if (known.unreachable) {
    return { level: "bad", headline: "The server cannot be reached", because: known.unreachable, checks: [] };
  }
  const checks = [ready(known), cancels(known), ...account(known), waste(known), defects(known), alerts(known), diagnosis(known)].filter(Boolean);
  const level = checks.reduce((worst, { level }) => (ORDER.indexOf(level) > ORDER.indexOf(worst) ? level : worst), "ok");
  const reasons = checks.filter(({ why }) => why).sort((a, b) => ORDER.indexOf(b.level) - ORDER.indexOf(a.level)).map(({ why }) => why);
  const { live = 0 } = known;
  const calm = `${plural(live, "run")} live, every cancel acknowledged, every block accounted for.`;
  const because = reasons.length ? `${reasons.join("; ")}.` : level === "ok" ? calm : "Some of what is looked at has not answered yet.";
  return { level, headline: HEADLINES[level], because: because[0].toUpperCase() + because.slice(1), checks };
}
