"use strict";
// The picture of the whole run, above the slider: a lane for each place in the batch, and below how many wait.

const EDGE = 8; // half of a slider's thumb: the picture begins and ends where its middle can be
const LANE_MIN = 2.4;
const LANE_MAX = 13;
const QUEUE = 16;
const MOST_LANES = 40;

class Film {
  /** clock: says where a step begins and ends, from 0 to 1; onDrag is told where the mouse is, in the same measure. */
  constructor(replay, clock, number, words, onDrag) {
    Object.assign(this, { replay, clock, number, onDrag, drawn: "" });
    this.root = element("div", "film");
    this.canvas = element("canvas", "", "", { role: "img", "aria-label": words });
    this.cursor = element("div", "cursor");
    this.root.append(this.canvas, this.cursor);
    this.root.addEventListener("pointerdown", (event) => this.drag(event));
  }

  /** To be called when the window has a new size. */
  measure() {
    this.width = this.root.clientWidth;
  }

  draw(ink, share) {
    const lanes = Math.min(MOST_LANES, this.replay.lanes.taken.length);
    const lane = Math.max(LANE_MIN, Math.min(LANE_MAX, 96 / lanes));
    const what = [this.width, devicePixelRatio, this.replay.steps.length, this.clock.mode, ink.paper, ink.font].join();
    if (what !== this.drawn) {
      this.drawRun(ink, this.width, lanes * lane + QUEUE + 4, lane, lanes);
      this.drawn = what;
    }
    this.cursor.style.transform = `translateX(${this.x(share, this.width) - 1}px)`;
  }

  drag(event) {
    const move = ({ clientX }) => {
      const { left } = this.root.getBoundingClientRect();
      this.onDrag(Math.max(0, Math.min(1, (clientX - left - EDGE) / (this.width - 2 * EDGE))));
    };
    this.root.setPointerCapture(event.pointerId);
    this.root.addEventListener("pointermove", move);
    this.root.addEventListener("pointerup", () => this.root.removeEventListener("pointermove", move), { once: true });
    move(event);
  }

  x(share, width) {
    return EDGE + share * (width - 2 * EDGE);
  }

  drawRun(ink, width, height, lane, lanes) {
    const context = prepare(this.canvas, width, height);
    const { replay, clock, number } = this;
    context.textAlign = "center";
    context.textBaseline = "middle";
    const left = (step) => this.x(clock.share(number, step), width);
    const right = (step) => this.x(clock.share(number, step, true), width);
    for (const span of replay.lanes.spans) {
      if (span.lane >= lanes) continue;
      const slash = span.key.lastIndexOf("/");
      const id = span.key.slice(0, slash);
      const index = Number(span.key.slice(slash + 1));
      const x = left(span.from);
      const y = span.lane * lane;
      const own = replay.names.get(id) ?? 0;
      const end = right(span.to);
      const w = Math.max(1, end - x - 1);
      const h = lane - Math.min(1.5, lane / 3);
      if (w < 3) {
        context.fillStyle = ink.own[own % NUM_COLOURS];
        context.fillRect(x, y, w, h);
        continue;
      }
      ink.fill(context, own, x, y, w, h);
      if (span.prefilled >= span.from) {
        context.fillStyle = ink["on-own"];
        context.globalAlpha = 0.4;
        context.fillRect(x, y, Math.min(w, right(span.prefilled) - x), h);
        context.globalAlpha = 1;
      }
      if (span.carried !== null) {
        const from = left(span.carried);
        context.clearRect(from, y, end - from, h);
        ink.fillWaste(context, from, y, end - from - 1, h);
      }
      if (w > 22 && lane >= 9) {
        const text = replay.name(id, index);
        const size = Math.round(lane - 2.5);
        const plate = ink.own[own % NUM_COLOURS];
        const middle = x + 6 + text.length * size * 0.35;
        ink.write(context, text, middle, y + h / 2 + 0.5, { size, weight: 700, colour: ink["on-own"], plate });
      }
    }
    if (lanes < replay.lanes.taken.length) {
      const words = `${lanes} of ${replay.lanes.taken.length} lanes`;
      ink.write(context, words, width - 60, height - QUEUE / 2, { size: 12, colour: ink.soft });
    }
    const most = replay.lanes.queued.reduce((a, b) => Math.max(a, b), 1);
    const bottom = height;
    context.fillStyle = ink.soft;
    context.globalAlpha = 0.45;
    context.beginPath();
    context.moveTo(this.x(0, width), bottom);
    for (let step = 0; step < replay.steps.length; step++) {
      const y = bottom - (replay.lanes.queued[step] / most) * QUEUE;
      context.lineTo(left(step), y);
      context.lineTo(right(step), y);
    }
    context.lineTo(right(replay.steps.length - 1), bottom);
    context.fill();
    context.globalAlpha = 1;
  }
}
