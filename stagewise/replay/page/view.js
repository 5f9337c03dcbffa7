"use strict";
// A trace on the page: everything below the slider. `show` shows a step; it changes only what differs.

const MOST_ROWS = 24;
const MOST_WAITING = 16;
const MOST_CHIPS = 40;
const MOST_DONE = 12;
const MOST_MEASURED = 120; // steps of a run that is short enough to measure the words of each
const CHARACTER = 0.57; // the width of a character in rem, roughly
const PART_NAMES = ["schedule", "draft", "build", "forward", "sample", "commit"];

class View {
  /** chosen: the request that the address names, shared by all views; onChange: called when it changes. */
  constructor(replay, chosen, onChange) {
    Object.assign(this, { replay, chosen, onChange, ink: null, number: 0, allRows: false, hovered: null });
    this.root = document.getElementById("panel").content.firstElementChild.cloneNode(true);
    const named = [...this.root.querySelectorAll("[class]")].map((node) => [node.classList[0], node]);
    this.nodes = Object.fromEntries(named); // the template's elements, each by its first class
    const { nodes } = this;
    nodes.title.append(`Stage ${replay.stage}: ${STAGE_IDEAS[replay.stage]}`, " ");
    this.ended = element("span", "ended");
    nodes.title.append(element("small", "", replay.header.model), " ", this.ended);
    this.kind = replay.stage >= 5 ? "blocks" : replay.cached ? "slots" : "nothing";
    this.root.classList.toggle("cacheless", this.kind === "nothing");
    nodes.pool.hidden = nodes.tables.hidden = this.kind !== "blocks";
    nodes.slots.hidden = this.kind !== "slots";
    this.pool = new Pool(nodes.pool, (block) => this.hover(block === null ? null : { block }));
    nodes["rows-more"].addEventListener("click", () => {
      this.allRows = !this.allRows;
      this.show(this.number);
    });
    nodes.close.addEventListener("click", () => this.choose(null));
    this.root.addEventListener("click", (event) => {
      const chip = event.target.closest(".chip[data-key]");
      if (chip) this.choose(chip.dataset.key);
    });
    for (const type of ["pointerover", "focusin"]) this.root.addEventListener(type, (event) => this.over(event.target));
    for (const type of ["pointerleave", "focusout"]) nodes.tables.addEventListener(type, () => this.hover(null));
    nodes.tables.addEventListener("keydown", (event) => this.moveInTable(event));
    const atOnce = replay.lanes.taken.length; // the more requests run, the fewer lines of tokens each has
    this.lines = atOnce <= 4 ? 3 : atOnce <= 12 ? 2 : 1;
    this.root.style.setProperty("--lines", this.lines);
    this.root.style.setProperty("--rows", Math.min(5, atOnce)); // so that the page below does not jump
    this.legends();
  }

  legends() {
    this.occurs = []; // [an entry, whether what it explains occurs in the run]
    const entry = (className, text, occurs) => {
      const item = element("span", "entry");
      item.append(element("i", `swatch ${className}`), text);
      if (occurs) this.occurs.push([item, occurs]);
      return item;
    };
    const total = () => this.replay.head.counts;
    this.nodes["rows-legend"].append(
      entry("computed", "computed in this step"),
      entry("again", "computed again", () => total().recomputed),
      ...(this.replay.cached ? [entry("kept", "in the KV cache")] : []),
      entry("right", "guessed, and right", () => this.replay.gains.length),
      entry("wrong", "guessed, and refused", () => total().refused),
      entry("fresh", "the resulting token"),
      entry("idle", "computed for nothing", () => total().padding + total().carried),
    );
    if (this.kind === "blocks") {
      this.nodes["memory-legend"].append(
        entry("own c0 p0", "filled"),
        entry("idle", "reserved, not filled"),
        entry("written", "written now"),
        entry("findable", "free, but still in the prefix cache", () => this.replay.header.options.enable_prefix_caching ?? true),
        entry("empty", "free"),
      );
    } else if (this.kind === "slots") {
      this.nodes["memory-legend"].append(
        entry("own c0 p0", "filled"),
        entry("idle", "reserved, of no use"),
        entry("empty", "free slot"),
      );
    }
  }

