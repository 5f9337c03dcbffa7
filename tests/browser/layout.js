"use strict";
// What is wrong with the layout of a page, as [what, text, text]: boxes that overlap, lines that are cut, text outside.

const CONTROLS = "button, input, select, textarea, .pool, .meter";
const SOME = 2; // pixels: so much is rounding, and the leading of a line

function isSeen(element) {
  for (let node = element; node; node = node.parentElement) {
    const style = getComputedStyle(node);
    if (style.clipPath !== "none" || style.visibility === "hidden") return false;
  }
  return element.getClientRects().length > 0;
}

/** Each line of text and each control: {node, text, left, top, right, bottom}. */
function boxesOf(root) {
  const boxes = [];
  const add = (node, text, { left, top, right, bottom }) => {
    if (right - left > 1 && bottom - top > 1) boxes.push({ node, text, left, top, right, bottom });
  };
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const parent = node.parentElement;
    if (!node.data.trim() || parent.closest("select, script, style, textarea, template") || !isSeen(parent)) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const line of range.getClientRects()) add(node, node.data.trim().slice(0, 40), line);
  }
  for (const control of root.querySelectorAll(CONTROLS))
    if (isSeen(control)) add(control, control.id || control.className || control.tagName, control.getBoundingClientRect());
  return boxes;
}

const meet = (a, b) =>
  Math.min(a.right, b.right) - Math.max(a.left, b.left) > SOME && Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > SOME + 1;

/** Boxes that one can see: what a scroller hides is not there, what it shows a part of is. */
function clipped(boxes) {
  const found = [];
  const rest = boxes.filter((box) => {
    for (let node = box.node.parentElement; node && node !== document.body; node = node.parentElement) {
      const { overflowX, overflowY } = getComputedStyle(node);
      if (overflowX === "visible" && overflowY === "visible") continue;
      const area = node.getBoundingClientRect();
      const isOutside = box.top >= area.bottom - SOME || box.bottom <= area.top + SOME;
      const canScroll = overflowY === "auto" || overflowY === "scroll";
      if (isOutside && canScroll) return false;
      if (box.bottom > area.bottom + SOME || box.top < area.top - SOME || box.right > area.right + SOME) {
        found.push(["cut", box.text, node.className || node.tagName]);
        return false;
      }
    }
    return true;
  });
  return { found, rest };
}

/** What is written on the picture of the run: labels that overlap, or that the line of the end crosses. */
function labelsOf(film) {
  const found = [];
  const labels = [];
  const write = Ink.prototype.write;
  Ink.prototype.write = function (context, text, x, y, style) {
    write.call(this, context, text, x, y, style);
    const half = Math.max(context.measureText(text).width, y === 7 ? 13 : 0) / 2;
    labels.push({ text, left: x - half, right: x + half, top: y - style.size / 2, bottom: y + style.size / 2 });
  };
  film.drawn = "";
  film.draw(page.ink, page.clock.cursor(page.position));
  Ink.prototype.write = write;
  const { replay, clock, number } = film;
  const end = replay.hasEnd ? film.x(clock.share(number, replay.steps.length - 1)) : null;
  labels.forEach((label, i) => {
    if (label.left < 0 || label.right > film.width) found.push(["cut", label.text, "film"]);
    if (end !== null && label.bottom > film.top && label.left < end - 1 && label.right > end + 2) found.push(["crossed", label.text, "the end"]);
    for (const other of labels.slice(0, i)) if (meet(label, other)) found.push(["overlap", label.text, other.text]);
  });
  return found;
}

function faults() {
  const { found, rest } = clipped(boxesOf(document.body));
  const width = document.documentElement.clientWidth;
  for (const box of rest) if (box.right > width + 1) found.push(["outside", box.text, ""]);
  if (document.documentElement.scrollWidth > width) found.push(["scrolls sideways", "", ""]);
  rest.sort((a, b) => a.top - b.top);
  rest.forEach((box, i) => {
    for (let j = i + 1; j < rest.length && rest[j].top < box.bottom; j++)
      if (box.node !== rest[j].node && !box.node.contains(rest[j].node) && !rest[j].node.contains(box.node) && meet(box, rest[j]))
        found.push(["overlap", box.text, rest[j].text]);
  });
  return found;
}
