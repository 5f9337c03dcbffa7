"use strict";
// From events to states: what is where during each step of a trace. replay/state.py does the same in Python.
//
// The objects in a state are never changed, only replaced, so a state is cheap to copy. A replay keeps a copy every
// KEYFRAME steps, and computes any other state from the copy before it, so jumps in either direction are fast.

const KEYFRAME = 64;
const KINDS = [
  "queued",
  "admitted",
  "refused",
  "preempted",
  "copied",
  "evicted",
  "beams",
  "finished",
  "restarted",
];

const numberOf = (step) => step.step + 1; // readers count steps from 1

const keyOf = (event) => `${event.request_id}/${event.index}`;

/** The tokens of a completion from `start` up to `end`. Outputs only grow, so the states share them. */
function tokensOf(completion, start = 0, end = lengthOf(completion)) {
  const { prompt, output, numOutput } = completion;
  const { length } = prompt;
  const own = output.slice(Math.max(0, start - length), Math.max(0, Math.min(numOutput, end - length)));
  return start >= length ? own : prompt.slice(start, end).concat(own);
}

function lengthOf(completion) {
  return completion.prompt.length + completion.numOutput;
}

/** Everything during a step: which requests wait and run, what they hold, and what is in the blocks. */
class State {
  constructor(header) {
    this.blockSize = header.options.block_size ?? 16;
    this.longestFirst = Boolean(header.options.sort_by_length); // stages 2 and 3 take the longest prompts first
    this.completions = new Map(); // key -> completion
    this.running = new Set(); // the keys of the running ones
    this.numWaiting = 0;
    this.numBlocks = header.num_blocks ?? 0;
    this.free = header.free?.slice() ?? Array.from({ length: this.numBlocks }, (_, i) => i); // the next to be taken first
    this.numFindable = header.num_findable ?? 0; // how many of them, at the end, the prefix cache can find
    this.contents = []; // block -> {tokens, key}: the tokens whose keys and values are in it, and who computed them
    this.rows = new Map(); // key -> row of this step
    this.numSeats = 0; // admissions so far
    this.counts = { output: 0, useful: 0, recomputed: 0, padding: 0, carried: 0, refused: 0, preemptions: 0 };
  }

  copy() {
    const copy = Object.assign(Object.create(State.prototype), this);
    copy.completions = new Map(this.completions);
    copy.running = new Set(this.running);
    copy.contents = this.contents.slice();
    copy.free = this.free.slice();
    return copy;
  }

  /** Through the forward pass of a step. */
  begin(step) {
    for (const event of step.before) this.apply(event);
    this.counts = { ...this.counts };
    this.rows = new Map(step.rows.map((row) => [keyOf(row), row]));
    for (const [key, row] of this.rows) this.compute(key, row);
    for (const event of [...step.before, ...step.after]) {
      if (event.kind === "token") this.counts.output += 1;
      if (event.kind === "beams") this.counts.output += event.token_ids.length;
      if (event.kind === "preempted") this.counts.preemptions += 1;
    }
  }

  end(step) {
    for (const event of step.after) this.apply(event);
  }

  /** A row of the forward pass. */
  compute(key, row) {
    const completion = this.completions.get(key);
    const accepted = row.num_accepted ?? 0; // draft tokens that were right, computed like any others
    const end = row.start + row.num_tokens + accepted;
    if (row.num_tokens === 0) {
      // it is finished, and carried along
      this.counts.carried += row.num_padding;
      this.change(key, { slot: row.slot, recomputed: 0 });
      return;
    }
    const recomputed = Math.max(0, Math.min(end, completion.furthest) - row.start);
    this.counts.recomputed += recomputed;
    this.counts.useful += row.num_tokens + accepted - recomputed;
    this.counts.refused += (row.drafts?.length ?? 0) - accepted;
    this.counts.padding += row.num_padding;
    const changed = { recomputed, numComputed: end, furthest: Math.max(completion.furthest, end), slot: row.slot };
    if (row.phase === "prefill") changed.padding = row.num_padding;
    if (row.blocks !== null) {
      const size = this.blockSize;
      const { output, numOutput } = completion;
      const guessed = output.slice(0, numOutput).concat(row.drafts?.slice(0, accepted) ?? []);
      const known = accepted ? { ...completion, output: guessed, numOutput: guessed.length } : completion;
      const first = completion.blocks.length ? Math.floor(row.start / size) : 0;
      for (let i = first; i < row.blocks.length; i++) {
        const block = row.blocks[i];
        const written = (i + 1) * size > row.start; // in this step, or not yet
        if (written || !this.contents[block]) {
          this.contents[block] = { tokens: tokensOf(known, i * size, Math.min((i + 1) * size, end)), key };
        }
      }
      changed.blocks = row.blocks;
    }
    this.change(key, changed);
  }

