"use strict";
// Begin, with the traces and the story that the page holds.

function taken(kind) {
  return [...document.querySelectorAll(`script.${kind}`)].map((script) => {
    script.remove();
    return JSON.parse(script.textContent);
  });
}

const page = new Page(taken("trace"), taken("story")[0]);
