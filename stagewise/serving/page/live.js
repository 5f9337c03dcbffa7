"use strict";
// The playground: it asks the server as any client does, lets made-up visitors ask, and shows the engine as it runs.

const MOST_STEPS = 50000; // that the page keeps; then it looks on no more, and says so

const find = (id) => document.getElementById(id);
const note = (text) => { setText(find("live-note"), text); find("live-note").hidden = !text; };

// --- Asking -----------------------------------------------------------------------------------------------------------------

let model = null;

function headers() {
  const key = find("key").value;
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

/** What the server answers, or an Error in its words. */
async function ask(path, body, signal) {
  const response = await fetch(path, body === undefined ? { headers: headers() } : { method: "POST", headers: headers(), body: JSON.stringify(body), signal });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  throw Object.assign(new Error(told?.error?.message ?? `${response.status} ${response.statusText}`), { status: response.status });
}

async function findModel() {
  try {
    model = (await (await ask("/v1/models")).json()).data[0].id;
  } catch (error) {
    document.querySelector(".key").hidden = error.status !== 401;
    throw error;
  }
}

/** The events of a stream, each a JSON object. */
async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let rest = ""; ;) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

let running = null; // what stops the answer that is being written

async function write() {
  if (running) return running.abort();
  const n = Number(find("completions").value), prompt = find("prompt").value;
  const texts = Array.from({ length: n }, () => element("p"));
  find("answers").replaceChildren(...texts);
  texts.forEach((p) => p.append(element("span", "asked", prompt), document.createTextNode("")));
  running = new AbortController();
  setText(find("ask-button"), "Stop");
  try {
    if (!model) await findModel();
    const body = { model, prompt, stream: true, temperature: Number(find("temperature").value), max_tokens: Number(find("max-tokens").value) };
    const response = await ask("/v1/completions", n > 1 ? { ...body, n } : body, running.signal);
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      for (const { index, text } of chunk.choices) texts[index].lastChild.data += text;
    }
  } catch (error) {
    if (error.name !== "AbortError") find("answers").append(element("p", "failed", error.message));
  } finally {
    running = null;
    setText(find("ask-button"), "Write");
  }
}

// --- Visitors ---------------------------------------------------------------------------------------------------------------

const CAST = ["bear", "fox", "mouse", "crow", "hedgehog", "otter"], PLACES = ["forest", "harbor", "village", "river", "mill"];
const any = (list) => list[Math.floor(Math.random() * list.length)];
const sentence = () => `Once upon a time a ${any(["shy", "brave", "small", "old"])} ${any(CAST)} lived near a ${any(["windy", "quiet", "deep"])} ${any(PLACES)}. `;
const around = (mean) => Math.max(1, Math.round(mean * (0.5 + Math.random())));
let refused = 0, timer = null;

function words(count) {
  let text = "";
  while (text.split(" ").length <= count) text += sentence();
  return text.split(" ").slice(0, count).join(" ");
}

/** A visitor asks by way of the server, which does not keep this page waiting for the answer. */
async function visit() {
  try {
    if (!model) await findModel();
    const [prompt, max_tokens] = [words(around(Number(find("prompt-words").value))), around(Number(find("output-tokens").value))];
    const { here } = await (await ask("/live/visitors", { model, prompt, max_tokens, ignore_eos: true })).json();
    tellVisitors(here);
  } catch (error) {
    refused++;
    if (error.status === 429) return tellVisitors();
    note(error.message);
    find("arrivals").value = 0;
    showSlider(find("arrivals"));
    arrive();
  }
}

/** The next one comes at random (Poisson): whenever, with so many a second on average. */
function arrive() {
  clearTimeout(timer);
  const rate = Number(find("arrivals").value);
  if (rate) {
    timer = setTimeout(() => {
      visit();
      arrive();
    }, (-1000 * Math.log(1 - Math.random())) / rate);
  }
}

function tellVisitors(here) {
  setText(find("load-note"), `${here ? `${here} here` : "full"}${refused ? `, ${refused} sent away` : ""}`);
}

// --- Sliders ----------------------------------------------------------------------------------------------------------------

const UNITS = {
  arrivals: (n) => (n ? `${n} a second` : "none"),
  "prompt-words": (n) => `${n} words, about`,
  "output-tokens": (n) => `${n} tokens, about`,
  max_num_seqs: (n) => `${n} at once`,
  num_blocks: (n) => `${n} blocks`,
};

function showSlider(input) {
  const text = UNITS[input.id](Number(input.value));
  setText(input.parentElement.querySelector("output"), text);
  input.setAttribute("aria-valuetext", text);
}

function placeLevers(levers) {
  for (const [name, { now, low, high }] of Object.entries(levers)) {
    Object.assign(find(name), { min: low, max: high, value: now });
    find(name).parentElement.hidden = false;
    document.querySelector(".levers-title").hidden = false;
    showSlider(find(name));
  }
}

/** Move some levers, or with no body only see where they are. */
async function moveLevers(body) {
  try {
    placeLevers(await (await ask("/live/levers", body)).json());
  } catch (error) {
    note(error.message);
  }
}

// --- Looking on -------------------------------------------------------------------------------------------------------------

let shown = null; // the page, from the first step on

function lookOn() {
  const source = new EventSource("/live");
  let header = null;
  source.onmessage = (message) => {
    const told = JSON.parse(message.data);
    if (told.trace !== undefined) {
      if (header) end("The server has begun anew.");
      else header = told;
    } else if (shown) {
      shown.append(0, told);
      // All blocks are free then, those that were held back too.
      if (told.before.some(({ kind }) => kind === "restarted")) moveLevers();
      if (shown.replays[0].steps.length >= MOST_STEPS) end(`This page keeps ${MOST_STEPS.toLocaleString("en")} steps, and has them.`);
    } else {
      shown = new Page([[header, told]]);
      document.body.classList.remove("waiting");
      document.querySelector(".of-five").hidden = Number(header.stage.slice(5, 7)) < 5;
      note("");
      shown.measure();
    }
  };
  source.onerror = () => header && end("The server has ended, or this page was too slow for it.");

  function end(why) {
    source.close();
    note(`${why} What was seen can still be looked at; load the page again to look on.`);
  }
}

function start() {
  document.body.classList.add("waiting");
  for (const input of document.querySelectorAll(".slide input")) input.addEventListener("input", () => showSlider(input));
  for (const id of ["arrivals", "prompt-words", "output-tokens"]) showSlider(find(id));
  find("arrivals").addEventListener("input", arrive);
  for (const id of ["max_num_seqs", "num_blocks"]) find(id).addEventListener("change", () => moveLevers({ [id]: Number(find(id).value) }));
  find("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    write();
  });
  find("predict").checked = false; // nobody knows yet what comes next
  find("predict").parentElement.hidden = true;
  findModel().catch((error) => error.status === 401 || note(error.message));
  moveLevers();
  lookOn();
}

start();
