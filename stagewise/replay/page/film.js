"use strict";
// The picture of the run above the slider: a lane for each place in the batch, and below the lanes how many requests
// wait. Of a long run it shows a part, and an overview below it shows the whole. All that is written is on a canvas over
// the playhead, which covers none of it.

const EDGE = 8; // half of the slider's thumb: the picture begins and ends where the thumb's middle can be
const LANE_MIN = 2.4;
const LANE_MAX = 13;
const LANES = [96, 80]; // the height of all lanes together, with one film and with two, in pixels
const LETTERED = 9; // the height of a lane that has letters
const QUEUE = 14;
const MARKS = 15; // above the lanes
const MARK = 16; // the width of a mark, in pixels
const MOST_LANES = 40;
const OVERVIEW = 12;
const STEP_MIN = 2.5; // pixels for a step: rather than less, a film shows only a part of the run

/** The part of the run that the films show, as fractions of the whole, from 0 to 1. */
class Part {
  constructor() {
    Object.assign(this, { zoom: 1, from: 0, chosen: false });
  }

  get width() {
    return 1 / this.zoom;
  }

  /** Zoom in until steps can be told apart, unless the user has chosen a zoom. */
  fit(numSteps, pixels) {
    if (this.chosen || !pixels) return;
    this.zoom = 2 ** Math.max(0, Math.ceil(Math.log2((STEP_MIN * numSteps) / pixels)));
  }

  choose(zoom, most) {
    this.zoom = Math.max(1, Math.min(most, zoom));
    this.chosen = true;
  }

  /** Move the part if this position is outside of it or near its edge. */
  follow(share) {
    const { width, from } = this;
    const isInside = share >= from + 0.05 * width && share <= from + 0.9 * width;
    if (!isInside) this.from = share - 0.3 * width;
    this.from = Math.max(0, Math.min(1 - width, this.from));
  }
}

class Film {
  /** clock: says where a step begins and ends, from 0 to 1; onDrag: called with the mouse's position, from 0 to 1; marks:
   * steps of this trace that have a label. */
  constructor(replay, clock, number, words, onDrag, part = new Part(), marks = []) {
    Object.assign(this, { replay, clock, number, onDrag, part, marks, drawn: "", label: "" });
    this.root = element("div", "film");
    this.canvas = element("canvas", "", "", { role: "img", "aria-label": words });
    this.cursor = element("div", "cursor");
    this.letters = element("canvas", "letters", "", { "aria-hidden": "true" });
    this.cover = element("div", "cover"); // hides what is to come while the page asks first
    this.top = marks.length || clock.replays.length > 1 ? MARKS : 0;
    if (this.top) this.cursor.style.top = `${MARKS - 2}px`;
    this.cover.style.top = `${Math.max(0, this.top - 2)}px`; // letters stick out of the first lane
    this.root.append(this.canvas, this.cursor, this.letters, this.cover);
    this.root.addEventListener("pointerdown", (event) => this.drag(event));
  }

  /** Call this when the window has a new size. */
  measure() {
    this.width = this.root.clientWidth;
  }

  laneHeight(lanes) {
    return Math.max(LANE_MIN, Math.min(LANE_MAX, LANES[this.clock.replays.length - 1] / lanes));
  }

  /** isAsking: show marks and the end only up to this share of the run; goesOn: the run has no end. */
  draw(ink, share, { isAsking = false, goesOn = false } = {}) {
    const lanes = Math.max(1, Math.min(MOST_LANES, this.replay.lanes.taken.length));
    const { part, clock } = this;
    const isSeen = (step) => !isAsking || clock.share(this.number, step) <= share + 1e-9;
    this.seen = this.marks.filter(({ step }) => isSeen(step));
    this.isEndSeen = !goesOn && isSeen(this.replay.steps.length - 1);
    const look = [this.width, devicePixelRatio, ink.paper, ink.font, part.zoom, part.from, this.seen.length, this.isEndSeen];
    const what = [...look, this.replay.steps.length, clock.end, clock.mode].join();
    if (what !== this.drawn) {
      this.drawRun(ink, this.width, this.laneHeight(lanes), lanes);
      this.drawn = what;
    }
    this.cursor.style.transform = `translateX(${this.x(share) - 1}px)`;
    this.cover.style.left = `${this.x(share) + 1}px`;
  }

