"use strict";
// Loads that cause one effect each, on an engine of any size, and say what to look at.

/** The engine's sizes, in tokens and blocks. */
function engineSizes({ stage, options, max_model_len, num_blocks }) {
  const size = options.block_size ?? max_model_len;
  return {
    stage: Number(stage.slice(5, 7)),
    size,
    blocks: num_blocks ?? options.max_num_seqs,
    seqs: options.max_num_seqs,
    budget: options.max_num_batched_tokens,
    caching: options.enable_prefix_caching ?? false,
    drafter: options.speculate ?? "off",
    drafts: options.num_drafts,
    longest: Math.min(max_model_len, (num_blocks ?? Infinity) * size), // of a sequence, in tokens
  };
}

const blocksFor = (tokens, { size }) => Math.ceil(tokens / size);

/** The levers for a preset that needs this many blocks: few enough to be seen one by one. */
const leversFor = ({ seqs, blocks }, needed) => ({ max_num_seqs: seqs, num_blocks: Math.min(blocks, 16 * Math.ceil(needed / 12)) });

// An output that repeats itself, as a list in JSON does.
const FORM = { structured_outputs: { regex: "(There was a (shy|brave|small) (bear|fox|crow|mouse) near the river\\. ){8}" } };

// Each preset: why it is impossible with an engine, or null; its plan: `levers`, `visitors` ([prompt, max_tokens, other
// fields]; null: wait until a request has a token) and what to look at; and a sentence for a step that shows the effect,
// else null.
const PRESETS = {
  rush: {
    name: "Rush hour",
    why: () => null,
    plan(sizes) {
      const seqs = sizes.stage < 5 ? sizes.seqs : Math.max(1, Math.min(4, sizes.seqs, Math.floor(sizes.blocks / 4)));
      const tokens = Math.min(sizes.longest, 100, Math.max(sizes.size, Math.floor(sizes.blocks / seqs) * sizes.size));
      const number = Math.min(60, 4 * seqs);
      return {
        levers: leversFor({ ...sizes, seqs }, seqs * blocksFor(tokens, sizes)),
        visitors: Array.from({ length: number }, () => [words(10), Math.max(1, tokens - 14)]),
        look: `${number} requests come at once, and max_num_seqs lets ${seqs} run. Look at the queue, and at why the first request in it waits.`,
      };
    },
    found(step, replay) {
      const event = step.before.find(({ kind }) => kind === "refused");
      return event && `${replay.name(event.request_id, event.index)} waits. The line with ■ says why.`;
    },
  },

  memory: {
    name: "Memory runs out",
    why: ({ stage, longest, size }) =>
      stage < 5
        ? "A slot has room for the longest sequence, so a running request has all the memory it will need: from stage 5 on memory can run out."
        : longest < 2 * size
          ? "No request can be longer than a block, so none grows."
          : null,
    plan(sizes) {
      const tokens = Math.min(sizes.longest, Math.max(96, 3 * sizes.size));
      const prompt = Math.min(10, Math.ceil(tokens / 4));
      const needed = blocksFor(tokens, sizes);
      const blocks = Math.min(sizes.blocks, Math.max(needed + 1, Math.ceil(1.5 * needed)));
      const number = Math.min(24, Math.max(6, 3 * Math.ceil(blocks / needed)));
      return {
        levers: { max_num_seqs: sizes.seqs, num_blocks: blocks },
        visitors: Array.from({ length: number }, () => [words(prompt), tokens - prompt - 2]),
        look: `${number} requests need ${needed} blocks each in the end, and there are ${blocks}. Look at “KV memory”: it fills, and then a request loses all of its blocks.`,
      };
    },
    found(step, replay) {
      const event = step.before.find(({ kind }) => kind === "preempted");
      return (
        event &&
        `${replay.name(event.request_id, event.index)} is preempted: it gives up its blocks so that others can go on, waits again, and computes its tokens again later.`
      );
    },
  },

  same: {
    name: "Same prompt",
    why: ({ stage, caching, longest, size }) =>
      stage < 5
        ? "Stage 4 has no prefix cache: from stage 5 on there is one."
        : !caching
          ? "The prefix cache is off (--no-prefix-caching)."
          : longest < size + 12
            ? "No prompt can fill a block, and the prefix cache knows full blocks only."
            : null,
    plan(sizes) {
      const tokens = Math.min(sizes.longest - 10, Math.max(60, 2 * sizes.size));
      const prompt = words(tokens - 4);
      return {
        levers: leversFor(sizes, blocksFor(tokens, sizes) + 12),
        visitors: [[prompt, 8], null, ...Array.from({ length: 5 }, () => [prompt, 8])],
        look: "One request brings a prompt; then five bring the same. Look at “KV memory”: they share its blocks, which are computed once.",
      };
    },
    found(step, replay) {
      const event = step.before.find(({ kind, num_cached_tokens: n }) => kind === "admitted" && n);
      return (
        event &&
        `${replay.name(event.request_id, event.index)} is admitted, and ${event.num_cached_tokens} of its tokens are in the prefix cache: they are not computed again.`
      );
    },
  },

  long: {
    name: "One long among short",
    why: ({ longest, seqs }) =>
      seqs < 2 ? "Only one request may run at a time (max_num_seqs)." : longest < 40 ? "No prompt can be long here." : null,
    plan(sizes) {
      const short = Math.min(200, Math.floor(sizes.longest / 2));
      const number = Math.max(1, Math.min(3, sizes.seqs - 1, Math.floor((0.5 * sizes.blocks) / blocksFor(short, sizes))));
      const room = sizes.stage < 5 ? sizes.longest : (sizes.blocks - number * blocksFor(short, sizes)) * sizes.size;
      const long = Math.max(8, Math.min(800, Math.floor(0.8 * sizes.longest), room) - 10);
      this.least = Math.min(long, sizes.budget) / 2; // tokens in the step to look for
      const pieces = Math.ceil(long / sizes.budget);
      const how = pieces > 1 ? `in ${pieces} pieces (max_num_batched_tokens is ${sizes.budget})` : "in one step";
      return {
        levers: leversFor(sizes, number * blocksFor(short, sizes) + blocksFor(long + 10, sizes)),
        visitors: [...Array.from({ length: number }, () => [words(6), short - 10]), [words(long), 4]],
        look: `${number === 1 ? "A short request runs" : `${number} short requests run`}; then one with a prompt of about ${long} tokens comes, computed ${how}. Look at “Time of this step”: the others wait for it.`,
      };
    },
    found(step, replay) {
      const long = step.rows.find((row) => row.phase === "prefill" && row.num_tokens >= this.least);
      const others = step.rows.filter((row) => row.phase === "decode");
      if (!long || !others.length) return null;
      const before = replay.steps.slice(-60, -1).filter(({ rows }) => rows.length && rows.every(({ phase }) => phase === "decode"));
      const usual = before.length ? ` instead of ${milliseconds(median(before.map(({ seconds }) => seconds)))}` : "";
      return `This step computes ${long.num_tokens} tokens of ${replay.name(long.request_id, long.index)} and took ${milliseconds(step.seconds)} ms${usual}: that is how long ${count(others.length, "other request")} waited for the next token.`;
    },
  },

  guess: {
    name: "Guess ahead",
    why: ({ stage, drafter, longest }) =>
      stage < 7
        ? "Each step gives a request one token here: from stage 7 on it can give several."
        : drafter === "off"
          ? "Guessing is off (--speculate off)."
          : longest < 40
            ? "No output can be long enough."
            : null,
    plan(sizes) {
      const most = Math.min(100, sizes.longest - 20);
      const [fields, who] = ["auto", "ngram"].includes(sizes.drafter)
        ? [FORM, "One request, whose sentences must begin and end alike. What followed the same words before is the guess"]
        : [undefined, `One request. ${sizes.drafter} guesses what follows`];
      return {
        levers: leversFor(sizes, blocksFor(most + 20, sizes)),
        visitors: [[words(10), most, fields]],
        look: `${who}, and the model verifies all guesses in one step. Look at “This step”: guesses stand after the token, right ones underlined, refused ones struck out.${sizes.drafts === "auto" ? " It guesses only as long as that pays (num_drafts auto)." : ""}`,
      };
    },
    found(step, replay) {
      const row = step.rows.find(({ num_accepted: right }) => right);
      return (
        row &&
        `${row.num_accepted} of ${row.drafts.length === 1 ? "1 guess" : `${row.drafts.length} guesses`} ${are(row.num_accepted)} right, so ${replay.name(row.request_id, row.index)} gets ${row.num_accepted + 1} tokens from this step.`
      );
    },
  },
};

