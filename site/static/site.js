"use strict";
// Unfolds the unchanged lines of a difference, draws diagrams in the page's colours where mermaid.min.js is there, and
// adds what a keyboard and a screen reader need.

for (const caption of document.querySelectorAll(".caption[role=heading]")) caption.setAttribute("aria-level", "2");
const letKeysScroll = (box) => box.scrollWidth > box.clientWidth && (box.tabIndex = 0);
document.querySelectorAll("pre, .table-wrapper").forEach(letKeysScroll);

for (const button of document.querySelectorAll(".side-by-side .fold button")) {
  button.setAttribute("aria-expanded", "false");
  button.addEventListener("click", () => {
    const lines = button.closest("tbody").nextElementSibling;
    lines.hidden = !lines.hidden;
    button.setAttribute("aria-expanded", String(!lines.hidden));
  });
}

const darkScreen = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => ({ dark: true, light: false })[document.body.dataset.theme] ?? darkScreen.matches;

const diagrams = [...document.querySelectorAll("pre.mermaid")].map((node) => ({ node, text: node.textContent }));

async function drawDiagrams() {
  mermaid.initialize({ startOnLoad: false, theme: isDark() ? "dark" : "neutral" });
  for (const { node, text } of diagrams) {
    node.removeAttribute("data-processed");
    node.textContent = text;
  }
  await mermaid.run({ nodes: diagrams.map(({ node }) => node) });
  for (const { node } of diagrams) {
    const drawing = node.querySelector("svg"); // it shrinks with the screen, but only as long as it can be read
    drawing.style.minWidth = `min(${drawing.style.maxWidth}, 44rem)`;
    letKeysScroll(node);
  }
}

if (diagrams.length && typeof mermaid !== "undefined") {
  drawDiagrams();
  darkScreen.addEventListener("change", drawDiagrams);
  new MutationObserver(drawDiagrams).observe(document.body, { attributeFilter: ["data-theme"] });
}
