"use strict";
// Events in sentences, and what the forward pass of a step computes.

/** For each of these engines, its values of the options in which they differ: "max_num_batched_tokens 16". */
function differences(headers) {
  const [a, b] = headers.map(({ options }) => options);
  const names = b
    ? Object.keys(a).filter((name) => name in b && JSON.stringify(a[name]) !== JSON.stringify(b[name]))
    : [];
  return headers.map(({ options }) => names.map((name) => `${name} ${options[name] ?? "not set"}`).join(", "));
}

const capital = (text) => text[0].toUpperCase() + text.slice(1);

const count = (number, what) => `${number.toLocaleString("en")} ${what}${number === 1 ? "" : "s"}`;

function list(names) {
  return names.length < 2 ? names.join("") : `${names.slice(0, -1).join(", ")} and ${names.at(-1)}`;
}

/** A token's text with everything visible that is not, or that would have an effect: control characters, marks that
 * change the direction of writing, halves of surrogate pairs. */
function visible(text) {
  return text.replace(/\n/g, "↵").replace(/\t/g, "⇥").replace(UNSEEN, codePoint);
}

// Invisible characters, except the joiner (U+200D) between two pictures, which makes one of them.
const UNSEEN =
  /(?!(?<=[\p{Extended_Pictographic}\p{Emoji_Modifier}\uFE0F])\u200D\p{Extended_Pictographic})(?:[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]|\p{Surrogate})/gu;

function codePoint(c) {
  return `‹${c.codePointAt(0).toString(16).toUpperCase()}›`;
}

/** The events of a step in words: [{text, kind, after}]. state: during the step. Consecutive events of one kind share a
 * line. Tokens and blocks that come and go have no line: rows and the pool show them. */
function eventsInWords(replay, state, step) {
  const lines = [];
  for (const [events, after] of [
    [step.before, false],
    [step.after, true],
  ]) {
    const told = events.filter((event) => event.kind in SENTENCES);
    const evicted = told.filter(({ kind }) => kind === "evicted");
    const groups = [];
    for (const event of told) {
      if (event.kind === "evicted" && event !== evicted[0]) continue;
      const last = groups.at(-1);
      if (last && like(last[0], event)) last.push(event);
      else groups.push(event.kind === "evicted" ? evicted : [event]);
    }
    for (const group of groups) {
      const text = SENTENCES[group[0].kind](replay, state, group);
      if (text) lines.push({ text, kind: group[0].kind, after });
    }
  }
  return lines;
}

/** Whether two events can share a sentence. */
function like(a, b) {
  const plain = ["queued", "admitted", "finished"].includes(a.kind) && a.kind === b.kind;
  return plain && a.reason === b.reason && !a.num_cached_tokens && !b.num_cached_tokens;
}

const nameOf = (replay, event) => replay.name(event.request_id, event.index);
const each = (group, get, most = 8) => (group.length > most ? `${group.length} requests` : list(group.map(get)));
const are = (number) => (number === 1 ? "is" : "are");