  drag(event) {
    const move = ({ clientX }) => {
      const { left } = this.root.getBoundingClientRect();
      const share = Math.max(0, Math.min(1, (clientX - left - EDGE) / (this.width - 2 * EDGE)));
      this.onDrag(this.part.from + share * this.part.width);
    };
    this.root.setPointerCapture(event.pointerId);
    this.root.addEventListener("pointermove", move);
    this.root.addEventListener("pointerup", () => this.root.removeEventListener("pointermove", move), { once: true });
    move(event);
  }

  /** Where a share of the run is, in pixels. */
  x(share) {
    return EDGE + ((share - this.part.from) / this.part.width) * (this.width - 2 * EDGE);
  }

  drawRun(ink, width, lane, lanes) {
    const { replay, clock, number, part, top } = this;
    const height = top + lanes * lane + QUEUE + 3;
    const [context, letters] = [this.canvas, this.letters].map((canvas) => prepare(canvas, width, height));
    for (const each of [context, letters]) Object.assign(each, { textAlign: "center", textBaseline: "middle" });
    const left = (step) => this.x(clock.share(number, step));
    const right = (step) => this.x(clock.share(number, step, true));
    const first = clock.step(number, clock.at(part.from)); // the first step in sight
    const last = clock.step(number, clock.at(part.from + part.width));
    for (const each of [context, letters]) {
      each.save();
      each.beginPath();
      each.rect(EDGE, 0, width - 2 * EDGE, height);
      each.clip();
    }
    for (const span of replay.lanes.spans) {
      if (span.lane >= lanes || span.to < first || span.from > last) continue;
      const y = top + span.lane * lane;
      this.drawSpan(ink, context, letters, span, y, lane, left, right);
    }
    this.drawBeams(ink, context, lane, top, first, last, right);
    this.drawGains(ink, letters, lane, top, first, last, left, right);
    this.drawQueue(ink, context, height, first, last, left, right);
    this.drawEnd(ink, context, letters, top, height, left);
    context.restore();
    letters.restore();
    this.drawMarks(ink, letters, left, right);
    const all = replay.lanes.taken.length;
    const words = [this.label, lanes < all ? `${lanes} of ${all} lanes` : ""].filter(Boolean).join(", ");
    if (words) {
      const half = 3.2 * words.length;
      const end = replay.hasEnd ? left(replay.steps.length - 1) : width;
      const crosses = end > width - EDGE - 2 * half - 6 && end < width;
      const middle = (crosses ? end - 4 : width - EDGE) - half; // so that the line at the end does not cross the words
      ink.write(letters, words, middle, height - QUEUE / 2, { size: 11, color: ink.ink, plate: ink.card });
    }
  }

