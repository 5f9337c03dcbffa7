"use strict";
// Begin, with the traces that the page holds.

const page = new Page(
  [...document.querySelectorAll("script.trace")].map((script) => {
    const lines = JSON.parse(script.textContent);
    script.remove();
    return lines;
  }),
);