const SENTENCES = {
  queued(replay, state, group) {
    const names = each(group, (event) => nameOf(replay, event));
    const [{ max_tokens: most, output_token_ids: output }] = group;
    if (group.length > 4) return `${names} join the queue.`;
    if (group.length > 1)
      return `${names} join the queue: prompts of ${list(group.map((e) => String(e.prompt_token_ids.length)))} tokens.`;
    const has = output.length ? `, ${count(output.length, "token")} of output so far` : "";
    const prompt = count(group[0].prompt_token_ids.length, "prompt token");
    return `${names} joins the queue: ${prompt}${has}, at most ${most} of output.`;
  },
  admitted(replay, state, group) {
    const names = each(group, (event) => nameOf(replay, event));
    const [{ slot, num_cached_tokens: cached }] = group;
    const slots =
      typeof slot === "number" && group.length <= 8
        ? `: slot${group.length > 1 ? "s" : ""} ${list(group.map((e) => String(e.slot + 1)))}`
        : "";
    const completion = state.completions.get(keyOf(group[0]));
    const found = cached
      ? `: ${cached} of its ${completion ? lengthOf(completion) : ""} tokens are in the prefix cache and not computed`
      : "";
    const order = replay.head.longestFirst && group.length > 1 ? ", the longest prompts first (sort_by_length)" : "";
    return `${names} ${are(group.length)} admitted${slots}${found}${order}.`;
  },
  refused(replay, state, [event]) {
    return `${nameOf(replay, event)} waits: ${REFUSED[event.reason](event, replay.header.options)}.`;
  },
  preempted(replay, state, [event]) {
    const completion = state.completions.get(keyOf(event));
    const again = `its ${count(completion ? lengthOf(completion) : 0, "token")} must be computed again`;
    const loss = "it gives up its blocks, goes back into the queue";
    return `${nameOf(replay, event)} is preempted: ${loss}, and ${again}.`;
  },
  copied(replay, state, [{ source, target, ...event }]) {
    const name = nameOf(replay, event);
    return `${name} writes next into block ${source}, which it shares: it gets a copy, block ${target}.`;
  },
  evicted(replay, state, group) {
    const blocks =
      group.length > 8
        ? `${group.length} blocks`
        : `Block${group.length > 1 ? "s" : ""} ${list(group.map(({ block }) => String(block)))}`;
    return `${blocks} ${are(group.length)} taken for new tokens: the prefix cache loses what was there.`;
  },
  beams(replay, state, [{ request_id: id, parents }]) {
    const kept = parents.map((parent, i) => `${replay.name(id, i)} from ${replay.name(id, parent)}`);
    return kept.length ? `The best beams of ${replay.name(id)} go on: ${list(kept)}.` : null;
  },
  finished(replay, state, group) {
    const [{ reason, request_id: id }] = group;
    const one = group.length === 1;
    if (reason === "beams") return `${replay.name(id)} is finished: its search has ended.`;
    const why = {
      stop: `${one ? "it has" : "they have"} reached the end`,
      length: `${one ? "it has" : "they have"} all the tokens ${one ? "it" : "they"} may have`,
      abort: `${one ? "it was" : "they were"} aborted`,
    };
    return `${each(group, (event) => nameOf(replay, event))} ${are(group.length)} finished: ${why[reason] ?? reason}.`;
  },
  restarted: () => "A step was interrupted: all memory is free, and the remaining requests wait again.",
};

const REFUSED = {
  running: ({ most }, options) =>
    most === options.max_num_seqs
      ? `${count(most, "request")} ${are(most)} running already (max_num_seqs)`
      : `there is room for ${count(most, "request")} only`,
  budget: () => "the step has no tokens left (max_num_batched_tokens)",
  blocks({ needed, free, reserve }) {
    const kept = reserve ? `, ${reserve} ${are(reserve)} kept in reserve for running requests` : "";
    return `it needs ${count(needed, "block")}, and at its turn ${free} ${are(free)} free${kept}`;
  },
  preempted: () => "another request has just lost its blocks, so memory is short",
};

/** Whether a row is a prefill: it computes a prompt or, with a KV cache, tokens that were lost from the cache. */
function isPrefill(replay, row) {
  return row.phase === "prefill" || (replay.cached && row.num_tokens > 1);
}

/** The engine at rest. */
function restInWords(state) {
  const there = [...state.completions.values()].filter(({ status }) => status !== "gone");
  if (!there.length) return "Nothing has run since this page was opened.";
  if (there.some(({ status }) => status !== "finished")) return "Nothing is computed: the engine is at rest.";
  const number = new Set(there.map(({ id }) => id)).size;
  const who = number === 1 ? "The request" : `All ${number.toLocaleString("en")} requests`;
  return `${who} ${are(number)} finished, and the engine is at rest.`;
}

