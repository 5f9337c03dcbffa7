"use strict";
// What the page asks the server, as any client does.

const find = (id) => document.getElementById(id);

// The x-request-id of a request says which tab sent it.
const TAB = Math.random().toString(36).slice(2, 10);
let numAsked = 0;

/** Messages above the view, one for each cause. */
const notes = {
  shown: new Map(),

  set(cause, text, action = null) {
    if (this.shown.get(cause)?.firstChild.textContent === text) return;
    this.clear(cause);
    const line = element("p", cause);
    line.append(element("span", "", text));
    if (action) {
      const button = element("button", "", action.name, { type: "button" });
      button.addEventListener("click", action.act);
      line.append(button);
    }
    const close = element("button", "close", "×", { type: "button", "aria-label": "Close" });
    close.addEventListener("click", () => this.clear(cause));
    line.append(close);
    this.shown.set(cause, line);
    find("notes").append(line);
  },

  clear(cause) {
    this.shown.get(cause)?.remove();
    this.shown.delete(cause);
  },
};

let model = null;

/** The server's response; throws an Error with the server's message. */
async function ask(path, body, signal, kind = "page") {
  const key = find("key").value;
  const headers = { "Content-Type": "application/json", "X-Request-ID": `${kind}-${TAB}-${numAsked++}` };
  if (key) headers.Authorization = `Bearer ${key}`;
  const how = body === undefined ? { headers } : { method: "POST", headers, body: JSON.stringify(body), signal, keepalive: path === "/live/levers" };
  const response = await fetch(path, how).catch((error) => {
    throw error.name === "AbortError" ? error : new Error("The server does not answer.");
  });
  if (response.ok) return response;
  const told = await response.json().catch(() => null);
  const message = told?.error?.message ?? `${response.status} ${response.statusText}`;
  throw Object.assign(new Error(message), { status: response.status });
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
  for (let rest = ""; ; ) {
    const { done, value } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n\n");
    rest = parts.pop();
    for (const part of parts) if (part !== "data: [DONE]") yield JSON.parse(part.slice(6));
  }
}

let writing = null; // the AbortController of the answer that is being written

async function write() {
  if (writing) return writing.abort();
  const n = Number(find("completions").value);
  const prompt = find("prompt").value;
  const texts = Array.from({ length: n }, () => element("p"));
  find("answers").replaceChildren(...texts);
  for (const p of texts) p.append(element("span", "asked", prompt), document.createTextNode(""));
  writing = new AbortController();
  setText(find("ask-button"), "Stop");
  try {
    if (!model) await findModel();
    const temperature = Number(find("temperature").value);
    const body = { model, prompt, stream: true, temperature, max_tokens: Number(find("max-tokens").value) };
    const response = await ask("/v1/completions", n > 1 ? { ...body, n } : body, writing.signal, "asked");
    for await (const chunk of events(response)) {
      if (chunk.error) throw new Error(chunk.error.message);
      for (const { index, text } of chunk.choices) texts[index].lastChild.data += text;
    }
  } catch (error) {
    const message = error instanceof TypeError ? "The answer broke off: the server has ended." : error.message;
    if (error.name !== "AbortError") find("answers").append(element("p", "failed", message));
  } finally {
    writing = null;
    setText(find("ask-button"), "Write");
  }
}

// --- Visitors ------------------------------------------------------------------------------------------------------

const CAST = ["bear", "fox", "mouse", "crow", "hedgehog", "otter"];
const PLACES = ["forest", "harbor", "village", "river", "mill"];
const any = (list) => list[Math.floor(Math.random() * list.length)];
const sentence = () =>
  `Once upon a time a ${any(["shy", "brave", "small", "old"])} ${any(CAST)} lived near a ` +
  `${any(["windy", "quiet", "deep"])} ${any(PLACES)}. `;
const around = (mean) => Math.max(1, Math.round(mean * (0.5 + Math.random())));
let timer = null;
let numSentAway = 0;

