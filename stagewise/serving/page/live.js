"use strict";
// The engine as it runs: the replay page, which stays at the last step until the reader looks back.

const MOST_STEPS = 50000; // that the page keeps; then it begins again
const LONGEST_PAUSE = 8; // seconds between two attempts to reach the server

/** Requests are named in the order of their numbers, so that all tabs call them the same. */
class Numbers extends Map {
  set(id, number) {
    return super.set(id, /^\d{1,9}$/.test(id) ? Number(id) : number);
  }
}

/** The engine at rest: a step after the last one, in which nothing is computed. */
function rest(replay) {
  const last = replay.steps.at(-1);
  const start = last ? last.start + last.seconds : 0;
  const times = { step: (last?.step ?? -1) + 1, start, seconds: 1e-9, parts: {} };
  const memory = { kv_tokens_reserved: 0, kv_tokens_used: 0, num_blocks_shared: 0, num_blocks_saved: 0 };
  return { ...times, before: [], rows: [], after: [], texts: {}, ...memory };
}

class LivePage extends Page {
  constructor(header) {
    super([[header, rest({ steps: [] })]]);
    // A lever moves max_num_seqs, so the limit may not be the one that the engine was started with.
    REFUSED.running = ({ most }) => `${count(most, "request")} ${are(most)} running already (max_num_seqs)`;
    const [view] = this.views;
    const most = header.options.max_num_seqs;
    view.lines = most <= 4 ? 3 : most <= 12 ? 2 : 1;
    view.root.style.setProperty("--lines", view.lines);
    this.grows = true;
    this.around(view);
    const name = this.replay.name;
    this.replay.name = (id, index) => name.call(this.replay, id, index) + (this.mine?.has(id) ? "★" : "");
    this.begin(header);
    this.presets = new Presets(this);
  }

  get replay() {
    return this.replays[0];
  }

  /** Start over: the next steps do not continue the ones on this page. */
  begin(header) {
    Object.assign(this.replay, new Replay(header), { names: new Numbers() });
    Object.assign(this, { askers: new Map(), mine: new Set(), rates: new Rates(), isResting: false, isFollowing: true });
    Object.assign(this.chosen, { id: null, index: 0 });
    this.rest();
    this.films[0].drawn = "";
    this.presets?.clear();
    this.measure();
    this.follow();
  }

  // --- Steps as they come ------------------------------------------------------------------------------------------

  /** Note who sent requests: id -> [when, x-request-id]. */
  meet(asked) {
    for (const [id, who] of Object.entries(asked)) {
      this.askers.set(id, who);
      if (who[1].startsWith(`asked-${TAB}-`)) this.mine.add(id);
    }
  }

  append(step) {
    const { replay } = this;
    if (this.isResting) this.wake();
    replay.append(step);
    this.rates.append(step, this.askers, this.mine);
    this.presets?.append(step);
    if (!replay.head.running.size && !replay.head.numWaiting && step.rows.length) this.rest();
    this.showKinds();
    if (this.isFollowing) this.position = this.clock.end;
    this.render();
  }

  rest() {
    this.replay.append(rest(this.replay));
    this.isResting = true;
  }

  wake() {
    this.replay.takeBack();
    this.isResting = false;
    this.films[0].drawn = "";
  }

  /** The number of the last step that computed something; null before the first. */
  get last() {
    const step = this.replay.steps.findLast(({ rows }) => rows.length);
    return step ? numberOf(step) : null;
  }

  get isIdle() {
    return !this.replay.head.running.size && !this.replay.head.numWaiting;
  }

  get steps() {
    return this.isResting ? this.replay.steps.slice(0, -1) : this.replay.steps;
  }

  // --- The step that is shown --------------------------------------------------------------------------------------

  follow() {
    this.pause();
    this.goTo(this.clock.end);
  }

  /** Stay at this step, even if it is the newest and others come. */
  showStep(number) {
    this.turnTo(number - this.replay.first);
    this.isFollowing = false;
  }

  goTo(position) {
    super.goTo(position);
    this.isFollowing = this.position >= this.clock.end;
  }

  play() {
    if (this.playing || this.position < this.clock.end) super.play();
    else this.follow(); // there is nothing to play yet
  }

  whereInWords() {
    const step = this.replay.steps[this.position];
    if (!step.rows.length && this.position === this.clock.end)
      return this.last === null ? "No step yet" : `At rest after step ${this.last.toLocaleString("en")}`;
    return `Step ${numberOf(step).toLocaleString("en")} of ${(this.last ?? 0).toLocaleString("en")}`;
  }

  /** No address names a step: a page that is loaded again begins with what the engine does then. */
  get fragment() {
    return "";
  }