  apply(event) {
    const key = keyOf(event);
    const completion = this.completions.get(key);
    switch (event.kind) {
      case "queued": {
        const again = completion && completion.status !== "finished" ? completion : null; // after a restart
        this.put(key, {
          id: event.request_id,
          index: event.index,
          n: event.n,
          maxTokens: event.max_tokens,
          place: event.place,
          prompt: event.prompt_token_ids,
          output: event.output_token_ids.slice(),
          numOutput: event.output_token_ids.length,
          arrival: again?.arrival ?? this.completions.size,
          furthest: again?.furthest ?? 0,
          status: "waiting",
          seat: -1,
          slot: null,
          blocks: [],
          numCached: 0,
          numComputed: 0,
          recomputed: 0,
          padding: 0,
          numPreemptions: 0,
          finishReason: null,
        });
        break;
      }
      case "admitted": {
        const numCached = event.num_cached_tokens ?? 0;
        this.change(key, {
          status: "running",
          slot: event.slot ?? null,
          numCached,
          numComputed: numCached,
          seat: this.numSeats++,
        });
        break;
      }
      case "preempted":
        this.leave(key, "waiting");
        this.change(key, { numPreemptions: completion.numPreemptions + 1 });
        break;
      case "token": {
        const { output, numOutput } = this.completions.get(key);
        if (output.length === numOutput) output.push(event.token_id); // else an earlier visit to this step pushed it
        this.change(key, { numOutput: numOutput + 1 });
        break;
      }
      case "beams": {
        if (!event.parents.length) break; // the search is done
        const old = this.group(event.request_id);
        for (const { index } of old) this.drop(`${event.request_id}/${index}`);
        event.parents.forEach((parent, i) => {
          const beam = this.fork(
            old.find(({ index }) => index === parent),
            i,
          );
          beam.output.push(event.token_ids[i]);
          this.change(`${event.request_id}/${i}`, { numOutput: beam.numOutput + 1, seat: this.numSeats++ });
        });
        break;
      }
      case "finished":
        for (const { index } of event.reason === "beams" ? this.group(event.request_id) : completion ? [event] : []) {
          this.leave(`${event.request_id}/${index}`, "finished");
          this.change(`${event.request_id}/${index}`, { finishReason: event.reason });
        }
        break;
      case "taken": {
        const place = this.free.indexOf(event.block);
        if (place < 0) throw new Error(`block ${event.block} is taken, but is not free`);
        this.numFindable -= place >= this.free.length - this.numFindable;
        this.free.splice(place, 1);
        break;
      }
      case "released":
        this.free.splice(event.cached ? this.free.length : 0, 0, event.block);
        this.numFindable += event.cached;
        break;
      case "restarted":
        this.free = Array.from({ length: this.numBlocks }, (_, i) => i);
        this.numFindable = 0;
        for (const [other, { status }] of this.completions) {
          if (status !== "finished") this.leave(other, "gone"); // unless it is queued again
        }
        break;
    }
  }

  put(key, completion) {
    const before = this.completions.get(key)?.status;
    const { status } = completion;
    this.completions.set(key, completion);
    if (status === before) return;
    this.numWaiting += (status === "waiting") - (before === "waiting");
    if (status === "running") this.running.add(key);
    else this.running.delete(key);
  }

  drop(key) {
    this.numWaiting -= this.completions.get(key).status === "waiting";
    this.completions.delete(key);
    this.running.delete(key);
  }

  change(key, changed) {
    this.put(key, { ...this.completions.get(key), ...changed });
  }