/** A text of `count` words, which is about as many tokens: the words are simple. */
function words(count) {
  let text = "";
  while (text.split(" ").length <= count) text += sentence();
  return text.split(" ").slice(0, count).join(" ");
}

/** Have the server run a request. It does not keep this page waiting for the answer. */
async function visit(prompt, max_tokens, fields = { ignore_eos: true }, kind = "visitor") {
  if (!model) await findModel();
  await ask("/live/visitors", { model, prompt, max_tokens, ...fields }, undefined, kind);
  notes.clear("visitors");
}

/** A visitor who comes by chance. */
async function comeBy() {
  try {
    await visit(words(around(Number(find("prompt-words").value))), around(Number(find("output-tokens").value)));
  } catch (error) {
    if (error.status === 429) {
      numSentAway++;
      return;
    }
    notes.set("visitors", `No more visitors: ${error.message}`);
    find("arrivals").value = 0;
    showSlider(find("arrivals"));
    arrive();
  }
}

/** Visitors come at random, as a Poisson process with the chosen mean rate. */
function arrive() {
  clearTimeout(timer);
  const rate = Number(find("arrivals").value);
  if (rate) {
    timer = setTimeout(() => {
      comeBy();
      arrive();
    }, (-1000 * Math.log(1 - Math.random())) / rate);
  }
}

// --- Sliders -------------------------------------------------------------------------------------------------------

const UNITS = {
  arrivals: (n) => (n ? `${n} a second` : "none"),
  "prompt-words": (n) => `~${n} tokens`,
  "output-tokens": (n) => `~${n} tokens`,
  max_num_seqs: (n) => `${n} at once`,
  num_blocks: (n, input) => `${n} of ${input.max}`,
};

function showSlider(input) {
  const text = UNITS[input.id](Number(input.value), input);
  setText(input.parentElement.querySelector("output"), text);
  input.setAttribute("aria-valuetext", text);
}

const wanted = {}; // lever -> where it was moved on this page
const highest = {}; // lever -> the engine's start value

/** Show the levers' positions: other tabs move them too, and the engine raises num_blocks when a request needs more. */
function placeLevers(levers) {
  for (const [name, { now, low, high }] of Object.entries(levers)) {
    const input = find(name);
    if (input.matches(":active")) continue; // it is being moved
    Object.assign(input, { min: 1, max: high, value: now });
    input.parentElement.hidden = document.querySelector(".levers-title").hidden = false;
    showSlider(input);
    highest[name] = high;
    if (name !== "num_blocks") continue;
    if (wanted[name] === undefined || now <= wanted[name]) {
      notes.clear("blocks");
    } else {
      const why = `a request that is here may need ${count(low, "block")}`;
      if (now === low) notes.set("blocks", `num_blocks is ${now}, not ${wanted[name]}: ${why}, prompt and max_tokens.`);
      else notes.clear("blocks");
    }
  }
  showHeldBack(levers);
}

/** Say how much is held back from the engine. */
function showHeldBack(levers) {
  const { max_num_seqs: seqs, num_blocks: blocks } = levers;
  const parts = [];
  if (blocks && blocks.now < blocks.high) parts.push(`${blocks.now} of its ${count(blocks.high, "block")}`);
  if (seqs && seqs.now < seqs.high) parts.push(`${seqs.now} of its ${count(seqs.high, "place")}`);
  find("held-back").hidden = !parts.length;
  setText(find("held-back").firstElementChild, `The engine uses ${list(parts)} now.`);
}

/** Move some levers. */
async function moveLevers(body) {
  try {
    Object.assign(wanted, body);
    const levers = await (await ask("/live/levers", body)).json();
    notes.clear("levers");
    placeLevers(levers);
    return levers;
  } catch (error) {
    notes.set("levers", `The lever did not move: ${error.message}`);
    return null;
  }
}
