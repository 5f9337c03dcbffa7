"use strict";
// The KV memory of a step: a pool of blocks (from stage 5 on) on a canvas, or slots (stages 3 and 4).

const CELL_MIN = 5;
const CELL_MAX = 54;

/** The pool. The mouse and, when it has the focus, the arrow keys pick a block; onPick: called with it. */
class Pool {
  constructor(canvas, onPick) {
    Object.assign(this, { canvas, onPick, picked: null, columns: 1, cell: CELL_MAX, shown: [], width: 0 });
    canvas.addEventListener("pointermove", (event) => this.pick(this.blockAt(event)));
    canvas.addEventListener("pointerdown", (event) => this.pick(this.blockAt(event)));
    canvas.addEventListener("pointerleave", () => document.activeElement === canvas || this.pick(null));
    canvas.addEventListener("focus", () => this.pick(this.picked ?? this.shown[0] ?? null));
    canvas.addEventListener("blur", () => this.pick(null));
    canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
      const to = Math.max(0, this.shown.indexOf(this.picked)) + (moves[event.key] ?? 0);
      if (event.key in moves) {
        event.preventDefault();
        event.stopPropagation();
        if (to >= 0 && to < this.shown.length) this.pick(this.shown[to]);
      }
    });
  }

  blockAt(event) {
    const column = Math.floor(event.offsetX / this.cell);
    const row = Math.floor(event.offsetY / this.cell);
    return column < this.columns ? (this.shown[row * this.columns + column] ?? null) : null;
  }

  pick(block) {
    if (block === this.picked) return;
    this.picked = block;
    this.onPick(block);
  }

  /** blocks: see `blocksOf`; emphasis: a set of blocks, or null; order: block -> its index in the chosen table. */
  draw(ink, blocks, size, emphasis, order) {
    const { width } = this;
    const room = Math.max(200, Math.min(420, width * 0.8));
    this.shown = blocks.map(({ number }) => number);
    const most = Math.max(36, Math.min(CELL_MAX, Math.floor(width / 8)));
    this.cell = Math.max(CELL_MIN, Math.min(most, Math.floor(Math.sqrt((width * room) / blocks.length))));
    this.columns = Math.max(1, Math.floor(width / this.cell));
    if (this.columns >= 8 && this.cell > 16) this.columns -= this.columns % 4; // blocks are easier to find
    this.columns = Math.min(this.columns, blocks.length);
    this.cell = Math.min(most, Math.floor(width / this.columns));
    const rows = Math.ceil(blocks.length / this.columns);
    const context = prepare(this.canvas, width, rows * this.cell + 2);
    context.textAlign = "center";
    context.textBaseline = "middle";
    blocks.forEach((block, i) => {
      const x = (i % this.columns) * this.cell;
      const y = Math.floor(i / this.columns) * this.cell;
      context.globalAlpha = emphasis && !emphasis.has(block.number) ? 0.25 : 1;
      const side = this.cell - 3;
      this.drawBlock(ink, context, block, x + 1.5, y + 1.5, side, size);
      if (side >= 2 * SMALLEST) this.labelBlock(ink, context, block, x + 1.5, y + 1.5, side, order?.get(block.number));
      context.globalAlpha = 1;
      if (block.number === this.picked) {
        context.strokeStyle = ink.focus;
        context.lineWidth = 3;
        context.strokeRect(x + 1.5, y + 1.5, this.cell - 2, this.cell - 2);
      }
    });
  }

  drawBlock(ink, context, block, x, y, side, size) {
    const filled = Math.max(0, Math.min(1, block.numTokens / size)) * side;
    if (block.holders.length) {
      ink.fillWaste(context, x, y, side, side);
      if (filled) {
        const share = side / block.holders.length; // each holder gets a part of a shared block
        block.holders.forEach((holder, i) =>
          ink.fill(context, holder.number, holder.index, x, y + i * share, filled, share),
        );
      }
    } else if (block.findable) {
      context.fillStyle = ink.own[block.owner % NUM_COLORS];
      const alpha = context.globalAlpha;
      context.globalAlpha = alpha * 0.28;
      context.fillRect(x, y, side, side);
      context.globalAlpha = alpha;
    }
    context.lineWidth = block.written ? Math.min(2.5, side / 4) : 1;
    context.strokeStyle = block.written ? ink.ink : block.holders.length ? ink.soft : ink.line;
    if (block.findable) {
      context.strokeStyle = ink.soft;
      context.setLineDash([3, 3]);
    }
    context.strokeRect(x, y, side, side);
    if (block.findable) context.setLineDash([]);
  }

  /** A block's holders; where there is room, also its number, its place in the chosen table, and what it is a copy of. */
  labelBlock(ink, context, block, x, y, side, order) {
    const held = block.holders.length > 0;
    const names = held ? block.holders.map(({ name }) => name) : block.findable ? [block.ownerName] : [];
    const sizeOf = (text) => Math.round(Math.min(18, side / 2, (1.3 * side) / text.length));
    const all = names.join(" ");
    const text = names.length > 2 || (names.length > 1 && sizeOf(all) < SMALLEST) ? `${names.length}×` : all;
    const size = sizeOf(text);
    const style = held
      ? { weight: 700, color: ink["on-own"], plate: ink.own[block.holders[0].number % NUM_COLORS] }
      : { color: ink.ink };
    if (text && size >= SMALLEST) ink.write(context, text, x + side / 2, y + side / 2 + 1, { size, ...style });
    if (side < 34) return;
    const corner = (words, right, low, color = ink.soft) => {
      const size = Math.max(SMALLEST, Math.round(side * 0.21));
      const half = Math.max(0.19 * side, (0.33 * words.length + 0.2) * size); // so that long words stay in the block
      ink.write(context, words, x + (right ? side - half : half), y + (low ? side - 0.62 * size : 0.76 * size), {
        size,
        weight: color === ink.soft ? 400 : 700,
        color,
        plate: ink.card,
      });
    };
    corner(String(block.number), true, true);
    if (order !== undefined) corner(`${order + 1}.`, false, false, ink.ink);
    if (block.copyOf !== undefined) corner(`=${block.copyOf}`, true, false, ink.ink);
  }
}

