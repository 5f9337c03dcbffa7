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
    .replace(/[\u0000-\u001f]/g, (c) => String.fromCharCode(0x2400 + c.charCodeAt(0)))
    .replace(/\u007f/g, "␡")
    .replace(/[\u0080-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g, codePoint)
    .replace(/\p{Surrogate}/gu, codePoint);
}

function codePoint(c) {
  return `‹${c.charCodeAt(0).toString(16).toUpperCase().padStart(4, "0")}›`;
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
          const reserve = event.reserve ? `, and ${event.reserve} of these ${event.reserve === 1 ? "is" : "are"} kept back` : "";
          return `it needs ${count(event.needed, "block")}, ${event.free} ${event.free === 1 ? "is" : "are"} free${reserve}`;
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
        stop: "it has reached its end", length: "it has all the tokens that it may have", abort: "it was aborted",
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
  if (prefills.length > 4) {
    const tokens = prefills.reduce((sum, row) => sum + row.num_tokens, 0);
    parts.push(`${prefills.length} requests compute ${count(tokens, "token")} of their prompts`);
  } else {
    for (const row of prefills) {
      const completion = state.completions.get(keyOf(row)), length = lengthOf(completion), end = row.start + row.num_tokens;
      const piece = row.start || end < length ? ` (${row.start + 1} to ${end} of ${length})` : "";
      const again = completion.recomputed ? " again" : "";
      parts.push(`${name(row)} computes ${row.phase === "prefill" ? "its prompt, " : ""}${count(row.num_tokens, "token")}${piece}${again}`);
    }
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
