"use strict";
// Steps through a walk, and adds what a keyboard and a screen reader need.

for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "All pages");
document.querySelector(".toc-drawer")?.setAttribute("aria-label", "This page");
const letKeysScroll = (box) => box.scrollWidth > box.clientWidth && (box.tabIndex = 0);
document.querySelectorAll("pre, .table-wrapper").forEach(letKeysScroll);

const walk = document.querySelector(".walk");
if (walk) {
  // One stop at a time: Back, Next, the arrow keys, the titles. The address names the stop.
  const stops = [...walk.querySelectorAll(".stop")], titles = [...walk.querySelectorAll(".titles a")];
  const steps = walk.querySelector(".steps"), [back, next] = steps.querySelectorAll("button");
  const named = () => stops.findIndex((stop) => `#${stop.id}` === location.hash);
  let shown = 0;
  const show = (number) => {
    shown = number;
    stops.forEach((stop, i) => (stop.hidden = i !== shown));
    titles.forEach((title, i) => (i === shown ? title.setAttribute("aria-current", "step") : title.removeAttribute("aria-current")));
    [back.disabled, next.disabled] = [shown === 0, shown === stops.length - 1];
    steps.querySelector(".where").textContent = `${shown + 1} of ${stops.length}`;
    stops[shown].querySelectorAll("pre").forEach(letKeysScroll);
  };
  const go = (number) => {
    if (!stops[number]) return;
    history.replaceState(null, "", `#${stops[number].id}`);
    show(number);
    if (walk.getBoundingClientRect().top < 0) walk.scrollIntoView();
  };
  back.addEventListener("click", () => go(shown - 1));
  next.addEventListener("click", () => go(shown + 1));
  titles.forEach((title, i) => title.addEventListener("click", (event) => (event.preventDefault(), go(i))));
  addEventListener("hashchange", () => named() >= 0 && show(named()));
  addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || event.altKey || event.ctrlKey || event.metaKey || event.shiftKey) return;
    if (event.target.closest?.("input, textarea, select, pre[tabindex]")) return; // there an arrow has its own meaning
    go(shown + by);
  });
  steps.hidden = false;
  show(Math.max(named(), 0));
}
