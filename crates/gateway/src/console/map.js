// The map of blocks: one cell each on a canvas, coloured by state; a run's cells lit when it is chosen.
//
// A frame of the browser draws at most CELLS_PER_FRAME cells, and only those that look otherwise than before. How many were drawn stands in
// the canvas's data (`drawn`, `frames`, `most`), where a test counts them.

import { BLOCK_STATES } from "./words.js";

export const CELLS_PER_FRAME = 20_000;
/** Largest cell, smallest one, and how high the map may become, in CSS pixels. */
const CELL_MAX = 14;
const CELL_MIN = 1;
const HEIGHT_MAX = 340;
const NARROW = 600;
const HEIGHT_MAX_NARROW = 200;
/** From this size on a cell has a gap beside it, and from the next on a mark for what colour alone should not say. */
const GAPPED = 4;
const MARKED = 7;
const LIT = 8;
const DIMMED = 16;
const NOTHING = 255;

const mine = (owner, run) => owner === run || (owner.startsWith(run) && /^\/[0-9]+$/.test(owner.slice(run.length)));

export class BlockMap {
  constructor(box, canvas, cursor, told) {
    Object.assign(this, { box, canvas, cursor, told, moment: null, run: null, at: null, total: 0 });
    this.ink = canvas.getContext("2d", { alpha: false });
    canvas.dataset.drawn = canvas.dataset.frames = canvas.dataset.most = "0";
    this.kinds = new Uint32Array(0);
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerdown", (event) => this.point(event));
    box.addEventListener("pointerleave", () => document.activeElement !== box && this.move(null));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("focus", () => this.at === null && this.total > 0 && this.move(0));
    new ResizeObserver(() => this.layout()).observe(box);
  }

  /** Shows a moment: `kinds` says what there is, `cells` how many blocks in a row are of which kind. */
  show(moment) {
    const total = moment?.total ?? 0;
    this.moment = moment;
    this.canvas.dataset.moment = moment?.moment ?? "";
    if (total !== this.total) {
      this.total = total;
      this.kinds = new Uint32Array(total);
      this.at = null;
      this.cursor.hidden = true;
    }
    for (let i = 0, block = 0; moment && i < moment.cells.length; i += 2) {
      const end = block + moment.cells[i];
      this.kinds.fill(moment.cells[i + 1], block, end);
      block = end;
    }
    this.layout();
    if (this.at !== null) this.told(this.at, this.kind(this.at), "moment");
  }

  /** Lights a run's cells, and dims the others; null for none. */
  light(run) {
    if (run === this.run) return;
    this.run = run;
    this.colour();
  }

  kind(block) {
    return this.moment?.kinds[this.kinds[block]] ?? null;
  }

  /** How many cells are lit, which is what the run owns. */
  lit() {
    let n = 0;
    for (const look of this.want ?? []) if (look & LIT) n++;
    return n;
  }

  /** New colours, as after a change of the theme. */
  repaint() {
    this.have?.fill(NOTHING);
    this.ink.fillStyle = this.palette().ground;
    this.ink.fillRect(0, 0, this.canvas.width, this.canvas.height);
    this.colours = null;
    this.colour();
  }

  palette() {
    const style = getComputedStyle(this.box);
    const of = (name) => style.getPropertyValue(name).trim();
    const states = Object.fromEntries(BLOCK_STATES.map((state) => [state, of(`--kv-${state}`)]));
    const dims = Object.fromEntries(BLOCK_STATES.map((state) => [state, of(`--kv-${state}-dim`)]));
    return { states, dims, lit: of("--kv-lit"), ground: of("--kv-ground"), mark: of("--kv-mark") };
  }

  layout() {
    const width = this.box.clientWidth;
    if (!width || !this.total) {
      this.canvas.hidden = true;
      return;
    }
    this.canvas.hidden = false;
    const highest = width < NARROW ? HEIGHT_MAX_NARROW : HEIGHT_MAX;
    let cell = CELL_MAX;
    while (cell > CELL_MIN && Math.ceil(this.total / Math.floor(width / cell)) * cell > highest) cell--;
    const columns = Math.max(1, Math.floor(width / cell));
    const rows = Math.ceil(this.total / columns);
    const scale = Math.max(1, Math.round(window.devicePixelRatio || 1));
    const size = `${columns}x${rows}x${cell}x${scale}x${this.total}`;
    if (size !== this.size) {
      Object.assign(this, { size, cell, columns, rows, scale });
      [this.canvas.width, this.canvas.height] = [columns * cell * scale, rows * cell * scale];
      this.canvas.dataset.cell = String(cell * scale);
      this.canvas.style.width = `${columns * cell}px`;
      this.canvas.style.height = `${rows * cell}px`;
      this.have = new Uint8Array(this.total).fill(NOTHING);
      this.want = new Uint8Array(this.total);
      this.repaint();
      if (this.at !== null) this.place();
    } else {
      this.colour();
    }
  }