/** The order in which waiting requests are admitted. */
function orderInWords({ options }) {
  if (options.sort_by_length) return "the longest prompt first (sort_by_length)";
  const orders = { priority: "by priority", shortest: "the shortest prompt first" };
  return options.policy in orders ? `${orders[options.policy]} (policy ${options.policy})` : "first come, first served";
}

/** What the forward pass of a step computes, in a sentence. */
function passInWords(replay, state) {
  const rows = [...state.rows.values()];
  if (!rows.length) return restInWords(state);
  const name = (row) => replay.name(row.request_id, row.index);
  const parts = [];
  const live = rows.filter((row) => row.num_tokens);
  const whole = !replay.cached;
  const prefills = live.filter((row) => isPrefill(replay, row));
  const decodes = live.filter((row) => !prefills.includes(row));
  const entire = prefills.filter(
    (row) => row.phase === "prefill" && row.num_tokens === lengthOf(state.completions.get(keyOf(row))),
  );
  if (entire.length > 8) {
    const tokens = entire.reduce((sum, row) => sum + row.num_tokens, 0);
    parts.push(`${entire.length} requests compute their prompts, ${count(tokens, "token")}`);
  } else if (entire.length) {
    const lengths = list(entire.map((row) => String(row.num_tokens)));
    const last = entire.at(-1).num_tokens === 1 ? "token" : "tokens";
    parts.push(
      `${list(entire.map(name))} compute${entire.length > 1 ? " their prompts" : "s its prompt"}, ${lengths} ${last}`,
    );
  }
  const pieces = prefills.filter((row) => !entire.includes(row));
  const isAgain = (row) => state.completions.get(keyOf(row)).recomputed;
  if (pieces.length > 2) {
    const all = pieces.every(isAgain) ? " again" : "";
    const lengths = pieces.map((row) => String(row.num_tokens));
    const [who, what] =
      pieces.length > 8 ? [`${pieces.length} requests`, "some"] : [list(pieces.map(name)), list(lengths)];
    parts.push(`${who} compute ${what} tokens${all}`);
  } else {
    for (const row of pieces) {
      const length = lengthOf(state.completions.get(keyOf(row)));
      const end = row.start + row.num_tokens;
      const whose = row.phase === "prefill" ? " of its prompt" : "";
      const places = row.num_tokens > 1 ? `${row.start + 1} to ${end}` : end;
      const which = row.start || end < length ? ` (${places} of ${length})` : "";
      parts.push(
        `${name(row)} computes ${count(row.num_tokens, "token")}${whose}${isAgain(row) ? " again" : ""}${which}`,
      );
    }
  }
  const names = decodes.length > 8 ? `${decodes.length} requests` : list(decodes.map(name));
  if (decodes.length && whole) {
    const tokens = decodes.reduce((sum, row) => sum + row.num_tokens, 0);
    const again = decodes.reduce((sum, row) => sum + state.completions.get(keyOf(row)).recomputed, 0);
    const several = decodes.length > 1;
    const what = `all ${count(tokens, "token")}, ${again.toLocaleString("en")} of them again`;
    parts.push(`${names} compute${several ? "" : "s"} ${what}, to get one more${several ? " each" : ""}`);
  } else if (decodes.length) {
    parts.push(decodes.length > 1 ? `${names} compute one token each` : `${names} computes one token`);
    const guesses = decodes.reduce((sum, row) => sum + (row.drafts?.length ?? 0), 0);
    const right = decodes.reduce((sum, row) => sum + (row.num_accepted ?? 0), 0);
    if (guesses) parts.push(`${count(guesses, "guessed token")} after ${decodes.length > 1 ? "them" : "it"}, ${right} right`);
  }
  const carried = rows.filter((row) => !row.num_tokens);
  if (carried.length) {
    const which = carried.length > 8 ? `${carried.length} rows` : list(carried.map(name));
    parts.push(`${which} ${carried.length > 1 ? "are" : "is"} finished, and carried along as padding`);
  }
  return `${parts.join("; ")}.`;
}
