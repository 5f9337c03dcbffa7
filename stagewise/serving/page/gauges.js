"use strict";
// What the engine is doing now, in numbers, from the steps as they come. The clock is the engine's.

const WINDOW = 2; // seconds: "now"
const MOST_TTFT = 100; // the latest ones
const MOST_ITL = 500;

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? (sorted[(sorted.length - 1) >> 1] + sorted[sorted.length >> 1]) / 2 : null;
}

const milliseconds = (seconds) => (1e3 * seconds).toFixed(seconds < 0.01 ? 1 : 0);

/** How fast tokens come, for everyone and for this tab. */
class Rates {
  constructor() {
    this.latest = []; // of the last seconds: [end of a step, its number of tokens, its start]
    this.last = new Map(); // completion -> when it got its latest token
    this.all = { ttft: [], itl: [] };
    this.mine = { id: null, ttft: [], itl: [] }; // of this tab's latest request
  }

  /** asked: request -> [when it came, its x-request-id]. */
  append(step, asked, mine) {
    const end = step.start + step.seconds;
    let tokens = 0;
    for (const event of [...step.before, ...step.after]) {
      if (event.kind === "finished") this.last.delete(keyOf(event));
      if (event.kind !== "token") continue;
      tokens++;
      const key = keyOf(event);
      const since = this.last.get(key) ?? asked.get(event.request_id)?.[0];
      const kind = this.last.has(key) ? "itl" : "ttft";
      this.last.set(key, end);
      if (since === undefined) continue; // it came before this page
      const isMine = mine.has(event.request_id);
      if (isMine && this.mine.id !== event.request_id) this.mine = { id: event.request_id, ttft: [], itl: [] };
      for (const list of isMine ? [this.all[kind], this.mine[kind]] : [this.all[kind]]) {
        list.push(end - since);
        if (list.length > (kind === "itl" ? MOST_ITL : MOST_TTFT)) list.shift();
      }
    }
    if (step.rows.length) this.latest.push([end, tokens, step.start]);
    while (this.latest.length > 3 && this.latest[0][0] < end - WINDOW) this.latest.shift();
  }

  /** Tokens per second, over the latest steps. */
  get now() {
    if (!this.latest.length) return 0;
    const tokens = this.latest.reduce((sum, [, number]) => sum + number, 0);
    return tokens / Math.max(1e-3, this.latest.at(-1)[0] - this.latest[0][2]);
  }

  words(kind) {
    const all = median(this.all[kind]);
    const mine = median(this.mine[kind]);
    if (all === null) return "–";
    const own = mine === null ? "" : `★ yours ${milliseconds(mine)} ms, `;
    return `${own}median ${milliseconds(all)} ms`;
  }
}

/** The engine's load after the last step: {running, waiting, held, most, what}. */
function load(replay) {
  const { head } = replay;
  const running = [...head.running];
  const blocks = new Set(running.flatMap((key) => head.completions.get(key).blocks));
  const [held, most, what] =
    replay.stage >= 5 ? [blocks.size, replay.header.num_blocks, "block"] : [running.length, replay.header.num_slots, "slot"];
  return { running: running.length, waiting: head.numWaiting, held, most, what };
}