  drawSpan(ink, context, letters, span, y, lane, left, right) {
    const { replay } = this;
    const [x, end] = [left(span.from), right(span.to)];
    const slash = span.key.lastIndexOf("/");
    const id = span.key.slice(0, slash);
    const index = Number(span.key.slice(slash + 1));
    const own = replay.names.get(id) ?? 0;
    const w = Math.max(1, end - x - 1);
    const h = lane - Math.min(1.5, lane / 3);
    if (w < 3) {
      context.fillStyle = ink.own[own % NUM_COLORS];
      context.fillRect(x, y, w, h);
      return;
    }
    ink.fill(context, own, index, x, y, w, h);
    if (span.prefilled >= span.from) {
      context.fillStyle = ink["on-own"];
      context.globalAlpha = 0.45;
      context.fillRect(x, y, Math.min(w, right(span.prefilled) - x), h);
      context.globalAlpha = 1;
    }
    if (span.carried !== null) {
      const from = left(span.carried);
      context.clearRect(from, y, end - from, h);
      ink.fillWaste(context, from, y, end - from - 1, h);
    }
    ink.outline(context, x, y, w, h);
    if (lane < LETTERED) return;
    const size = sizeIn(lane);
    const text = replay.name(id, index);
    if (w > 10 + text.length * size * 0.7) {
      const plate = ink.own[own % NUM_COLORS];
      const middle = Math.max(x, EDGE) + 6 + text.length * size * 0.35;
      ink.write(letters, text, middle, y + h / 2 + 1, { size, weight: 700, color: ink["on-own"], plate, tall: h - 2 });
    }
    if (span.preempted) {
      context.fillStyle = ink.ink;
      context.fillRect(x + w - 2.5, y - 0.5, 3.5, h + 1);
      const next = replay.lanes.spans.find((other) => other.lane === span.lane && other.from > span.to);
      const words = "↩ preempted";
      const room = (next ? left(next.from) : this.width) - end;
      const style = { size, color: ink.ink, plate: ink.card, tall: h };
      if (room > 6.4 * size) ink.write(letters, words, end + 3.5 * size, y + h / 2 + 1, style);
    }
  }

  drawQueue(ink, context, height, first, last, left, right) {
    const { queued } = this.replay.lanes;
    const most = queued.reduce((a, b) => Math.max(a, b), 1);
    context.fillStyle = ink.soft;
    context.globalAlpha = 0.45;
    context.beginPath();
    context.moveTo(left(first), height);
    for (let step = first; step <= last; step++) {
      const y = height - (queued[step] / most) * QUEUE;
      context.lineTo(left(step), y);
      context.lineTo(right(step), y);
    }
    context.lineTo(right(last), height);
    context.fill();
    context.globalAlpha = 1;
  }

  /** A line where the run ended, if the engine came to rest. */
  drawEnd(ink, context, letters, top, height, left) {
    const { replay } = this;
    if (!replay.hasEnd || replay.steps.length < 2 || !this.isEndSeen) return;
    const end = left(replay.steps.length - 1);
    context.fillStyle = ink.ink;
    context.fillRect(end, top, 1.5, height - top);
    const { clock, number } = this;
    const span = clock.mode === "steps" ? count(replay.passes, "step") : `${clock.position(number, replay.steps.length - 1).toFixed(3)} s`;
    const words = `ends after ${span}`;
    const half = 3.2 * words.length;
    const isMarked = this.marks.some(({ step }) => left(step) > end - 2 * half - 20);
    const fits = this.width - EDGE - end > 2 * half + 6;
    if (!fits && (!top || isMarked)) return;
    const middle = fits ? end + half + 5 : end - half - 2;
    ink.write(letters, words, middle, top ? top / 2 : 8, { size: 11, weight: 700, color: ink.ink, plate: ink.card });
  }

  /** The stops of a story, side by side where their steps are too close. */
  drawMarks(ink, context, left, right) {
    let free = 0;
    for (const { step, label } of this.seen) {
      const place = (left(step) + right(step)) / 2;
      if (place < EDGE || place > this.width - EDGE) continue;
      const x = Math.max(place, free);
      free = x + MARK;
      context.fillStyle = ink.ink;
      context.beginPath();
      context.arc(x, 6.5, 6.5, 0, 7);
      context.fill();
      ink.write(context, label, x, 7, { size: 10, weight: 700, color: ink.card });
    }
  }

