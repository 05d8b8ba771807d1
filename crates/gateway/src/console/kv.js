// The panel of the KV blocks: the map, what is under the cursor, the legend, and the scrubber over the moments that the server has kept.

import { find, query } from "./api.js";
import { $, h, redraw, s, say, show } from "./dom.js";
import { clock, count, long, plural } from "./format.js";
import { BlockMap } from "./map.js";
import { BLOCK_STATES } from "./words.js";

/** Frames that were fetched and are kept, so that the scrubber goes back and forth at once. */
const KEPT_MAX = 64;
/** How long the cursor rests on a block before the server is asked for its generation. */
const REST_MS = 80;
/** After so long without a change it is said how long there was none. */
const STILL_MS = 3000;
const HISTORY_HEIGHT = 40;
const WIDTH = 1000;

export class KvPanel {
  constructor(chosen) {
    this.chosen = chosen;
    this.map = new BlockMap($("map"), $("cells"), $("cursor"), (...what) => this.told(...what));
    this.moments = [];
    this.cache = new Map();
    this.live = true;
    this.worker = null;
    $("live").addEventListener("click", () => this.goLive());
    $("scrubber").addEventListener("input", () => this.scrub());
    $("worker").addEventListener("change", () => this.choose($("worker").value));
  }

  choose(worker) {
    Object.assign(this, { worker, moments: [], live: true });
    this.cache.clear();
    return this.poll();
  }

  /** Takes in the moments that were kept since the last look, and shows the newest. */
  async poll() {
    const after = this.moments.at(-1)?.moment;
    const kept = await find(query("/v1/kv/moments", { worker: this.worker ?? "", after: after ?? "" }));
    if (!kept) return;
    this.workers(kept);
    const one = kept.workers.find(({ worker }) => this.worker === null || worker === this.worker);
    if (!one || (one.moments.length === 0 && this.moments.length === 0)) return this.none(kept);
    if (one.incarnation !== this.life) [this.life, this.moments] = [one.incarnation, []];
    this.now = kept.now_ms;
    this.moments.push(...one.moments.filter(({ moment }) => !this.moments.length || moment > this.moments.at(-1).moment));
    const first = this.moments.findIndex(({ moment }) => moment >= one.first);
    if (first > 0) this.moments.splice(0, first);
    this.span = kept.keep_ms;
    if (this.live) await this.view(this.moments.at(-1).moment);
    this.draw();
  }

  workers({ workers }) {
    const names = workers.map(({ worker }) => worker);
    show($("worker-choice"), names.length > 1);
    this.worker ??= names[0] ?? null;
    redraw($("worker"), names.join(" "), () => names.map((name) => h("option", { value: name, selected: name === this.worker, text: name })));
  }

  none({ workers }) {
    show($("kv-note"), true);
    const why = workers.length === 0
      ? "No worker here keeps an account of blocks: the engines behind this gateway are others'."
      : "The worker has not answered with its blocks yet.";
    say($("kv-note"), why);
    show($("map").parentElement, false);
    show($("scrub"), false);
  }

  async view(moment) {
    let map = this.cache.get(moment);
    if (!map) {
      map = await find(query("/v1/kv/map", { worker: this.worker ?? "", moment }));
      // It was dropped meanwhile, and others may have been.
      if (!map) {
        this.moments = [];
        this.live = true;
        return;
      }
      this.cache.set(moment, map);
      if (this.cache.size > KEPT_MAX) this.cache.delete(this.cache.keys().next().value);
    }
    if (!this.live && this.wanted !== moment) return;
    show($("kv-note"), false);
    show($("map").parentElement, true);
    show($("scrub"), true);
    this.map.show(map);
    this.shown = map;
    this.draw();
  }

  light(run) {
    this.map.light(run);
    this.draw();
  }

  scrub() {
    const at = Number($("scrubber").value);
    const moment = this.moments[at];
    if (!moment) return;
    this.live = at === this.moments.length - 1;
    this.wanted = moment.moment;
    this.draw();
    this.view(moment.moment).catch((error) => say($("moment"), error.message));
  }

  goLive() {
    this.live = true;
    const newest = this.moments.at(-1);
    if (newest) return this.view(newest.moment);
  }

  draw() {
    const moment = this.live ? this.moments.at(-1) : this.moments.find(({ moment }) => moment === this.wanted);
    if (!moment) return;
    const at = this.moments.indexOf(moment);
    const scrubber = $("scrubber");
    scrubber.max = String(Math.max(0, this.moments.length - 1));
    scrubber.value = String(at);
    // A moment holds until the next one.
    const ago = long(Math.max(0, this.now - moment.at_ms));
    const still = this.now - moment.at_ms > STILL_MS ? `, as it has been for ${ago}` : "";
    const when = this.live ? `now, ${clock(this.now)}${still}` : `${ago} ago, ${clock(moment.at_ms)}`;
    const text = `${when} · step ${count(moment.step)}`;
    say($("moment"), text);
    scrubber.setAttribute("aria-valuetext", text);
    $("live").setAttribute("aria-pressed", String(this.live));
    this.legend(moment);
    this.history(at);
  }

