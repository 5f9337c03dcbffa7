"use strict";
// Every event in a line of words, and what the forward pass of a step computes.

const STAGE_IDEAS = [
  "one prompt at a time", "static batching", "KV cache", "continuous batching", "paged KV cache", "paged KV cache, fast",
];

const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

function list(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** A token's text, so that all of it can be seen and none of it does anything: control characters, marks that turn the
 * direction of writing, halves of surrogate pairs. */
function visible(text) {
  return text
    .replace(/\n/g, "↵")
    .replace(/\t/g, "⇥")
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]|\p{Surrogate}/gu, codePoint);
}

function codePoint(c) {
  return `‹${c.codePointAt(0).toString(16).toUpperCase()}›`;
}

/** What an event means, in a sentence; null for tokens, which are shown where they belong. `state`: during its step. */
function sentence(replay, state, event) {
  const name = event.request_id === undefined ? "" : replay.name(event.request_id, event.index);
  const completion = state.completions.get(keyOf(event));
  const { options } = replay.header;
  switch (event.kind) {
    case "queued": {
      const several = event.n > 1 ? `, ${event.n} times` : "", under = event.output_token_ids.length;
      const wanted = `${count(event.prompt_token_ids.length, "prompt token")}, at most ${event.max_tokens} to come${several}`;
      return `${replay.name(event.request_id)} joins the queue${under ? ` with ${count(under, "output token")}` : ""}: ${wanted}.`;
    }
    case "admitted": {
      const slot = event.slot === undefined || event.slot === null ? "" : ` and gets slot ${event.slot}`;
      const cached = event.num_cached_tokens ?? 0, length = completion ? lengthOf(completion) : 0;
      const found = cached ? `: ${cached} of its ${length} tokens are in the prefix cache and need no computing` : "";
      return `${name} is admitted${slot}${found}.`;
    }
    case "refused": {
      const why = {
        running: () => `${options.max_num_seqs ?? "as many as may"} requests run already, and no more may`,
        budget: () => "the step has no tokens left",
        whole: () => `its prompt needs ${count(event.needed, "token")} in one step, and ${event.left} are left`,
        scores: () => "the step makes no more logits of prompts",
        blocks: () => {
          const are = (number) => `${number} ${number === 1 ? "is" : "are"}`;
          const reserve = event.reserve ? `, ${are(event.reserve)} kept back for those that run` : "";
          return `it needs ${count(event.needed, "block")}, ${are(event.free)} free${reserve}`;
        },
        preempted: () => "a request has just lost its blocks, so memory is short",
      };
      return `${name} waits: ${why[event.reason]()}.`;
    }
    case "preempted":
      return `${name} is preempted: it gives up its blocks and goes back to its place in the queue. ` +
        `Its ${count(completion ? lengthOf(completion) : 0, "token")} must be computed again.`;
    case "copied":
      return `${name} is about to write into block ${event.source}, which it shares. It gets a copy: block ${event.target}.`;
    case "evicted":
      return `Block ${event.block} is taken for new tokens: the prefix cache loses what was in it.`;
    case "forked":
      return `${name} starts from the tokens of ${replay.name(event.request_id, event.parent)}` +
        (event.running ? " and shares its memory." : ", and waits for a place.");
    case "beams": {
      const kept = event.parents.map((parent, i) => `${replay.name(event.request_id, i)} from ${replay.name(event.request_id, parent)}`);
      return kept.length ? `The best beams of ${replay.name(event.request_id)} go on: ${list(kept)}.` : null;
    }
    case "finished": {
      const why = {
        stop: "it has reached its end", length: "it has all the tokens it may have", abort: "it was aborted",
        beams: "its search has ended",
      };
      return `${event.reason === "beams" ? replay.name(event.request_id) : name} is finished: ${why[event.reason] ?? event.reason}.`;
    }
    case "restarted":
      return "A step was cut short: everybody waits again, and all memory is free.";
  }
  return null;
}

/** What the forward pass of a step computes, in a sentence. */
function passInWords(replay, state) {
  const rows = [...state.rows.values()], name = (row) => replay.name(row.request_id, row.index);
  const parts = [];
  const live = rows.filter((row) => row.num_tokens);
  const whole = replay.stage <= 2; // these compute all of every sequence
  const prefills = live.filter((row) => row.phase === "prefill" || (!whole && row.num_tokens > 1));
  const decodes = live.filter((row) => !prefills.includes(row));
  const entire = prefills.filter((row) => row.phase === "prefill" && row.num_tokens === lengthOf(state.completions.get(keyOf(row))));
  if (entire.length > 8) {
    const tokens = entire.reduce((sum, row) => sum + row.num_tokens, 0);
    parts.push(`${entire.length} requests compute their prompts, ${count(tokens, "token")}`);
  } else if (entire.length) {
    const lengths = list(entire.map((row) => String(row.num_tokens))), last = entire.at(-1).num_tokens === 1 ? "token" : "tokens";
    parts.push(`${list(entire.map(name))} compute${entire.length > 1 ? " their prompts" : "s its prompt"}, ${lengths} ${last}`);
  }
  for (const row of prefills.filter((other) => !entire.includes(other))) {
    const completion = state.completions.get(keyOf(row)), length = lengthOf(completion), end = row.start + row.num_tokens;
    const whose = row.phase === "prefill" ? " of its prompt" : "", again = completion.recomputed ? " again" : "";
    const piece = row.start || end < length ? ` (${row.start + 1} to ${end} of ${length})` : "";
    parts.push(`${name(row)} computes ${count(row.num_tokens, "token")}${whose}${again}${piece}`);
  }
  const names = decodes.length > 8 ? `${decodes.length} requests` : list(decodes.map(name));
  if (decodes.length && whole) {
    const tokens = decodes.reduce((sum, row) => sum + row.num_tokens, 0);
    parts.push(`${names} compute${decodes.length > 1 ? "" : "s"} all ${count(tokens, "token")} again, for one token more${decodes.length > 1 ? " each" : ""}`);
  } else if (decodes.length) {
    parts.push(decodes.length > 1 ? `${names} compute one token each` : `${names} computes one token`);
  }
  const carried = rows.filter((row) => !row.num_tokens);
  if (carried.length) {
    const which = carried.length > 8 ? `${carried.length} rows` : list(carried.map(name));
    parts.push(`${which} ${carried.length > 1 ? "are" : "is"} finished, and carried along for nothing`);
  }
  return `${parts.join("; ")}.`;
}