/** The buttons, and the words about the preset that was chosen last. */
class Presets {
  constructor(shown) {
    Object.assign(this, { shown, run: null, awaits: null, before: null, moved: null, sizes: engineSizes(shown.replay.header) });
    find("presets").replaceChildren(
      ...Object.entries(PRESETS).map(([id, preset]) => {
        const why = preset.why(this.sizes);
        const button = element("button", "preset", preset.name, { type: "button", "data-preset": id });
        button.addEventListener("click", () => (why ? this.say(preset.name, why) : this.start(preset)));
        button.setAttribute("aria-disabled", String(Boolean(why)));
        if (why) button.title = why;
        return button;
      }),
    );
  }

  say(name, text) {
    find("look").replaceChildren(element("b", "", `${name}. `), text);
    find("look").hidden = false;
  }

  clear() {
    Object.assign(this, { run: null, before: null });
    find("look").hidden = true;
  }

  async start(preset, tries = 3) {
    const plan = preset.plan(this.sizes);
    this.run = null;
    this.shown.follow();
    this.say(preset.name, plan.look);
    if (this.sizes.stage >= 5) {
      this.before ??= Object.fromEntries(Object.keys(plan.levers).map((name) => [name, Number(find(name).value)]));
      this.moved = plan.levers;
      if (!(await moveLevers(plan.levers))) return;
    }
    const [kind, since] = [`preset${numAsked}`, this.shown.last ?? 0]; // kind: names its requests
    const run = { preset, plan, tries, kind, since, numSent: 0, numEnded: 0, isSent: false, isFound: false };
    this.run = run;
    try {
      for (const visitor of plan.visitors) {
        if (!visitor) await new Promise((go) => (this.awaits = go));
        else {
          const [prompt, most, fields] = visitor;
          await visit(prompt, most, fields, kind);
          run.numSent++;
        }
        if (this.run !== run) return; // another one has been chosen
      }
      notes.clear("preset");
    } catch (error) {
      run.tries = 1;
      notes.set("preset", `${preset.name}: ${error.message}`);
    }
    run.isSent = true;
  }

