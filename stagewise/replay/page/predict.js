"use strict";
// Pause and predict: before some steps the page asks what will happen. The questions are made from the trace: one for
// each kind of event, where it first happens. The right answer is what the trace says; the others are plausible.

const LAST_QUESTION = 2000; // no questions about steps after this one

/** The questions of a trace: step -> {text, choices, right, kind}. Each is asked before its step is shown. */
function questions(replay) {
  const found = new Map();
  const asked = new Set();
  const end = Math.min(replay.steps.length, LAST_QUESTION);
  for (let number = 1; number < end && asked.size < Object.keys(ASK).length; number++) {
    if (!mayAsk(replay, number, asked)) continue;
    const before = replay.at(number - 1).copy(); // what can be seen when the question is asked
    before.end(replay.steps[number - 1]);
    for (const kind of Object.keys(ASK)) {
      if (asked.has(kind) || found.has(number)) continue;
      const question = ASK[kind](replay, before, replay.steps[number], number);
      if (!question) continue;
      asked.add(kind);
      found.set(number, { kind, ...question, choices: shuffled([...new Set(question.choices)], number) });
    }
  }
  return found;
}

/** Whether a step has something to ask about: a cheap check, before its state is computed. */
function mayAsk(replay, number, asked) {
  const kinds = new Set(replay.steps[number].before.map((event) => event.kind));
  if (!newlyRefused(replay, number)) kinds.delete("refused");
  const last = replay.steps[number - 1].after.some((event) => event.kind === "finished");
  return (
    (last && !asked.has("finished")) ||
    [...kinds].some((kind) => (kind in ASK ? !asked.has(kind) : kind === "admitted" && !asked.has("found")))
  );
}

function shuffled(choices, seed) {
  for (let i = choices.length - 1; i > 0; i--) {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    const j = seed % (i + 1);
    [choices[i], choices[j]] = [choices[j], choices[i]];
  }
  return choices;
}

/** The first refusal of a step, unless the step before refused the same request: then the reader knows the answer. */
function newlyRefused(replay, number) {
  const [before, event] = [number - 1, number].map((n) => eventOf(replay.steps[n], "refused"));
  return event && !(before && keyOf(before) === keyOf(event)) ? event : null;
}

const eventOf = (step, kind) => step.before.find((event) => event.kind === kind);
const runners = (replay, state) =>
  [...state.running].map((key) => state.completions.get(key)).map(({ id, index }) => replay.name(id, index));

const ASK = {
  preempted(replay, before, step) {
    const event = eventOf(step, "preempted");
    const names = runners(replay, before);
    if (!event || names.length < 2) return null;
    const right = replay.name(event.request_id, event.index);
    return {
      text: "The running requests need more blocks than are free. Which one has to give up its blocks?",
      choices: [right, ...names.filter((name) => name !== right).slice(0, 3)].map((name) => `${name} does`),
      right: `${right} does`,
    };
  },
  copied(replay, before, step) {
    const event = eventOf(step, "copied");
    if (!event) return null;
    const name = replay.name(event.request_id, event.index);
    const right = "It gets a copy of the block, and writes there";
    return {
      text: `${name} shares block ${event.source} with others, and its next token belongs there. What happens?`,
      choices: [
        right,
        "It writes into the shared block",
        `${name} waits until the others are finished`,
        "The others lose the block",
      ],
      right,
    };
  },
  found(replay, before, step) {
    const event = step.before.find((e) => e.kind === "admitted" && e.num_cached_tokens);
    const completion = event && before.completions.get(keyOf(event));
    if (!completion) return null;
    const length = lengthOf(completion);
    const name = replay.name(event.request_id, event.index);
    const right = count(length - event.num_cached_tokens, "token");
    return {
      text:
        `${name} will be admitted. It has ${count(length, "token")}, and begins like text that was computed before. ` +
        "How many of its tokens must be computed?",
      choices: [right, count(length, "token"), count(event.num_cached_tokens, "token"), "None"],
      right,
    };
  },
  refused(replay, before, step, number) {
    const event = newlyRefused(replay, number);
    if (!event) return null;
    const name = replay.name(event.request_id, event.index);
    const right = REFUSALS[event.reason];
    return {
      text: `${name} is next in the queue. What happens to it in this step?`,
      choices: [
        right,
        "It is admitted",
        REFUSALS.running,
        replay.stage >= 5 ? REFUSALS.blocks : REFUSALS.budget,
        REFUSALS.budget,
      ].slice(0, 4),
      right,
    };
  },
  admitted(replay, before, step) {
    const event = eventOf(step, "admitted");
    const waiting = before.waiting();
    if (!event || waiting.length < 2) return null;
    const names = waiting.map((key) => before.completions.get(key)).map(({ id, index }) => replay.name(id, index));
    const right = replay.name(event.request_id, event.index);
    if (!names.includes(right)) return null;
    return {
      text: "There is room for another request. Which one is admitted first?",
      choices: [right, ...names.filter((name) => name !== right).slice(0, 2), "Nobody"],
      right,
    };
  },
  evicted(replay, before, step) {
    const event = eventOf(step, "evicted");
    const findable = before.findable();
    if (!event || findable.length < 2 || !findable.includes(event.block)) return null;
    const right = `Block ${event.block}, the first of them in the order of the free blocks`;
    return {
      text: "Every free block is remembered by the prefix cache, and a new block is needed. Which one is taken?",
      choices: [right, `Block ${findable.at(-1)}, which became free last`, "None: the request waits"],
      right,
    };
  },
  finished(replay, before, step, number) {
    const event = replay.steps[number - 1].after.find((e) => e.kind === "finished");
    const last = new Set(replay.steps[number - 1].rows.map(keyOf));
    if (!event || !step.rows.some((row) => last.has(keyOf(row)))) return null; // no row of that step goes on
    const carried = step.rows.some((row) => !row.num_tokens && keyOf(row) === keyOf(event));
    const name = replay.name(event.request_id, event.index);
    const stays = "Its row stays in the batch and is computed for nothing";
    const goes = "It leaves at once, and its place is free";
    return {
      text: `${name} is finished. What happens to its row in the next step?`,
      choices: [stays, goes, "It begins again"],
      right: carried ? stays : goes,
    };
  },
};

const REFUSALS = {
  running: "It waits: no more requests may run at once",
  budget: "It waits: the step has no tokens left",
  blocks: "It waits: too few blocks are free",
  preempted: "It waits: another request has just been preempted",
};