  /** It no longer runs, and has no memory. */
  leave(key, status) {
    this.change(key, { status, slot: null, blocks: [], numComputed: 0 });
  }

  /** Another completion, with the same prompt and its parent's first numOutput tokens. */
  fork(parent, index) {
    const output = parent.output.slice(0, parent.numOutput);
    const child = { ...parent, index, output, arrival: this.completions.size, recomputed: 0 };
    this.put(`${parent.id}/${index}`, child);
    return child;
  }

  /** The completions of a request. */
  group(id) {
    return [...this.completions.values()].filter((completion) => completion.id === id);
  }

  /** The free blocks that the prefix cache can find. */
  findable() {
    return this.free.slice(this.free.length - this.numFindable);
  }

  /** The keys of the waiting completions, in queue order. */
  waiting() {
    const place = (c) => c.place ?? [this.longestFirst ? -c.prompt.length : 0, c.arrival];
    return [...this.completions]
      .filter(([, { status }]) => status === "waiting")
      .sort(([, a], [, b]) => place(a)[0] - place(b)[0] || place(a)[1] - place(b)[1])
      .map(([key]) => key);
  }

  /** The keys of the completions that run or are carried along, in the order of admission. */
  shown() {
    const seat = (key) => this.completions.get(key).seat;
    return [...new Set([...this.running, ...this.rows.keys()])].sort((a, b) => seat(a) - seat(b));
  }
}

/** A trace, with the state at any of its steps. Steps may be appended at any time. */
class Replay {
  constructor(header) {
    this.header = header;
    this.stage = Number(header.stage.slice(5, 7));
    this.cached = this.stage >= 3; // is there a KV cache?
    this.steps = [];
    this.texts = new Map(); // token id -> its text
    this.names = new Map(); // request_id -> its letter's number
    this.several = new Set(); // requests that have several completions
    this.counts = []; // step -> what has been computed through it
    this.stepsWith = Object.fromEntries(KINDS.map((kind) => [kind, []])); // kind of event -> the steps that have one
    this.lanes = new Lanes(this.cached);
    this.beams = []; // {step, id, parents}: of each step of a beam search, which beam goes on as which
    this.gains = []; // {step, key, tokens}: rows that got several tokens in a step
    this.keyframes = [];
    this.head = new State(header); // before the next step to be appended
    this.current = null; // {number, state}: the state that was computed last, during that step
  }

  append(step) {
    const number = this.steps.length;
    if (number % KEYFRAME === 0) this.keyframes.push(this.head.copy());
    this.steps.push(step);
    for (const [id, text] of Object.entries(step.texts)) this.texts.set(Number(id), text);
    const events = [...step.before, ...step.after];
    for (const event of events) {
      if (this.stepsWith[event.kind] && this.stepsWith[event.kind].at(-1) !== number)
        this.stepsWith[event.kind].push(number);
      if (event.kind === "queued" && !this.names.has(event.request_id))
        this.names.set(event.request_id, this.names.size);
      if (event.kind === "beams" || event.n > 1) this.several.add(event.request_id);
      if (event.kind === "beams") this.beams.push({ step: number, id: event.request_id, parents: event.parents });
    }
    for (const key of step.rows.filter((row) => row.num_accepted).map(keyOf)) {
      const tokens = step.after.filter((event) => event.kind === "token" && keyOf(event) === key).length;
      this.gains.push({ step: number, key, tokens });
    }
    this.head.begin(step);
    this.counts.push(this.head.counts);
    this.lanes.append(number, step, this.head);
    this.head.end(step);
  }

  /** The first step's number: 1, unless the recording began in the middle of a run. */
  get first() {
    return numberOf(this.steps[0]);
  }

  /** Remove the last step, one in which nothing happened. */
  takeBack() {
    const number = this.steps.length - 1;
    for (const list of [this.steps, this.counts, this.lanes.queued]) list.pop();
    if (number % KEYFRAME === 0) this.keyframes.pop();
    if (this.current?.number === number) this.current = null;
  }

