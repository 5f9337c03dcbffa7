"use strict";
// Light or dark: as the system is, and as the reader chooses.

const system = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => document.documentElement.dataset.theme === "dark";

function setTheme(dark) {
  document.documentElement.dataset.theme = dark ? "dark" : "light";
}

setTheme(system.matches); // before anything is drawn