/** For each block: its holders, how many tokens are in it, whether this step writes to it, whether it is free, and if so
 * whether the prefix cache can find it. A block that is neither free nor held is kept out of use. */
function blocksOf(replay, state, step) {
  const size = state.blockSize;
  const blocks = Array.from({ length: replay.header.num_blocks ?? 0 }, (_, number) => ({
    number,
    holders: [],
    numTokens: 0,
    written: false,
    free: false,
    findable: false,
  }));
  for (const block of state.free) blocks[block].free = true;
  for (const key of state.running) {
    const completion = state.completions.get(key);
    const row = state.rows.get(key);
    completion.blocks.forEach((block, i) => {
      const own = blocks[block];
      if (!own) return;
      own.holders.push({
        key,
        number: replay.names.get(completion.id) ?? 0,
        index: completion.index,
        name: replay.name(completion.id, completion.index),
        place: i,
      });
      own.numTokens = Math.max(own.numTokens, Math.min(size, completion.numComputed - i * size));
      if (row && (i + 1) * size > row.start && i * size < row.start + row.num_tokens) own.written = true;
    });
  }
  for (const event of step.before) if (event.kind === "copied") blocks[event.target].copyOf = event.source;
  for (const block of state.findable()) {
    const content = state.contents[block];
    const id = content && content.key.slice(0, content.key.lastIndexOf("/"));
    Object.assign(blocks[block] ?? {}, {
      findable: true,
      numTokens: size,
      owner: content ? (replay.names.get(id) ?? 0) : 0,
      ownerName: content ? replay.name(id) : "·",
    });
  }
  return blocks;
}

/** A block in words. */
function blockInWords(replay, state, blocks, number) {
  const block = blocks[number];
  const content = state.contents[number];
  const tokens = content ? content.tokens.map((id) => visible(replay.texts.get(id) ?? "?")).join("") : "";
  const quoted = tokens ? `: “${tokens.trim()}”` : "";
  if (block.holders.length) {
    const holders = block.holders.map(({ name, place }) => `${name} (its ${ordinal(place + 1)})`);
    const copy = block.copyOf === undefined ? "" : `, a copy of block ${block.copyOf}`;
    const shared = block.holders.length > 1 ? ", shared" : copy;
    const filled = `${block.numTokens} of ${state.blockSize} places filled`;
    return `Block ${number} is held by ${list(holders)}${shared}, ${filled}${quoted}`;
  }
  if (block.findable)
    return `Block ${number} is free, and the prefix cache can still find what ${block.ownerName} left in it${quoted}`;
  return block.free
    ? `Block ${number} is free, and nothing in it can be found.`
    : `Block ${number} is kept out of use.`;
}

function ordinal(number) {
  const ends = { 1: "st", 2: "nd", 3: "rd" };
  return `${number}${Math.floor(number / 10) % 10 === 1 ? "th" : (ends[number % 10] ?? "th")}`;
}

/** The slots of a step (stages 3 and 4): {slot, key, padding, filled, length}, in tokens. */
function slotsOf(replay, state, step) {
  const continuous = replay.stage === 4;
  const rows = [...state.rows.values()];
  const number = continuous ? (replay.header.num_slots ?? rows.length) : rows.length;
  const length = continuous ? replay.header.max_model_len : step.kv_tokens_reserved / Math.max(1, rows.length);
  const slots = Array.from({ length: number }, (_, slot) => ({ slot, key: null, padding: 0, filled: 0, length }));
  for (const key of state.shown()) {
    const { slot, padding, numComputed, status } = state.completions.get(key);
    if (slots[slot])
      Object.assign(slots[slot], {
        key,
        padding: status === "running" ? padding : 0,
        filled: numComputed,
        done: status !== "running",
      });
  }
  return slots;
}