  /** The state during a step. */
  at(number) {
    const from = Math.floor(number / KEYFRAME) * KEYFRAME;
    const last = this.current;
    if (last && last.number === number) return last.state;
    const goOn = last && last.number < number && last.number >= from;
    const state = goOn ? last.state : this.keyframes[from / KEYFRAME].copy();
    if (goOn) state.end(this.steps[last.number]);
    for (let i = goOn ? last.number + 1 : from; i < number; i++) {
      state.begin(this.steps[i]);
      state.end(this.steps[i]);
    }
    state.begin(this.steps[number]);
    this.current = { number, state };
    return state;
  }

  /** How many forward passes there were. */
  get passes() {
    return this.steps.length - Number(this.hasEnd);
  }

  /** Whether the engine came to rest after them: the last record has no rows. */
  get hasEnd() {
    return this.steps.at(-1).rows.length === 0;
  }

  /** When a step begins and ends, in seconds since the first one began. */
  begins(number) {
    return this.beginning(this.steps[number]) - this.beginning(this.steps[0]);
  }

  ends(number) {
    return this.steps[number].start + this.steps[number].seconds - this.beginning(this.steps[0]);
  }

  beginning(step) {
    return step.start - (step.parts.schedule ?? 0) - (step.parts.build ?? 0);
  }

  /** The name of a completion: a letter for the request, and a number if it has several completions. */
  name(id, index) {
    let number = this.names.get(id) ?? 0;
    let letters = "";
    for (; number >= 0; number = Math.floor(number / 26) - 1)
      letters = String.fromCharCode(65 + (number % 26)) + letters;
    return this.several.has(id) && index !== undefined ? `${letters}${index + 1}` : letters;
  }

  /** The completion with a name, {id, index}; id is null if there is none. */
  named(name) {
    const [, letters, number] = /^([A-Z]+)(\d*)$/.exec(name) ?? [];
    const id = [...this.names.keys()].find((id) => this.name(id) === letters) ?? null;
    return { id, index: Math.max(1, Number(number) || 1) - 1 };
  }
}

/** Who ran when, for the picture of the run. An admitted request takes the lowest free lane. */
class Lanes {
  constructor(cached) {
    this.cached = cached; // with a KV cache, a row of several tokens is a prefill
    this.spans = []; // {key, lane, from, to, prefilled, carried, preempted}: steps; `to` is the last one
    this.open = new Map(); // key -> its span, while it goes on
    this.taken = []; // lane -> whether it is occupied
    this.queued = []; // step -> how many wait
  }

  append(number, step, state) {
    const there = new Set(state.shown());
    for (const [key, span] of this.open) {
      if (there.has(key)) continue;
      this.taken[span.lane] = false;
      this.open.delete(key);
      span.preempted = state.completions.get(key)?.status === "waiting";
    }
    for (const key of there) {
      if (!this.open.has(key)) {
        const free = this.taken.indexOf(false);
        const lane = free < 0 ? this.taken.length : free;
        this.taken[lane] = true;
        this.open.set(key, { key, lane, from: number, to: number, prefilled: -1, carried: null });
        this.spans.push(this.open.get(key));
      }
      const span = this.open.get(key);
      const row = state.rows.get(key);
      span.to = number;
      if (row?.phase === "prefill" || (this.cached && row?.num_tokens > 1)) span.prefilled = number;
      if (row && row.num_tokens === 0) span.carried ??= number;
    }
    this.queued.push(state.numWaiting);
  }
}

/** What is where at a step; tests compare it with the states in Python. */
function snapshot(replay, number) {
  const state = replay.at(number);
  const waiting = state.waiting();
  const shown = state.shown();
  const live = [...new Set([...waiting, ...shown])];
  const by = (get) => Object.fromEntries(live.map((key) => [key, get(state.completions.get(key))]));
  const findable = state.findable();
  const visible = new Set([...findable, ...live.flatMap((key) => state.completions.get(key).blocks)]);
  return {
    waiting,
    running: shown,
    tokens: by((completion) => tokensOf(completion)),
    num_computed: by((completion) => completion.numComputed),
    recomputed: by((completion) => completion.recomputed),
    slots: by((completion) => completion.slot),
    tables: by((completion) => completion.blocks),
    free: state.free.slice(),
    findable,
    contents: Object.fromEntries(
      [...visible].filter((b) => state.contents[b]).map((b) => [b, state.contents[b].tokens]),
    ),
    counts: { ...state.counts },
  };
}
