"use strict";
// Colors and patterns of requests, in the document and on canvases: neighbors differ in both, and each has a letter.

const NUM_COLORS = 8;
const NUM_PATTERNS = 4;
const SMALLEST = 10; // pixels: no smaller text can be read

/** Neighbors differ in color and in pattern; the 33rd request is the first to look like another. Completions of one
 * request share its color, and differ in pattern. */
const patternOf = (number, index) => (number + Math.floor(number / NUM_COLORS) + index) % NUM_PATTERNS;

/** The classes of an element that shows a completion: of the request of this number, the one of this index. */
const look = (number, index) => `own c${number % NUM_COLORS} p${patternOf(number, index)}`;

/** The page's current colors, for canvases; read again when it turns dark or light. */
class Ink {
  constructor() {
    const style = getComputedStyle(document.documentElement);
    const value = (name) => style.getPropertyValue(name).trim();
    this.own = Array.from({ length: NUM_COLORS }, (_, i) => value(`--c${i}`));
    for (const name of ["paper", "card", "ink", "soft", "line", "edge", "waste", "waste-line", "on-own", "focus"])
      this[name] = value(`--${name}`);
    this.patterns = [null, ...[stripes, dots, lines].map((draw) => pattern(draw, "rgba(255,255,255,.5)"))];
    this.wasted = pattern(stripes, this["waste-line"]);
    this.font = style.fontFamily;
    this.widths = new Map();
  }

  /** Write a short text centered at a point. plate: the color of a background for it, and tall: its height. */
  write(context, text, x, y, { size, weight = 400, color, plate, tall = 1.2 * size }) {
    const font = `${weight} ${size}px ${this.font}`;
    if (context.ownFont !== font) context.font = context.ownFont = font; // setting it is slow
    if (plate) {
      const key = `${text} ${font}`;
      if (!this.widths.has(key)) this.widths.set(key, context.measureText(text).width + 0.4 * size);
      const width = this.widths.get(key);
      context.fillStyle = plate;
      context.fillRect(x - width / 2, y - 0.54 * tall, width, tall);
    }
    context.fillStyle = color;
    context.fillText(text, x, y);
  }

  /** Fill a rectangle with the look of a completion. */
  fill(context, number, index, x, y, width, height) {
    context.fillStyle = this.own[number % NUM_COLORS];
    context.fillRect(x, y, width, height);
    this.overlay(context, this.patterns[patternOf(number, index)], x, y, width, height);
  }

  /** Draw a line around a rectangle, inside it: light colors are not told from white. */
  outline(context, x, y, width, height) {
    const line = Math.min(1, width / 4, height / 4);
    Object.assign(context, { strokeStyle: this.edge, lineWidth: line });
    context.strokeRect(x + line / 2, y + line / 2, width - line, height - line);
  }

  /** Fill a rectangle with the look of waste. */
  fillWaste(context, x, y, width, height) {
    context.fillStyle = this.waste;
    context.fillRect(x, y, width, height);
    this.overlay(context, this.wasted, x, y, width, height);
  }

  overlay(context, pattern, x, y, width, height) {
    if (!pattern) return;
    context.fillStyle = pattern;
    context.fillRect(x, y, width, height);
  }
}

function pattern(draw, color) {
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  canvas.width = canvas.height = 8;
  context.strokeStyle = context.fillStyle = color;
  context.lineWidth = 2;
  draw(context);
  return context.createPattern(canvas, "repeat");
}

function stripes(context) {
  context.beginPath();
  for (const x of [-8, 0, 8]) {
    context.moveTo(x - 1, 9);
    context.lineTo(x + 9, -1);
  }
  context.stroke();
}

function dots(context) {
  for (const [x, y] of [
    [2, 2],
    [6, 6],
  ]) {
    context.beginPath();
    context.arc(x, y, 1.4, 0, 7);
    context.fill();
  }
}

function lines(context) {
  context.fillRect(0, 1, 8, 1.5);
  context.fillRect(0, 5, 8, 1.5);
}

/** Give a canvas a size in CSS pixels; returns its context, which uses them too. */
function prepare(canvas, width, height) {
  const scale = devicePixelRatio || 1;
  const size = [Math.round(width * scale), Math.round(height * scale)];
  if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.ownFont = null;
  context.setTransform(scale, 0, 0, scale, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** A new element: its tag, classes, text, attributes. Text is never read as HTML. */
function element(tag, className = "", text = "", attributes = {}) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== "") made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

/** Set the text, and so redraw it, only if it differs. */
function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function setClass(node, className) {
  if (node.className !== className) node.className = className;
}

/** Give a parent one child per item; existing children are reused. */
function fill(parent, items, make, update) {
  while (parent.childElementCount > items.length) parent.lastElementChild.remove();
  while (parent.childElementCount < items.length) parent.append(make());
  items.forEach((item, i) => update(parent.children[i], item, i));
}

/** The same for items with keys: each keeps its element, wherever it moves. */
function fillByKey(parent, keys, make, update) {
  const there = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const wanted = new Set(keys);
  for (const [key, child] of there) if (!wanted.has(key)) child.remove();
  keys.forEach((key, i) => {
    const child = there.get(key) ?? make();
    child.dataset.key = key;
    if (parent.children[i] !== child) parent.insertBefore(child, parent.children[i] ?? null);
    update(child, key);
  });
}

/** Fill a bar with parts, [class, size], of a whole. */
function fillBar(bar, parts, whole) {
  const there = parts.filter(([, size]) => size > 0);
  fill(
    bar,
    there,
    () => element("i"),
    (part, [className, size]) => {
      setClass(part, className);
      part.style.width = `${(100 * size) / whole}%`;
    },
  );
}

/** Fill a parent with pieces of text, [class, text]. */
function fillText(parent, pieces) {
  fill(
    parent,
    pieces,
    () => element("span"),
    (span, [className, text]) => {
      setClass(span, className);
      setText(span, text);
    },
  );
}
