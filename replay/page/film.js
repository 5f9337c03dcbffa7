"use strict";
// The picture of the whole run, above the slider: a lane for each place in the batch, and below how many wait.

const EDGE = 8; // half of a slider's thumb: the picture begins and ends where its middle can be
const LANE_MIN = 5, LANE_MAX = 13, QUEUE = 16, MOST_LANES = 16;

class Film {
  /** clock: says where a step begins and ends, from 0 to 1. */
  constructor(canvas, replay, clock, number) {
    Object.assign(this, { canvas, replay, clock, number, base: document.createElement("canvas"), drawn: "" });
  }

  draw(ink, position) {
    const { canvas, replay } = this, width = canvas.clientWidth, lanes = Math.min(MOST_LANES, replay.lanes.taken.length);
    const lane = Math.max(LANE_MIN, Math.min(LANE_MAX, 78 / lanes)), height = lanes * lane + QUEUE + 4;
    const context = prepare(canvas, width, height);
    const what = [width, height, devicePixelRatio, replay.steps.length, this.clock.mode, ink.paper, ink.font].join();
    if (what !== this.drawn) {
      this.drawBase(ink, width, height, lane, lanes);
      this.drawn = what;
    }
    context.drawImage(this.base, 0, 0, width, height);
    const x = this.x(position, width);
    context.fillStyle = ink.ink;
    context.fillRect(x - 1, 0, 2, height);
  }

  x(share, width) {
    return EDGE + share * (width - 2 * EDGE);
  }

  drawBase(ink, width, height, lane, lanes) {
    const context = prepare(this.base, width, height), { replay, clock, number } = this;
    const left = (step) => this.x(clock.share(number, step), width), right = (step) => this.x(clock.share(number, step, true), width);
    for (const span of replay.lanes.spans) {
      if (span.lane >= lanes) continue;
      const slash = span.key.lastIndexOf("/"), id = span.key.slice(0, slash), index = Number(span.key.slice(slash + 1));
      const x = left(span.from), y = span.lane * lane, own = replay.names.get(id) ?? 0;
      const end = right(span.to), w = Math.max(1, end - x - 1), h = lane - 1.5;
      if (w < 3) {
        context.fillStyle = ink.own[own % NUM_COLOURS];
        context.fillRect(x, y, w, h);
        continue;
      }
      ink.fill(context, own, x, y, w, h);
      if (span.prefilled >= span.from) {
        context.fillStyle = ink["on-own"];
        context.fillRect(x, y, Math.max(1.5, Math.min(w, right(Math.min(span.prefilled, span.to)) - x) * 0.999), 2.5);
      }
      if (span.carried !== null) {
        const from = left(span.carried);
        context.clearRect(from, y, end - from, h);
        ink.fillWaste(context, from, y, end - from - 1, h);
      }
      if (w > 16 && lane >= 9) {
        const text = replay.name(id, index);
        context.font = `700 ${Math.round(lane - 2.5)}px ${ink.font}`;
        context.textBaseline = "middle";
        context.fillStyle = ink.own[own % NUM_COLOURS];
        context.fillRect(x + 2, y + 1.5, context.measureText(text).width + 4, h - 2);
        context.fillStyle = ink["on-own"];
        context.fillText(text, x + 4, y + h / 2 + 0.75);
      }
    }
    const most = replay.lanes.queued.reduce((a, b) => Math.max(a, b), 1), bottom = height;
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