  /** See whether this step shows what was announced. */
  append(step) {
    const { run, shown } = this;
    if (!run) return;
    const isOwn = (id) => shown.askers.get(id)?.[1].startsWith(`${run.kind}-${TAB}-`);
    const events = [...step.before, ...step.after];
    run.numEnded += events.filter(({ kind, request_id: id }) => kind === "finished" && isOwn(id)).length;
    if (this.awaits && step.after.some(({ kind }) => kind === "token")) {
      this.awaits();
      this.awaits = null;
    }
    const found = run.isFound ? null : run.preset.found(step, shown.replay);
    if (!found) return;
    run.isFound = true;
    this.say(run.preset.name, run.plan.look);
    const number = numberOf(step).toLocaleString("en");
    const line = element("p", "found", `Step ${number}: ${found} `);
    const button = element("button", "", `Show step ${number}`, { type: "button" });
    button.addEventListener("click", () => shown.showStep(numberOf(step)));
    line.append(button);
    find("look").append(line);
  }

  /** When all requests are answered, leave the engine as it was. If the announced effect did not come, because the engine
   * was too fast or too busy, try again. */
  settle() {
    const { run, shown } = this;
    const isOver = run?.isSent && (run.numEnded >= run.numSent || (shown.isIdle && shown.last > run.since));
    if (!isOver) return;
    this.run = null;
    if (!run.isFound && run.tries > 1) {
      this.start(run.preset, run.tries - 1);
      return;
    }
    if (!run.isFound) this.say(run.preset.name, `${run.plan.look} It did not happen this time: press the button again.`);
    this.putBack();
  }

  /** The levers as they were, unless the user has moved them. */
  putBack() {
    const moved = Object.entries(this.before ?? {}).filter(([name]) => wanted[name] === this.moved[name]);
    this.before = null;
    if (moved.length) moveLevers(Object.fromEntries(moved));
  }
}
