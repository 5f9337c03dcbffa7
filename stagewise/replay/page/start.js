"use strict";
// Start the page with the traces and the story in it.

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