  // --- What is chosen, and what the mouse or the focus is on -------------------------------------------------------

  choose(key) {
    const completion = key && this.replay.at(this.number).completions.get(key);
    const same = completion && completion.id === this.chosen.id && completion.index === this.chosen.index;
    this.chosen.id = same || !completion ? null : completion.id;
    this.chosen.index = same || !completion ? 0 : completion.index;
    this.onChange();
  }

  get chosenKey() {
    return this.chosen.id === null ? null : `${this.chosen.id}/${this.chosen.index}`;
  }

  over(target) {
    const block = target.closest?.("[data-block]");
    const key = target.closest?.("[data-key]");
    if (block) this.hover({ block: Number(block.dataset.block) });
    else if (key && this.root.contains(key)) this.hover({ key: key.dataset.key });
    else if (!target.closest?.("canvas")) this.hover(null);
  }

  hover(what) {
    if (JSON.stringify(what) === JSON.stringify(this.hovered)) return;
    this.hovered = what;
    if (this.kind !== "blocks" || !this.ink) return;
    if (what?.block !== undefined) this.pool.picked = what.block;
    else if (document.activeElement !== this.nodes.pool) this.pool.picked = null;
    this.drawPool();
  }

  moveInTable(event) {
    const move = { ArrowLeft: "previousElementSibling", ArrowRight: "nextElementSibling" }[event.key];
    const to = move && event.target[move];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    if (!to?.dataset.block) return;
    event.target.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  /** Call this when the window has a new size. */
  measure() {
    const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
    const beside = innerWidth > 640 ? 13 * rem : 0;
    this.characters = Math.floor((this.nodes.rows.clientWidth - beside) / (CHARACTER * rem));
    this.measurePool();
    const { length } = this.replay.steps; // a live run may have no step yet
    if (length > 1 && length <= MOST_MEASURED) this.measureWords();
  }

  measurePool() {
    this.pool.width = this.nodes.pool.clientWidth;
  }

  /** In a short run, make the words' box as high as the longest text, so that none is cut off and nothing jumps. */
  measureWords() {
    const { replay, nodes } = this;
    let most = 0;
    Object.assign(nodes.words.style, { height: "auto", minHeight: "" });
    replay.steps.forEach((step, number) => {
      this.writeWords(step, replay.at(number));
      most = Math.max(most, nodes.words.offsetHeight);
    });
    nodes.words.style.minHeight = `min(${most}px, 8 * var(--line-height))`;
  }

  // --- A step ------------------------------------------------------------------------------------------------------

  /** since: in words, when this trace ended, if that is before the moment shown. */
  show(number, ink = this.ink, since = "") {
    Object.assign(this, { number, ink });
    setText(this.ended, since);
    for (const [item, occurs] of this.occurs) item.hidden = !occurs();
    this.step = this.replay.steps[number];
    this.state = this.replay.at(number);
    this.fresh = new Map(); // the tokens that each got
    for (const event of this.step.after.filter(({ kind }) => kind === "token")) {
      this.fresh.set(keyOf(event), [...(this.fresh.get(keyOf(event)) ?? []), event.token_id]);
    }
    this.showMemory(); // first: writing on a canvas makes the browser lay out all changes made before
    this.showWords();
    this.showBudget();
    this.showRows();
    this.showQueue();
    this.showNumbers();
    this.showRequest();
  }

  showWords() {
    const { step, state, nodes } = this;
    const lines = this.writeWords(step, state);
    const where = step.rows.length ? `Step ${numberOf(step)}. ` : "";
    setText(nodes.spoken, `${where}${nodes.summary.textContent} ${lines.map(({ text }) => text).join(" ")}`);
  }

  writeWords(step, state) {
    const { replay, nodes } = this;
    setText(nodes.summary, passInWords(replay, state));
    const lines = eventsInWords(replay, state, step);
    const quiet = {
      text: step.rows.length ? "No request arrives or leaves." : this.memoryAtRest(state),
      kind: "quiet",
    };
    fill(
      nodes.events,
      lines.length ? lines : [quiet],
      () => element("li"),
      (item, { text, kind, after }) => {
        setText(item, text);
        setClass(item, after ? `${kind} after` : kind);
      },
    );
    return lines;
  }

  memoryAtRest(state) {
    if (this.kind === "nothing") return "Nothing is kept.";
    if (this.kind === "slots")
      return this.replay.stage === 4 ? "All slots are free." : "The cache went with its batch.";
    const free =
      state.free.length === state.numBlocks ? `All ${state.numBlocks} blocks are free` : "No request holds a block";
    const findable = state.numFindable;
    return findable ? `${free}; the prefix cache can still find what is in ${findable} of them.` : `${free}.`;
  }

  /** What went through the model, as a bar to scale: a part of the step's budget if there is one, else of the rectangle. */
  showBudget() {
    const { step, state, replay, nodes } = this;
    const budget = replay.stage >= 4 ? replay.header.options.max_num_batched_tokens : null;
    const used = step.rows.reduce((sum, row) => sum + row.num_tokens + (row.drafts?.length ?? 0), 0);
    const idle = step.rows.reduce((sum, row) => sum + row.num_padding, 0);
    const all = budget ?? used + idle;
    const rows = state
      .shown()
      .map((key) => state.rows.get(key))
      .filter((row) => row?.num_tokens);
    const segments = rows.flatMap((row) => {
      const { recomputed } = state.completions.get(keyOf(row));
      const own = look(replay.names.get(row.request_id) ?? 0, row.index);
      return [
        ["again", row, recomputed],
        [own, row, row.num_tokens - recomputed],
        ["refused", row, row.drafts?.length ?? 0],
      ];
    });
    const shown = [...segments, ["idle", null, idle]].filter(([, , size]) => size);
    fill(
      nodes.budget,
      shown,
      () => element("span"),
      (segment, [className, row, size]) => {
        setClass(segment, className);
        segment.style.width = `${(100 * size) / all}%`;
        setText(segment, row && size / all > 0.035 ? replay.name(row.request_id, row.index) : "");
      },
    );
    const words = budget
      ? `${used} of the ${budget.toLocaleString("en")} tokens that a step may compute (max_num_batched_tokens)`
      : idle
        ? `a rectangle of ${used + idle} places: ${count(used, "token")}, ${idle} padding`
        : `${count(used, "token")}`;
    setText(nodes["rows-note"], words);
    nodes.budget.setAttribute("aria-label", words);
  }

  showRows() {
    const { state, nodes } = this;
    const keys = state.shown();
    const most = this.allRows ? keys.length : MOST_ROWS;
    const longest = Math.max(
      1,
      ...keys.map((key) => {
        const completion = state.completions.get(key);
        const row = state.rows.get(key);
        return Math.max(
          completion.prompt.length + completion.maxTokens,
          (row?.num_padding ?? 0) + lengthOf(completion),
        );
      }),
    );
    fillByKey(nodes.rows, keys.slice(0, most), makeRow, (item, key) => this.updateRow(item, key, longest));
    nodes["rows-more"].hidden = keys.length <= MOST_ROWS;
    setText(nodes["rows-more"], this.allRows ? "Fewer rows" : `${keys.length - MOST_ROWS} more rows`);
    if (!keys.length) setText(nodes["rows-note"], "no request runs");
  }

  updateRow(item, key, longest) {
    const { state, replay } = this;
    const completion = state.completions.get(key);
    const row = state.rows.get(key);
    const carried = row?.num_tokens === 0;
    const start = row?.start ?? completion.numComputed;
    const end = start + (row?.num_tokens ?? 0);
    const again = start + (row ? completion.recomputed : 0); // up to here it was computed before
    const own = look(replay.names.get(completion.id) ?? 0, completion.index);
    const { chip, what, tokens, bar } = item.parts;
    setClass(item, `row${carried ? " carried" : ""}${key === this.chosenKey ? " chosen" : ""}`);
    this.updateChip(chip, key);
    const [label, detail] = this.rowInWords(row, completion);
    setText(what.firstElementChild, label);
    setText(what.lastElementChild, detail);
    fillText(tokens, this.rowTokens(key, completion, { start, again, end, carried, own }));
    const length = lengthOf(completion);
    const padding = ["idle", row?.num_padding ?? 0];
    const parts = [
      padding,
      [replay.cached ? "kept" : "", Math.min(start, length)],
      ["again", again - start],
      [own, end - again],
      ["todo", length - end],
      ["room", completion.prompt.length + completion.maxTokens - length],
    ];
    fillBar(bar, carried ? [padding] : parts, longest); // one scale for all rows
  }

  rowInWords(row, completion) {
    if (!row) return ["waits", "for a place in a step"];
    if (row.num_tokens === 0) return ["finished", `carried along, ${row.num_padding} padding`];
    const { recomputed } = completion;
    const togo = lengthOf(completion) - row.start - row.num_tokens;
    const details = [
      count(row.num_tokens, "token"),
      ...(recomputed ? [`${recomputed === row.num_tokens ? "all" : recomputed} again`] : []),
      ...(row.num_padding ? [`${row.num_padding} padding`] : []),
      ...(togo > 0 ? [`${togo} to go`] : []),
      ...(row.drafts ? [`${row.num_accepted} of ${count(row.drafts.length, "guessed token")} right`] : []),
    ];
    return [isPrefill(this.replay, row) ? "prefill" : "decode", details.join(", ")];
  }

  /** The last tokens of a row, as many as there is room for: [class, text]. Each computed token is a piece; the others
   * are joined. */
  rowTokens(key, completion, { start, again, end, carried, own }) {
    const length = lengthOf(completion);
    const until = end > start && end < length ? end : length;
    const from = this.firstShown(completion, until);
    const pieces = from ? [["gap", `… ${from} before `]] : [];
    tokensOf(completion, from, until).forEach((id, i) => {
      const position = from + i;
      const computed = position >= start && position < end;
      let className = position < completion.prompt.length ? "plain prompt" : "plain";
      if (computed) className = position < again ? "token again" : `token now ${own}`;
      else if (position >= end && !carried) className = "todo";
      if (!computed && pieces.at(-1)?.[0] === className) pieces.at(-1)[1] += this.text(id);
      else pieces.push([className, this.text(id)]);
    });
    if (until < length) pieces.push(["gap", ` … ${length - until} more`]);
    else {
      const { drafts = [], num_accepted: accepted } = this.state.rows.get(key) ?? {};
      drafts.forEach((id, i) => pieces.push([`token guess ${i < accepted ? "right" : "wrong"}`, this.text(id)]));
      if (this.fresh.has(key)) pieces.push(["token fresh", this.text(this.fresh.get(key).at(-1))]);
    }
    return pieces;
  }

  /** The first position whose token is shown: those up to `until` must fit into the lines of a row. */
  firstShown(completion, until) {
    let room = Math.max(20, this.lines * this.characters - 30); // 30: "… 120 before", and the next token
    let from = until;
    const ids = tokensOf(completion, Math.max(0, until - room), until);
    while (ids.length && room > 0) {
      room -= Math.max(1, this.text(ids.pop()).length);
      if (room > 0) from -= 1;
    }
    return from;
  }

  text(id) {
    return visible(this.replay.texts.get(id) ?? `‹${id}›`);
  }

  updateChip(chip, key) {
    if (chip.dataset.key !== key) {
      const { id, index } = this.state.completions.get(key);
      const name = this.replay.name(id, index);
      setClass(chip, `chip ${look(this.replay.names.get(id) ?? 0, index)}`);
      setText(chip, name);
      chip.dataset.key = key;
      chip.title = `Request ${name}`;
    }
    const pressed = String(key === this.chosenKey);
    if (chip.getAttribute("aria-pressed") !== pressed) chip.setAttribute("aria-pressed", pressed);
  }

  // --- Memory ------------------------------------------------------------------------------------------------------

  showMemory() {
    const { state, step, replay, nodes } = this;
    const reserved = step.kv_tokens_reserved;
    const used = step.kv_tokens_used;
    const unused = reserved
      ? `${(reserved - used).toLocaleString("en")} of ${reserved.toLocaleString("en")} reserved places are not filled`
      : "";
    if (this.kind === "nothing") {
      setText(nodes["memory-note"], "");
      setText(
        nodes.picked,
        "This stage has no KV cache. It forgets keys and values after each step, and computes every sequence again.",
      );
      return;
    }
    if (this.kind === "slots") {
      setText(nodes["memory-note"], unused || (this.replay.stage === 4 ? "all slots are free" : "no batch, no cache"));
      setText(
        nodes.picked,
        step.rows.length || this.replay.stage === 4 ? "" : "A cache is made for each batch, and goes with it.",
      );
      this.showSlots();
      return;
    }
    this.blocks = blocksOf(replay, state, step);
    const free = this.blocks.filter((block) => block.free).length;
    const held = this.blocks.filter(({ holders }) => holders.length).length;
    const usable = held + free; // a lever of the live page keeps the others out of use
    const shared = step.num_blocks_shared ? `, ${step.num_blocks_shared} shared (saves ${step.num_blocks_saved})` : "";
    setText(nodes["memory-note"], `${held} of ${usable} blocks held${shared}, ${free} free`);
    const label = `${nodes["memory-note"].textContent}. ${unused}. Arrow keys move from block to block.`;
    if (nodes.pool.getAttribute("aria-label") !== label) nodes.pool.setAttribute("aria-label", label);
    this.unused = unused;
    this.drawPool();
    this.showTables();
  }

  drawPool() {
    const { state, nodes, blocks, hovered } = this;
    const key = hovered?.key ?? this.chosenKey;
    const table = key && state.completions.get(key)?.blocks;
    const emphasis = table?.length ? new Set(table) : null;
    this.pool.draw(
      this.ink,
      blocks.filter(({ free, holders }) => free || holders.length),
      state.blockSize,
      hovered?.block === undefined ? emphasis : null,
      table && new Map(table.map((b, i) => [b, i])),
    );
    const picked = this.pool.picked;
    const canShow = picked !== null && picked < blocks.length;
    const copies = this.step.before.filter(({ kind }) => kind === "copied");
    const copied = copies.map(({ source, target }) => ` Block ${target} (=${source}) is a copy of block ${source}.`);
    const unused = this.unused ? `${this.unused}.${copied.join("")}` : "";
    setText(nodes.picked, canShow ? blockInWords(this.replay, state, blocks, picked) : unused);
    for (const chip of nodes.tables.querySelectorAll("[data-block]"))
      chip.classList.toggle("same", canShow && Number(chip.dataset.block) === picked);
  }

  showTables() {
    const { state, nodes } = this;
    const keys = state
      .shown()
      .filter((key) => state.completions.get(key).blocks.length)
      .slice(0, MOST_ROWS);
    fillByKey(nodes.tables, keys, makeTable, (item, key) => {
      const { blocks } = state.completions.get(key);
      const [chip, list] = item.children;
      this.updateChip(chip, key);
      const hidden = Math.max(0, blocks.length - MOST_CHIPS);
      const shown = blocks.slice(hidden);
      fill(
        list,
        hidden ? [`+${hidden}`, ...shown] : shown,
        () => element("button", "block", "", { type: "button" }),
        (button, block, i) => {
          setText(button, String(block));
          const real = typeof block === "number";
          if (real) button.dataset.block = block;
          else delete button.dataset.block;
          button.tabIndex = i === 0 ? 0 : -1;
          button.classList.toggle("shared", real && this.blocks[block]?.holders.length > 1);
          button.classList.toggle(
            "written",
            real && this.blocks[block]?.written && i === shown.length - 1 + (hidden ? 1 : 0),
          );
          if (real) button.setAttribute("aria-label", `block ${block}`);
        },
      );
    });
  }

  showSlots() {
    const { state, step, replay, nodes } = this;
    fill(nodes.slots, slotsOf(replay, state, step), makeSlot, (item, { slot, key, padding, filled, length, done }) => {
      const [name, chip, bar, words] = item.children;
      const free = key === null;
      setText(name, String(slot + 1));
      chip.hidden = free;
      setClass(bar, free ? "slot-bar empty" : "slot-bar idle");
      if (free) fillBar(bar, [], length);
      else {
        const { id, index } = state.completions.get(key);
        const own = look(replay.names.get(id) ?? 0, index);
        fillBar(
          bar,
          [
            ["idle", padding],
            [own, filled],
          ],
          length,
        );
        this.updateChip(chip, key);
      }
      setText(words, free ? "free" : done ? `finished, ${length} for nothing` : `${filled} of ${length}`);
    });
  }

  // --- Queue, numbers, the chosen request --------------------------------------------------------------------------

  showQueue() {
    const { state, step, nodes } = this;
    const keys = state.waiting();
    const refused = new Set(step.before.filter(({ kind }) => kind === "refused").map(keyOf));
    const waiting = `${keys.length.toLocaleString("en")} wait${keys.length === 1 ? "s" : ""}`;
    const order = keys.length > 1 ? `, ${orderInWords(this.replay.header)}` : "";
    setText(nodes["queue-note"], keys.length ? waiting + order : "empty");
    const rest = keys.length - MOST_WAITING;
    nodes["queue-rest"].hidden = rest <= 0;
    setText(nodes["queue-rest"], `and ${rest.toLocaleString("en")} more`);
    fillByKey(nodes.queue, keys.slice(0, MOST_WAITING), makeWaiting, (item, key) => {
      this.updateChip(item.firstElementChild, key);
      const completion = state.completions.get(key);
      const lost = completion.numPreemptions ? ", preempted" : "";
      setText(
        item.lastElementChild,
        `${count(lengthOf(completion), "token")}${lost}${refused.has(key) ? ", next" : ""}`,
      );
      setClass(item, refused.has(key) ? "refused" : "");
    });
    const done = [...state.completions].filter(([, { status }]) => status === "finished").map(([key]) => key);
    const all = state.completions.size;
    const some = `${done.length.toLocaleString("en")} of ${all.toLocaleString("en")}`;
    setText(nodes["done-note"], done.length ? some : "none yet");
    fillByKey(nodes.done, done.slice(-MOST_DONE), makeDone, (item, key) =>
      this.updateChip(item.firstElementChild, key),
    );
  }

  showNumbers() {
    const { state, step, replay, nodes } = this;
    const { output, useful, recomputed, padding, carried, refused, preemptions } = state.counts;
    const seconds = replay.ends(this.number);
    const speed = (output / seconds).toFixed(output < 10 * seconds ? 1 : 0);
    setText(nodes["numbers-note"], `${count(output, "output token")} in ${seconds.toFixed(2)} s: ${speed} tokens/s`);
    const all = useful + recomputed + padding + carried + refused;
    const kinds = [
      ["useful", "computed for the first time", useful],
      ["again", "computed again", recomputed],
      ["padding", "padding in live rows", padding],
      ["carried", "padding in finished rows", carried],
      ["refused", "guessed, and refused", refused],
    ];
    fillBar(
      nodes.computed,
      kinds.map(([kind, , number]) => [kind, number]),
      all,
    );
    nodes.computed.setAttribute("aria-label", `${count(all, "position")} went through the model`);
    const lines = kinds
      .filter(([kind, , number]) => number || kind === "useful")
      .map(([kind, words, number]) => [kind, words, number.toLocaleString("en"), percent(number, all)]);
    const { kv_tokens_reserved: reserved, kv_tokens_used: used } = step;
    if (reserved) {
      const unused = reserved - used;
      lines.push(["reserved", "reserved now, not filled", unused.toLocaleString("en"), percent(unused, reserved)]);
    }
    if (preemptions) lines.push(["", "preemptions", preemptions.toLocaleString("en"), ""]);
    fill(nodes.counts, lines, makeCount, updateCount);
    this.showTime();
  }

  showTime() {
    const { step, nodes } = this;
    const parts = PART_NAMES.filter((name) => name in step.parts).map((name) => [name, step.parts[name]]);
    const total = parts.reduce((sum, [, time]) => sum + time, 0);
    const milliseconds = (time) => (total ? `${(1e3 * time).toFixed(2)} ms` : "none");
    setText(nodes["time-note"], milliseconds(total));
    fillBar(nodes.parts, parts, total);
    nodes.parts.setAttribute("aria-label", parts.map(([name, time]) => `${name} ${milliseconds(time)}`).join(", "));
    const lines = parts.map(([name, time]) => [name, name, milliseconds(time), percent(time, total)]);
    fill(nodes["part-counts"], lines, makeCount, updateCount);
  }

  showRequest() {
    const { state, replay, nodes } = this;
    const completion = this.chosenKey && state.completions.get(this.chosenKey);
    nodes["request-card"].hidden = !completion;
    if (!completion) return;
    const { prompt, numOutput, maxTokens, numCached, numPreemptions, status, finishReason, blocks, slot } = completion;
    setText(nodes["request-title"], `Request ${replay.name(completion.id, completion.index)}`);
    const facts = [
      finishReason ? `finished (${finishReason})` : status,
      `prompt ${prompt.length} tokens`,
      `output ${numOutput} of at most ${maxTokens}`,
      ...(numCached ? [`${numCached} found in the prefix cache`] : []),
      ...(numPreemptions ? [`preempted ${numPreemptions} times`] : []),
      ...(slot !== null ? [`slot ${slot + 1}`] : []),
      ...(blocks.length ? [`blocks ${blocks.join(", ")}`] : []),
    ];
    setText(nodes.facts, facts.join(" · "));
    const text = (ids) => ids.map((id) => this.text(id)).join("");
    const pieces = [
      ["prompt", text(prompt)],
      ["", text(tokensOf(completion, prompt.length))],
    ];
    const fresh = this.fresh.get(this.chosenKey) ?? [];
    pieces.push(["", text(fresh.slice(0, -1))], ...fresh.slice(-1).map((id) => ["token fresh", this.text(id)]));
    fillText(nodes.full, pieces);
  }
}

// --- Pieces of the document ----------------------------------------------------------------------------------------

function makeRow() {
  const item = element("li");
  const chip = element("button", "chip", "", { type: "button" });
  const what = element("span", "what");
  const tokens = element("bdi", "tokens");
  const bar = element("span", "bar", "", { "aria-hidden": "true" });
  what.append(element("b"), element("span"));
  item.append(chip, what, tokens, bar);
  item.parts = { chip, what, tokens, bar };
  return item;
}

function makeTable() {
  const item = element("li");
  const list = element("span", "blocks");
  item.append(element("button", "chip", "", { type: "button" }), list);
  return item;
}

function makeSlot() {
  const item = element("div", "slot");
  item.append(
    element("span", "slot-number"),
    element("button", "chip", "", { type: "button" }),
    element("span", "slot-bar"),
    element("span", "slot-words"),
  );
  return item;
}

function makeWaiting() {
  const item = element("li");
  item.append(element("button", "chip", "", { type: "button" }), element("span"));
  return item;
}

function makeDone() {
  const item = element("li");
  item.append(element("button", "chip", "", { type: "button" }));
  return item;
}

function makeCount() {
  const item = element("li");
  item.append(element("i"), element("span"), element("b"), element("em"));
  return item;
}

function updateCount(item, [kind, ...texts]) {
  setClass(item.firstElementChild, kind ? `swatch ${kind}` : "swatch none");
  texts.forEach((text, i) => setText(item.children[i + 1], text));
}

function percent(part, whole) {
  return `${Math.round((100 * part) / Math.max(1e-9, whole))}%`;
}
