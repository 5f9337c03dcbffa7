"use strict";
// Begin, with the traces and the story that the page holds.

function taken(kind) {
  return [...document.querySelectorAll(`script.${kind}`)].map((script) => {
    script.remove();
    return JSON.parse(script.textContent);
  });
}

// As files, chapters are Markdown; on the site they are pages next to this one.
if (location.protocol !== "file:")
  for (const link of document.querySelectorAll("footer a")) link.href = link.href.replace(/\.md$/, ".html");

const page = new Page(taken("trace"), taken("story")[0]);