  legend(moment) {
    const total = BLOCK_STATES.reduce((sum, state) => sum + moment[state], 0);
    const lit = this.map.run === null ? null : this.map.lit();
    const items = [...BLOCK_STATES.map((state) => [state, moment[state], `${((100 * moment[state]) / total).toFixed(1)} %`])];
    redraw($("legend"), JSON.stringify([items, moment.orphaned, lit]), () => [
      ...items.map(([state, n, share]) => h("li", {}, h("i", { class: `key ${state}` }), `${state} `, h("b", { text: count(n) }), h("span", { class: "muted", text: ` ${share}` }))),
      moment.orphaned > 0 ? h("li", { class: "warn" }, "orphaned ", h("b", { text: count(moment.orphaned) })) : null,
      lit === null ? null : h("li", {}, h("i", { class: "key lit" }), "of the chosen run ", h("b", { text: count(lit) })),
    ].filter(Boolean));
  }

  /** What was where over the last minutes, as bands as high as the most that were in use; free blocks are the empty part. */
  history(at) {
    const { moments } = this;
    const what = `${moments[0].moment} ${moments.at(-1).moment} ${at}`;
    redraw($("history"), what, () => {
      const total = BLOCK_STATES.reduce((sum, state) => sum + moments[0][state], 0);
      const most = moments.reduce((most, moment) => Math.max(most, total - moment.free), 0);
      const top = Math.max(1, most);
      // As the scrubber below: a moment has its place by its number.
      const x = (i) => (moments.length < 2 ? WIDTH : (i / (moments.length - 1)) * WIDTH);
      const below = moments.map(() => 0);
      const bands = BLOCK_STATES.filter((state) => state !== "free").map((state) => {
        const bottom = moments.map((_, i) => `${x(i).toFixed(1)},${y(below[i], top)}`);
        moments.forEach((moment, i) => (below[i] += moment[state]));
        const above = moments.map((_, i) => `${x(i).toFixed(1)},${y(below[i], top)}`);
        return s("polygon", { class: state, points: [...bottom, ...above.reverse()].join(" ") });
      });
      const line = s("line", { class: "at", x1: x(at), x2: x(at), y1: 0, y2: HISTORY_HEIGHT });
      const since = long(Math.max(0, this.now - moments[0].at_ms));
      say($("peak"), `at most ${count(most)} of ${count(total)} in use in the last ${since}`);
      const label = `Blocks that are not free, over ${plural(moments.length, "moment")}: at most ${count(most)} of ${count(total)}`;
      return s("svg", { viewBox: `0 0 ${WIDTH} ${HISTORY_HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, ...bands, line);
    });
  }

  /** What the map says of the block under the cursor. */
  told(block, kind, why) {
    if (!kind) return;
    const owner = kind.owners.find((name) => name !== "-");
    if (why === "enter") return owner && this.chosen(owner.slice(0, owner.lastIndexOf("/")));
    const isKnown = this.known?.block === block && this.known.moment === this.shown?.moment;
    // What is read aloud is where the cursor goes, not what time does to the block.
    $("block").setAttribute("aria-live", why === "move" ? "polite" : "off");
    if (why === "move" || isKnown) this.describe(block, kind, isKnown ? this.known.generation : null);
    clearTimeout(this.rest);
    const moment = this.shown?.moment;
    this.rest = setTimeout(async () => {
      const one = await find(query(`/v1/kv/blocks/${block}`, { worker: this.worker ?? "", moment })).catch(() => null);
      if (!one || this.map.at !== block || this.shown?.moment !== moment) return;
      this.known = { block, moment, generation: one.generation };
      this.describe(block, kind, one.generation);
    }, REST_MS);
  }

  describe(block, { state, owners, fence }, generation) {
    redraw($("block"), JSON.stringify([block, state, owners, fence, generation]), () => [
      h("b", { text: `block ${count(block)}` }),
      h("span", {}, h("i", { class: `key ${state}` }), state),
      h("span", { text: `generation ${generation === null ? "…" : count(generation)}` }),
      h("span", { text: fence === null ? "no fence" : `fence: step ${count(fence)}` }),
      owners.length === 0
        ? h("span", { class: "muted", text: "no owner" })
        : h("span", { class: "owners" }, `${plural(owners.length, "owner")}: `, ...owners.map((owner) => this.owner(owner))),
    ]);
  }

  owner(owner) {
    if (owner === "-") return h("span", { class: "muted", text: "another tenant's" });
    const run = owner.slice(0, owner.lastIndexOf("/"));
    return h("button", { type: "button", class: "link", "data-focus": owner, onclick: () => this.chosen(run), text: owner });
  }
}

const y = (blocks, most) => (HISTORY_HEIGHT * (1 - blocks / most)).toFixed(1);