  readFragment() {}

  // --- Drawing -----------------------------------------------------------------------------------------------------

  renderNow() {
    this.fit(); // there may be more steps than in the frame before
    super.renderNow();
    if (this.rates) this.showNow(); // else the constructor is still running
  }

  showNow() {
    const isLive = link.isUp && this.isFollowing;
    const last = this.last?.toLocaleString("en");
    const { running, waiting, held, most, what } = load(this.replay);
    document.body.classList.toggle("off", !link.isUp);
    document.body.classList.toggle("behind", link.isUp && !this.isFollowing);
    setText(find("follow"), !link.isUp ? "NOT LIVE" : isLive ? "LIVE" : "Back to LIVE");
    find("follow").setAttribute("aria-pressed", String(isLive));
    const at = numberOf(this.replay.steps[this.position]).toLocaleString("en");
    const here = last === undefined ? "nothing has run yet; press a button, or ask" : this.isIdle ? `at rest after step ${last}` : `step ${last}`;
    const words = this.isFollowing ? capital(here) : `You are looking back at step ${at}; these figures are for the current step, ${last}`;
    setText(find("live-words"), `${link.isUp ? words : link.words}.`);
    const speed = this.isIdle || !link.isUp ? 0 : this.rates.now;
    const requests = running || waiting ? `${running} run${waiting ? `, ${waiting} wait` : ""}` : "none";
    setText(find("gauge-requests"), requests);
    setText(find("gauge-speed"), speed.toFixed(speed < 10 && speed > 0 ? 1 : 0));
    setText(find("gauge-ttft"), this.rates.words("ttft"));
    setText(find("gauge-itl"), this.rates.words("itl"));
    const kept = what === "block" ? most - Number(find("num_blocks").value) : 0;
    find("gauge-fill").style.width = `${(100 * held) / most}%`;
    find("gauge-held").style.width = `${(100 * kept) / most}%`;
    setText(find("gauge-memory"), `${held} of ${count(most - kept, what)}${kept ? `, ${kept} held back` : ""}`);
    const others = running + waiting - [...this.mine].filter((id) => this.isThere(id)).length;
    const gone = numSentAway ? `, ${numSentAway} sent away: the queue was full` : "";
    setText(find("load-note"), others > 0 || gone ? `${count(Math.max(0, others), "request")} of others here${gone}` : "");
    this.presets?.settle();
    find("save").disabled = this.last === null;
  }

  isThere(id) {
    const status = this.replay.head.completions.get(`${id}/0`)?.status;
    return status === "running" || status === "waiting";
  }

  /** Add to the view's memory and numbers what only a live page knows. */
  around(view) {
    const { nodes } = view;
    const { showMemory, showNumbers, showTime, drawPool } = view;
    const heldBack = () => view.blocks.filter(({ free, holders }) => !free && !holders.length).length;
    view.showMemory = () => {
      showMemory.call(view);
      if (view.kind !== "blocks") return;
      const kept = heldBack();
      if (kept) setText(nodes["memory-note"], `${nodes["memory-note"].textContent}, ${kept} held back (num_blocks)`);
    };
    view.drawPool = () => {
      const { kv_tokens_reserved: reserved, kv_tokens_used: used } = view.step;
      const places = reserved - heldBack() * view.state.blockSize; // held-back blocks count as reserved and used
      view.unused = places > 0 ? `${reserved - used} of ${places.toLocaleString("en")} reserved places are not filled` : "";
      drawPool.call(view);
      if (nodes.picked.textContent === ".") setText(nodes.picked, "");
    };
    view.showTime = () => {
      showTime.call(view);
      if (!view.step.rows.length) nodes.parts.setAttribute("aria-label", "nothing is computed");
    };
    view.showNumbers = () => {
      showNumbers.call(view);
      const since = view.replay.first > 1 ? ` since step ${view.replay.first.toLocaleString("en")}` : "";
      setText(nodes["numbers-note"], `${count(view.state.counts.output, "output token")}${since}`);
    };
  }
}

// --- The run as a file ---------------------------------------------------------------------------------------------