  /** What each cell should look like; the drawing follows in the browser's frames. */
  colour() {
    if (!this.moment || !this.want) return;
    const lit = this.moment.kinds.map(({ owners }) => this.run !== null && owners.some((owner) => mine(owner, this.run)));
    // A run that owns nothing leaves the others as they are.
    const rest = lit.includes(true) ? DIMMED : 0;
    const looks = this.moment.kinds.map(({ state }, i) => BLOCK_STATES.indexOf(state) | (lit[i] ? LIT : rest));
    for (let block = 0; block < this.total; block++) this.want[block] = looks[this.kinds[block]];
    this.from = 0;
    this.due ??= requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.due = null;
    this.colours ??= this.palette();
    const { ink, want, have, cell, scale, columns, total } = this;
    const size = cell * scale;
    const inner = cell >= GAPPED ? size - scale : size;
    let drawn = 0;
    let look = NOTHING;
    let block = this.from;
    for (; block < total && drawn < CELLS_PER_FRAME; block++) {
      if (want[block] === have[block]) continue;
      if (want[block] !== look) ink.fillStyle = this.fill((look = want[block]));
      const [x, y] = [(block % columns) * size, Math.floor(block / columns) * size];
      // Without gaps, neighbours in a row that look the same are one rectangle.
      let length = 1;
      if (cell < GAPPED) {
        const most = Math.min(total - block, columns - (block % columns), CELLS_PER_FRAME - drawn);
        while (length < most && want[block + length] === look) length++;
      }
      ink.fillRect(x, y, inner + (length - 1) * size, inner);
      if (cell >= MARKED) this.mark(look, x, y, inner);
      have.fill(look, block, block + length);
      drawn += length;
      block += length - 1;
    }
    this.from = block;
    this.count(drawn);
    if (block < total) this.due = requestAnimationFrame(() => this.draw());
  }

  fill(look) {
    const state = BLOCK_STATES[look & 7];
    if (look & LIT) return this.colours.lit;
    return look & DIMMED ? this.colours.dims[state] : this.colours.states[state];
  }

  /** A draining cell has a stripe, a quarantined one a cross. */
  mark(look, x, y, size) {
    const state = BLOCK_STATES[look & 7];
    if (state !== "draining" && state !== "quarantined") return;
    const { ink } = this;
    ink.strokeStyle = this.colours.mark;
    ink.lineWidth = Math.max(1, size / 8);
    ink.beginPath();
    ink.moveTo(x + size * 0.2, y + size * 0.8);
    ink.lineTo(x + size * 0.8, y + size * 0.2);
    if (state === "quarantined") {
      ink.moveTo(x + size * 0.2, y + size * 0.2);
      ink.lineTo(x + size * 0.8, y + size * 0.8);
    }
    ink.stroke();
  }

  count(drawn) {
    const { dataset } = this.canvas;
    dataset.drawn = String(Number(dataset.drawn) + drawn);
    dataset.frames = String(Number(dataset.frames) + 1);
    dataset.most = String(Math.max(Number(dataset.most), drawn));
  }

  point({ clientX, clientY }) {
    if (!this.cell) return;
    const edge = this.canvas.getBoundingClientRect();
    const [x, y] = [Math.floor((clientX - edge.left) / this.cell), Math.floor((clientY - edge.top) / this.cell)];
    const block = y * this.columns + x;
    if (x >= 0 && x < this.columns && y >= 0 && block < this.total) this.move(block);
  }

  key(event) {
    if (!this.total || event.ctrlKey || event.metaKey || event.altKey) return;
    const at = this.at ?? 0;
    const page = 10 * this.columns;
    const steps = {
      ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns, PageUp: -page, PageDown: page, Home: -at,
      End: this.total - 1 - at,
    };
    if (event.key in steps) {
      const to = at + steps[event.key];
      if (to >= 0 && to < this.total) this.move(to);
    } else if (event.key === "n" || event.key === "p") {
      this.move(this.other(at, event.key === "n" ? 1 : -1));
    } else if (event.key === "Enter") {
      this.told(at, this.kind(at), "enter");
    } else {
      return;
    }
    event.preventDefault();
  }

  /** The next block of another kind, or the last one. */
  other(from, step) {
    let at = from;
    while (at + step >= 0 && at + step < this.total) {
      at += step;
      if (this.kinds[at] !== this.kinds[from]) break;
    }
    return at;
  }

  move(block) {
    if (block === this.at) return;
    this.at = block;
    if (block === null) {
      this.cursor.hidden = true;
      return;
    }
    this.place();
    this.told(block, this.kind(block), "move");
  }

  place() {
    const { cell, columns, cursor, at } = this;
    cursor.hidden = false;
    const size = Math.max(cell, 5);
    const off = (size - cell) / 2;
    cursor.style.width = cursor.style.height = `${size}px`;
    cursor.style.transform = `translate(${(at % columns) * cell - off}px, ${Math.floor(at / columns) * cell - off}px)`;
  }
}