  /** Beam search: a curve where a beam goes on in another lane, a cross where one ends. */
  drawBeams(ink, context, lane, top, first, last, right) {
    const { beams, lanes } = this.replay;
    if (lane < LETTERED) return;
    const middle = (number) => top + (number + 0.5) * lane - 0.5;
    Object.assign(context, { strokeStyle: ink["on-own"], lineWidth: 1.6 });
    for (const { step, id, parents } of beams) {
      const half = Math.min(5, (right(step) - (step ? right(step - 1) : EDGE)) / 3);
      if (step < first || step > last || half < 3) continue;
      const laneOf = (index, at) =>
        lanes.spans.find(({ key, from, to }) => key === `${id}/${index}` && from <= at && at <= to)?.lane;
      const x = right(step);
      parents.forEach((parent, index) => {
        const [from, to] = [laneOf(parent, step), laneOf(index, step + 1)];
        if (from === undefined || to === undefined || from === to) return;
        context.beginPath();
        context.moveTo(x - half, middle(from));
        context.bezierCurveTo(x, middle(from), x, middle(to), x + half, middle(to));
        context.stroke();
      });
      for (const index of parents.keys()) {
        const at = laneOf(index, step);
        if (at === undefined || parents.includes(index)) continue;
        const y = middle(at);
        context.beginPath();
        for (const way of [-1, 1]) {
          context.moveTo(x - 8, y - 3 * way);
          context.lineTo(x - 2, y + 3 * way);
        }
        context.stroke();
      }
    }
  }

  /** How many tokens a step gave, where draft tokens were accepted. */
  drawGains(ink, context, lane, top, first, last, left, right) {
    const { lanes, gains, names } = this.replay;
    if (lane < LETTERED) return;
    for (const { step, key, tokens } of gains) {
      if (step < first || step > last || right(step) - left(step) < 20) continue;
      const span = lanes.spans.find((one) => one.key === key && one.from <= step && step <= one.to);
      if (!span || span.lane >= MOST_LANES) continue;
      const plate = ink.own[(names.get(key.slice(0, key.lastIndexOf("/"))) ?? 0) % NUM_COLORS];
      const x = (left(step) + right(step)) / 2;
      const style = { size: sizeIn(lane), color: ink["on-own"], plate, tall: lane - 4 };
      ink.write(context, `+${tokens}`, x, top + (span.lane + 0.5) * lane, style);
    }
  }
}

/** How large a letter in a lane is. */
const sizeIn = (lane) => Math.max(SMALLEST, Math.min(11, Math.round(lane - 1.5)));

/** A whole long run, below the films that show a part of it: how many requests run, and which part is shown. */
class Overview {
  constructor(clock, part) {
    Object.assign(this, { clock, part, drawn: "" });
    this.root = element("div", "overview", "", { "aria-hidden": "true" });
    this.canvas = element("canvas");
    this.shown = element("div", "part");
    this.root.append(this.canvas, this.shown);
  }

  draw(ink, width) {
    const { clock, part } = this;
    this.root.hidden = part.zoom <= 1;
    if (this.root.hidden) return;
    const inner = width - 2 * EDGE;
    this.shown.style.transform = `translateX(${EDGE + part.from * inner}px)`;
    this.shown.style.width = `${Math.max(6, part.width * inner)}px`;
    const grain = Math.max(1, Math.floor(clock.end / 500)); // appended steps: draw again only after this many
    const what = [width, devicePixelRatio, ink.paper, clock.mode, Math.floor(clock.end / grain)].join();
    if (what === this.drawn) return;
    this.drawn = what;
    const height = clock.replays.length * (OVERVIEW + 1);
    const context = prepare(this.canvas, width, height);
    context.fillStyle = ink.soft;
    clock.replays.forEach((replay, number) => {
      const most = Math.max(1, replay.lanes.taken.length);
      const bottom = number * (OVERVIEW + 1) + OVERVIEW;
      const columns = new Array(Math.max(1, Math.ceil(inner))).fill(0);
      replay.steps.forEach(({ rows }, step) => {
        const column = Math.min(columns.length - 1, Math.floor(clock.share(number, step) * inner));
        columns[column] = Math.max(columns[column], rows.length);
      });
      columns.forEach((rows, i) => context.fillRect(EDGE + i, bottom, 1, (-rows / most) * OVERVIEW));
    });
  }
}