/** The replay of these steps, as `stagewise replay` makes it. */
function replayOf(header, steps) {
  const replay = JSON.parse(document.querySelector("script.replay").textContent); // its trace has no steps
  const ascii = JSON.stringify([header, ...steps]).replace(
    /[<\u007f-\uffff]/g,
    (c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
  return replay.replace(/(<script type="application\/json" class="trace">)[^<]*/, (_, tag) => tag + ascii);
}

function save({ header, steps }) {
  const url = URL.createObjectURL(new Blob([replayOf(header, steps)], { type: "text/html" }));
  element("a", "", "", { href: url, download: `stagewise-steps-${numberOf(steps[0])}-${numberOf(steps.at(-1))}.html` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

// --- The connection ------------------------------------------------------------------------------------------------

let shown = null; // the LivePage, once the first header has come

const link = {
  isUp: false,
  words: "Connecting",
  server: null, // the name of its process
  tries: 0,

  open() {
    this.leave();
    const source = this.source = new EventSource("/live");
    const on = (kind, act) => source.addEventListener(kind, ({ data }) => act(JSON.parse(data)));
    on("run", (about) => this.begin(about));
    on("asked", (asked) => shown.meet(asked));
    on("step", (step) => {
      shown.append(step);
      if (shown.steps.length >= MOST_STEPS) this.open();
    });
    on("now", (now) => {
      placeLevers(now.levers);
      if (now.failed) notes.set("failed", "The engine has failed: see the server's log. It no longer answers.");
      shown.render();
    });
    on("bye", () => (this.ended = true));
    source.onerror = () => this.lose();
  },

  /** The "run" event: the next step begins with what the engine has now. */
  begin({ server, header }) {
    if (shown) this.beginAgain(header, server !== this.server);
    else this.show(header);
    Object.assign(this, { isUp: true, server, tries: 0, ended: false });
    notes.clear("server");
    shown.render();
  },

  /** The next steps do not continue the ones on the page. Offer these as a file. */
  beginAgain(header, isRestarted) {
    const before = { header: shown.replay.header, steps: shown.steps };
    if (!isRestarted) shown.presets.putBack();
    shown.begin(header);
    if (!before.steps.length) return;
    const why = isRestarted ? "The server was restarted, and counts its steps from 1. " : "";
    const text = `${why}This page started over at ${new Date().toTimeString().slice(0, 8)}, with the requests running then.`;
    const name = `Save the ${count(before.steps.length, "earlier step")}`;
    notes.set("before", text, { name, act: () => save(before) });
  },

  show(header) {
    shown = new LivePage(header);
    document.body.classList.remove("waiting");
    shown.measure(); // while hidden, nothing had a width
    document.querySelector(".of-five").hidden = shown.replay.stage < 5;
    find("no-levers").hidden = shown.replay.stage >= 5;
    const { longest } = shown.presets.sizes;
    for (const [id, most] of [["max-tokens", longest - 1], ["prompt-words", longest / 4], ["output-tokens", longest / 2]]) {
      find(id).max = Math.max(1, Math.min(Number(find(id).max), Math.floor(most)));
    }
    find("max-tokens").value = Math.min(120, find("max-tokens").max - Math.min(20, find("max-tokens").max >> 1));
    for (const id of ["arrivals", "prompt-words", "output-tokens"]) showSlider(find(id));
    shown.follow();
  },

  leave() {
    clearTimeout(this.again);
    this.source?.close();
  },

  /** The connection is gone: try again, and again. */
  lose() {
    this.source.close();
    this.isUp = false;
    const pause = Math.min(LONGEST_PAUSE, 0.5 * 2 ** this.tries++);
    const why = this.ended ? "The server has ended" : "The server does not answer";
    this.words = "This page keeps trying";
    notes.set("server", `${why}. The steps so far can still be viewed and saved; this page begins again when the server is back.`);
    this.again = setTimeout(() => this.open(), 1000 * pause);
    shown?.render();
  },
};

// --- The beginning -------------------------------------------------------------------------------------------------

function start() {
  document.body.classList.add("live", "waiting");
  for (const input of document.querySelectorAll(".slide input")) input.addEventListener("input", () => showSlider(input));
  find("arrivals").addEventListener("input", arrive);
  for (const id of ["max_num_seqs", "num_blocks"])
    find(id).addEventListener("change", () => moveLevers({ [id]: Number(find(id).value) }));
  find("restore").addEventListener("click", () => moveLevers(highest));
  find("ask-form").addEventListener("submit", (event) => {
    event.preventDefault();
    write();
  });
  find("follow").addEventListener("click", () => shown?.follow());
  find("save").addEventListener("click", () => save({ header: shown.replay.header, steps: shown.steps }));
  find("predict").checked = false; // the next step has not happened yet
  find("predict").parentElement.hidden = true;
  findModel().catch((error) => error.status === 401 || notes.set("model", error.message));
  const putBack = () => shown?.presets.putBack(); // a page that is not seen holds no lever for a preset
  document.addEventListener("visibilitychange", () => document.hidden && putBack());
  addEventListener("pagehide", () => {
    link.leave(); // one may come back to this page, and a browser has only six connections for all
    putBack();
  });
  addEventListener("pageshow", ({ persisted }) => persisted && link.open());
  link.open();
}

start();
