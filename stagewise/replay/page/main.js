"use strict";
// The page as a whole: its position in the run, how to move it, and the link that leads there.

/** Which step each trace shows at a position. By steps, a position is a step's number; by wall time it is seconds since
 * the beginning, and each trace shows the step that was running then. */
class Clock {
  constructor(replays) {
    Object.assign(this, { replays, mode: "steps" });
  }

  get end() {
    const ends = this.replays.map((replay) =>
      this.mode === "steps" ? replay.steps.length - 1 : replay.begins(replay.steps.length - 1),
    );
    return Math.max(...ends);
  }

  /** The longest trace's seconds. */
  get seconds() {
    return Math.max(...this.replays.map((replay) => replay.ends(replay.steps.length - 1)));
  }

  /** The position at a fraction of the run. */
  at(share) {
    if (this.mode === "steps") return Math.max(0, Math.min(this.end, Math.floor(share * (this.end + 1))));
    return share * this.seconds;
  }

  /** In words, when a trace ended, if that was before this position. */
  since(number, position) {
    const replay = this.replays[number];
    if (this.replays.length < 2 || !replay.hasEnd) return "";
    const ago = position - this.position(number, replay.steps.length - 1);
    if (ago <= 1e-9) return "";
    const passed = this.mode === "steps" ? count(ago, "step") : `${ago.toFixed(3)} s`;
    return `ended after ${count(replay.passes, "step")}, ${passed} ago`;
  }

  /** The step of a trace at a position. */
  step(number, position) {
    const replay = this.replays[number];
    const last = replay.steps.length - 1;
    if (this.mode === "steps") return Math.min(last, position);
    let low = 0;
    let high = last;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (replay.begins(middle) <= position + 1e-9) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  position(number, step) {
    return this.mode === "steps" ? step : this.replays[number].begins(step);
  }

  /** The position this many steps of any trace later, or earlier. */
  move(position, steps) {
    if (this.mode === "steps") return Math.max(0, Math.min(this.end, position + steps));
    for (; steps > 0; steps--) {
      const next = this.replays
        .map((r, i) => this.step(i, position) + 1)
        .flatMap((s, i) => (s < this.replays[i].steps.length ? [this.replays[i].begins(s)] : []));
      if (!next.length) return position;
      position = Math.min(...next);
    }
    for (; steps < 0; steps++) {
      const last = this.replays.flatMap((replay, i) => {
        const step = this.step(i, position);
        const begins = replay.begins(step);
        return begins < position - 1e-9 ? [begins] : step ? [replay.begins(step - 1)] : [];
      });
      if (!last.length) return 0;
      position = Math.max(...last);
    }
    return position;
  }

  /** The trace that was the last to begin a step before a position, and that step: together they name the position. */
  naming(position) {
    let best = 0;
    this.replays.forEach((replay, i) => {
      if (replay.begins(this.step(i, position)) > this.replays[best].begins(this.step(best, position)) + 1e-9) best = i;
    });
    if (this.mode === "steps") best = this.replays.findIndex((replay) => replay.steps.length > position);
    return { trace: best, step: this.step(best, position) };
  }

  /** A position in the picture of the run, from 0 to 1. */
  cursor(position) {
    return this.mode === "steps" ? (position + 0.5) / (this.end + 1) : position / this.seconds;
  }

  /** Where a step begins, or ends, in the picture. */
  share(number, step, end = false) {
    const replay = this.replays[number];
    if (this.mode === "steps") return (step + end) / (this.end + 1);
    return (end ? replay.ends(step) : replay.begins(step)) / this.seconds;
  }
}

const UNANSWERED = 20000; // milliseconds that play waits for an answer
const ANSWERED = 4000; // milliseconds that it shows the verdict

class Page {
  /** traces: [header, …steps] of each; story: see story.js. */
  constructor(traces, story = null) {
    this.replays = traces.map(([header, ...steps]) => {
      const replay = new Replay(header);
      for (const step of steps) replay.append(step);
      return replay;
    });
    this.clock = new Clock(this.replays);
    this.position = 0;
    this.chosen = { id: null, index: 0 };
    this.views = this.replays.map((replay) => new View(replay, this.chosen, () => this.render()));
    const different = differences(this.replays.map(({ header }) => header));
    const isSame = this.replays.every(({ stage }) => stage === this.replays[0].stage);
    this.labels = this.replays.map(({ stage }, i) => {
      if (story?.engines) return story.engines[i];
      if (!isSame) return `stage ${stage}`;
      return different[i] ? `with ${different[i].split(", ")[0]}` : `run ${i + 1}`;
    });
    (story?.engines ?? different).forEach((text, i) => {
      if (text) this.views[i].nodes.title.querySelector("small").append(`, ${text}`);
    });
    document.getElementById("panels").append(...this.views.map(({ root }) => root));
    document.getElementById("panels").classList.toggle("two", this.views.length > 1);
    this.story = story && new Story(this, story);
    this.part = new Part();
    this.films = this.replays.map((replay, i) => {
      const marks = this.story?.marks(i) ?? [];
      return new Film(replay, this.clock, i, filmInWords(replay), (share) => this.dragTo(share), this.part, marks);
    });
    if (this.views.length > 1) this.engines();
    const isCarried = this.replays.some(({ lanes }) => lanes.spans.some(({ carried }) => carried !== null));
    document.getElementById("legend-carried").hidden = !isCarried; // only static batches have such rows
    this.overview = new Overview(this.clock, this.part);
    document.getElementById("films").append(...this.films.map(({ root }) => root), this.overview.root);
    if (this.views.length === 1 && !story) {
      const { title } = this.views[0].nodes;
      document.getElementById("heading").replaceChildren(...title.childNodes);
      title.hidden = true;
    }
    this.questions = questions(this.replays[0]);
    this.asked = null;
    this.playing = null;
    this.ink = new Ink();
    this.controls();
    this.measure();
    this.readFragment();
    this.renderNow();
    new ResizeObserver(() => this.resized()).observe(document.body);
  }

  resized() {
    if (document.body.clientWidth !== this.measured) this.measure();
  }

  /** Reading widths makes the browser lay the page out again, so do it only when they may have changed. */
  measure() {
    this.measured = document.body.clientWidth;
    for (const part of [...this.films, ...this.views]) part.measure();
    this.story?.measure();
    this.fit();
    this.render();
  }

  /** Show as much of the run as can be told apart, and align the slider's thumb with the playhead. */
  fit() {
    const { clock, slider, films, part } = this;
    const width = films[0].width;
    part.fit(clock.end + 1, width - 2 * EDGE);
    const half = clock.mode === "steps" ? (0.5 / (clock.end + 1)) * (width - 2 * EDGE) : 0;
    slider.style.setProperty("--inset", `${half}px`);
    document.getElementById("zoom").hidden = clock.end < 100;
    setText(document.getElementById("zoomed"), part.zoom > 1 ? `${part.zoom} ×` : "all");
  }

  /** Show more or less of the run. */
  zoom(factor) {
    this.part.choose(this.part.zoom * factor, 2 ** Math.ceil(Math.log2((this.clock.end + 1) / 16)));
    this.fit();
    this.part.from = this.clock.cursor(this.position) - this.part.width / 2;
    this.render();
  }

  /** Label the engines: on the films and, where there is room for only one engine, on buttons that choose it. */
  engines() {
    const panels = document.getElementById("panels");
    this.engineButtons = this.labels.map((label, i) => {
      this.films[i].label = label;
      const text = capital(label).replaceAll("_", "_\u200b"); // where it may break
      const button = element("button", "", text, { type: "button" });
      button.addEventListener("click", () => this.showEngine(i));
      return button;
    });
    const row = element("nav", "engines", "", { "aria-label": "Shown engine" });
    row.append(...this.engineButtons);
    panels.before(row);
    this.showEngine(0);
  }

  /** Where there is room for only one engine, show this one. */
  showEngine(number) {
    document.getElementById("panels").dataset.shown = number;
    this.engineButtons?.forEach((button, i) => button.setAttribute("aria-pressed", String(i === number)));
  }

  /** Add a step to a trace, as it happens. A page that shows the last step goes on to the new one. */
  append(number, step) {
    const atEnd = this.position >= this.clock.end && !this.playing;
    this.replays[number].append(step);
    this.grows = true;
    this.showKinds();
    this.fit();
    if (atEnd) this.goTo(this.clock.end);
    else this.render();
  }

  // --- Drawing -----------------------------------------------------------------------------------------------------

  /** Draw once before the next frame, however often this is called until then. */
  render() {
    this.frame ??= requestAnimationFrame(() => this.renderNow());
  }

  renderNow() {
    if (this.frame) cancelAnimationFrame(this.frame);
    this.frame = null;
    const { clock, position, slider } = this;
    this.showEnd();
    this.views.forEach((view, i) => view.show(clock.step(i, position), this.ink, clock.since(i, position)));
    slider.max = clock.mode === "steps" ? clock.end : Math.ceil(1e6 * clock.seconds);
    slider.value = clock.mode === "steps" ? position : Math.round(1e6 * position);
    const where = this.whereInWords();
    setText(this.where, where);
    slider.setAttribute("aria-valuetext", where);
    this.part.follow(clock.cursor(position));
    const how = { isAsking: this.predict.checked, goesOn: this.grows };
    for (const film of this.films) film.draw(this.ink, clock.cursor(position), how);
    this.overview.draw(this.ink, this.films[0].width);
    this.story?.show();
    for (const { nodes } of this.views) {
      const live = this.playing ? "off" : "polite";
      if (nodes.spoken.getAttribute("aria-live") !== live) nodes.spoken.setAttribute("aria-live", live);
    }
    clearTimeout(this.later);
    this.later = setTimeout(() => this.writeFragment(), 250); // browsers limit how often an address may change
  }

  /** At the end of the run, when no request runs, the cards have another order. A running engine has no end. */
  showEnd() {
    const { clock, position, replays } = this;
    const panels = document.getElementById("panels");
    const isEnd = !this.grows && position === clock.end && replays.every(({ hasEnd }) => hasEnd);
    if (panels.classList.contains("end") === isEnd) return;
    panels.classList.toggle("end", isEnd);
    for (const view of this.views) view.measurePool();
  }

  whereInWords() {
    const { clock, position, replays } = this;
    const { first } = replays[0];
    if (this.grows) return `Step ${first + position} of ${first + clock.end}`;
    if (clock.mode !== "steps") return `${position.toFixed(3)} s of ${clock.seconds.toFixed(3)} s`;
    const passes = Math.max(...replays.map((replay) => replay.passes));
    return position < passes ? `Step ${first + position} of ${first + passes - 1}` : `End: ${count(passes, "step")}`;
  }

  // --- Moving ------------------------------------------------------------------------------------------------------

  goTo(position) {
    this.withdraw();
    this.position = Math.max(0, Math.min(this.clock.end, position));
    this.render();
  }

  /** One step forward, by key, by button or in play: here the page may ask first. */
  forward() {
    if (this.asked !== null) return this.answer(null);
    const next = this.clock.move(this.position, 1);
    if (next === this.position) return this.pause();
    const step = this.clock.step(0, next);
    const isNew = step !== this.clock.step(0, this.position);
    if (this.predict.checked && isNew && this.questions.has(step)) return this.ask(step, next);
    return this.goTo(next);
  }

  /** Whether the page will ask about the next step: until then nothing may give the answer away. */
  get asksNext() {
    return this.predict.checked && this.questions.has(this.clock.step(0, this.position) + 1);
  }

  /** Go to a later position at once. If there is a question on the way, or about the step after it, stop before that step
   * and ask. */
  leapTo(position) {
    if (this.asked !== null) return this.answer(null);
    const { clock } = this;
    const places = [...this.questions.keys()].map((step) => [clock.position(0, step), step]);
    const last = clock.step(0, position) + 1;
    const [next, step] = places.sort(([a], [b]) => a - b).find(([p, s]) => p > this.position && s <= last) ?? [];
    if (!this.predict.checked || step === undefined) return this.turnTo(position);
    this.turnTo(clock.move(next, -1));
    return this.ask(step, next);
  }

  /** One step forward by hand, which stops play. */
  stepOn() {
    this.pause();
    this.resumes = false;
    this.forward();
  }

  turnTo(position) {
    this.pause();
    this.resumes = false;
    this.goTo(position);
  }

  /** Go to the next or the previous step that has an event of the chosen kind. */
  jump(direction) {
    this.pause();
    const kind = this.kind.value;
    const positions = this.replays.flatMap((replay, i) => {
      const steps = kind ? replay.stepsWith[kind] : [...new Set(KINDS.flatMap((k) => replay.stepsWith[k]))];
      return steps.map((step) => this.clock.position(i, step));
    });
    const beyond = positions.filter((p) => (p - this.position) * direction > 1e-9);
    if (beyond.length)
      this.goTo(direction > 0 ? beyond.reduce((a, b) => Math.min(a, b)) : beyond.reduce((a, b) => Math.max(a, b)));
  }

  play() {
    if (this.playing) return this.pause();
    this.resumes = false;
    clearTimeout(this.timer);
    if (this.position >= this.clock.end) this.goTo(0);
    this.playing = { since: performance.now(), from: this.position };
    const tick = (now) => {
      if (!this.playing) return;
      const { since, from } = this.playing;
      const speed = Number(this.speed.value);
      const due = from + (speed * (now - since)) / 1000;
      while (this.playing && this.position < this.clock.end) {
        const next = this.clock.move(this.position, 1);
        if (next > due) break;
        this.forward();
        const dwell = this.story?.dwell;
        if (!this.playing || !dwell) continue;
        this.playing = { since: now + dwell, from: this.position };
        break;
      }
      if (this.position >= this.clock.end) this.pause();
      if (this.playing) requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
    this.showPlaying();
  }

  pause() {
    this.playing = null;
    this.showPlaying();
  }

  showPlaying() {
    setText(this.playButton, this.playing ? "❚❚ Pause" : "▶ Play");
    this.playButton.setAttribute("aria-label", this.playing ? "Pause" : "Play");
  }

  /** Go to a place in the picture of the run, from 0 to 1. */
  dragTo(share) {
    const { clock } = this;
    this.turnTo(clock.mode === "steps" ? Math.floor(share * (clock.end + 1)) : share * clock.seconds);
  }

  // --- Questions ---------------------------------------------------------------------------------------------------

  ask(step, next) {
    const { text, choices } = this.questions.get(step);
    this.resumes = Boolean(this.playing);
    this.pause();
    this.asked = { step, next };
    if (this.resumes) this.wait(UNANSWERED, () => this.judge(null));
    const letters = "abcdefgh";
    const isOneOfTwo = this.views.length > 1;
    setText(document.getElementById("question-text"), isOneOfTwo ? `${capital(this.labels[0])}: ${text}` : text);
    if (isOneOfTwo) this.showEngine(0);
    setText(document.getElementById("verdict"), "");
    setText(document.getElementById("go-on"), "Show it");
    const list = document.getElementById("choices");
    list.replaceChildren(
      ...choices.map((choice, i) => {
        const button = element("button", "choice", `${letters[i]}) ${choice}`, { type: "button" });
        button.addEventListener("click", () => this.answer(choice));
        return button;
      }),
    );
    document.getElementById("question").hidden = false;
    document.getElementById("question-text").focus({ preventScroll: true });
  }

  /** choice: the reader's; null: just show the step. */
  answer(choice) {
    const { step, next } = this.asked;
    if (choice !== null) return this.judge(choice);
    this.questions.delete(step);
    this.goTo(next);
    return this.goOn();
  }

  /** Say what was right, and show the step; play, if it was on, resumes by itself. */
  judge(choice) {
    const { step, next } = this.asked;
    const { right } = this.questions.get(step);
    this.questions.delete(step);
    const verdict = choice === right ? "Right." : choice === null ? `${right}.` : `No. ${right}.`;
    setText(document.getElementById("verdict"), verdict);
    for (const button of document.getElementById("choices").children) {
      button.disabled = true;
      const own = button.textContent.slice(3);
      button.classList.toggle("right", own === right);
      button.classList.toggle("wrong", own === choice && choice !== right);
    }
    if (this.resumes) this.wait(ANSWERED, () => this.goOn());
    setText(document.getElementById("go-on"), "Go on");
    this.asked = null;
    this.position = next;
    this.render();
    document.getElementById("go-on").focus({ preventScroll: true });
  }

  /** Close the question. */
  goOn() {
    const resumes = this.resumes;
    this.withdraw();
    if (resumes && this.position < this.clock.end) this.play();
  }

  wait(milliseconds, act) {
    clearTimeout(this.timer);
    this.timer = setTimeout(act, milliseconds);
  }

  withdraw() {
    clearTimeout(this.timer);
    this.asked = null;
    document.getElementById("question").hidden = true;
  }

  // --- Links -------------------------------------------------------------------------------------------------------

  /** #step=12&request=A2; with two traces also the clock, and which trace the step is of. */
  get fragment() {
    const { trace, step } = this.clock.naming(this.position);
    const fields = new URLSearchParams();
    if (this.replays.length > 1) {
      fields.set("clock", this.clock.mode);
      fields.set("trace", trace + 1);
    }
    fields.set("step", this.replays[trace].first + step);
    if (this.story?.here) fields.set("stop", this.story.here);
    if (this.chosen.id !== null) fields.set("request", this.replays[0].name(this.chosen.id, this.chosen.index));
    return `#${fields}`;
  }

  writeFragment() {
    if (location.hash !== this.fragment) history.replaceState(null, "", this.fragment);
  }

  readFragment() {
    const fields = new URLSearchParams(location.hash.slice(1));
    const whole = (name) => Math.max(0, Math.floor(Number(fields.get(name)) || 0));
    if (fields.get("clock") === "time" && this.replays.length > 1) this.setClock("time");
    else if (fields.get("clock") === "steps") this.setClock("steps");
    const trace = Math.min(this.replays.length - 1, Math.max(0, whole("trace") - 1));
    const { first, steps } = this.replays[trace];
    const step = Math.max(0, Math.min(steps.length - 1, whole("step") - first));
    Object.assign(this.chosen, this.replays[0].named(fields.get("request")));
    if (this.story && fields.has("stop") && !fields.has("step")) this.story.go(whole("stop") - 1);
    else this.goTo(this.clock.position(trace, step));
  }

  // --- Controls ----------------------------------------------------------------------------------------------------

  setClock(mode) {
    const { trace, step } = this.clock.naming(this.position);
    this.pause();
    this.clock.mode = mode;
    document.getElementById("clock").value = mode;
    const speeds =
      mode === "steps"
        ? [1, 2, 5, 10, 30, 100].map((n) => [n, `${n} steps/s`])
        : [
            [0.01, "1/100 ×"],
            [0.1, "1/10 ×"],
            [0.5, "1/2 ×"],
            [1, "as it was"],
          ];
    this.speed.replaceChildren(
      ...speeds.map(([value, text]) => element("option", "", text.replace("1 steps", "1 step"), { value })),
    );
    this.speed.value = mode === "steps" ? 2 : 0.1;
    if (this.films) this.fit();
    this.goTo(this.clock.position(trace, step));
  }

  controls() {
    const find = (id) => document.getElementById(id);
    const on = (id, act) => find(id).addEventListener("click", act);
    Object.assign(this, {
      slider: find("slider"),
      where: find("where"),
      speed: find("speed"),
      kind: find("kind"),
      playButton: find("play"),
      predict: find("predict"),
    });
    find("clock-switch").hidden = this.replays.length < 2;
    find("clock").addEventListener("change", (event) => this.setClock(event.target.value));
    this.setClock("steps");
    this.showKinds();
    this.slider.addEventListener("input", () => {
      this.pause();
      const value = Number(this.slider.value);
      this.goTo(this.clock.mode === "steps" ? value : value / 1e6);
    });
    on("first", () => this.turnTo(0));
    on("last", () => this.turnTo(this.clock.end));
    on("back", () => this.turnTo(this.clock.move(this.position, -1)));
    on("forward", () => this.stepOn());
    on("play", () => this.play());
    on("previous-event", () => this.jump(-1));
    on("next-event", () => this.jump(1));
    on("print", () => window.print());
    on("go-on", () => (this.asked ? this.answer(null) : this.goOn()));
    on("closer", () => this.zoom(2));
    on("farther", () => this.zoom(1 / 2));
    on("help-button", () => this.help(find("help").hidden));
    on("theme", () => this.restyle(!isDark()));
    this.predict.addEventListener("change", () => {
      document.body.classList.toggle("asking", this.predict.checked);
      if (!this.predict.checked) this.withdraw();
      this.render();
    });
    this.speed.addEventListener(
      "change",
      () => this.playing && Object.assign(this.playing, { since: performance.now(), from: this.position }),
    );
    system.addEventListener("change", () => this.restyle(system.matches));
    addEventListener("beforeprint", () => {
      this.wasDark = isDark();
      this.restyle(false);
      this.renderNow();
    });
    addEventListener("afterprint", () => this.restyle(this.wasDark));
    addEventListener("hashchange", () => this.readFragment());
    addEventListener("keydown", (event) => this.key(event));
  }

  /** Offer the kinds of events that occur, and show the legend's entries that apply. */
  showKinds() {
    for (const kind of ["beams", "gains"])
      document.getElementById(`legend-${kind}`).hidden = !this.replays.some((replay) => replay[kind].length);
    const kinds = ["", ...KINDS.filter((kind) => this.replays.some((replay) => replay.stepsWith[kind].length))];
    if (this.kind.options.length === kinds.length) return;
    const chosen = this.kind.value;
    this.kind.replaceChildren(...kinds.map((kind) => element("option", "", kind || "any event", { value: kind })));
    this.kind.value = chosen;
  }

  /** Show or hide the keys and words, and take the focus there and back. */
  help(isShown) {
    const [help, button] = ["help", "help-button"].map((id) => document.getElementById(id));
    help.hidden = !isShown;
    button.setAttribute("aria-expanded", String(isShown));
    (isShown ? help : button).focus();
  }

  restyle(dark) {
    setTheme(dark);
    this.ink = new Ink();
    this.render();
  }

  key(event) {
    const { target } = event;
    const typing = target.matches("select, textarea, input:not([type=checkbox])");
    if (event.altKey || event.ctrlKey || event.metaKey || (typing && target !== this.slider)) return;
    const acts = {
      ArrowRight: () => this.stepOn(),
      ArrowLeft: () => this.turnTo(this.clock.move(this.position, -1)),
      PageDown: () => this.turnTo(this.clock.move(this.position, 10)),
      PageUp: () => this.turnTo(this.clock.move(this.position, -10)),
      Home: () => this.turnTo(0),
      End: () => this.turnTo(this.clock.end),
      n: () => this.jump(1),
      p: () => this.jump(-1),
      "+": () => document.getElementById("closer").click(),
      "-": () => document.getElementById("farther").click(),
      ".": () => this.story?.next.click(),
      ",": () => this.story?.back.click(),
      "?": () => document.getElementById("help-button").click(),
      Escape: () => (document.getElementById("help").hidden ? this.views[0].choose(null) : this.help(false)),
    };
    if (event.key === " " && !target.matches("button, input[type=checkbox], summary")) acts[" "] = () => this.play();
    if (!acts[event.key]) return;
    event.preventDefault();
    acts[event.key]();
  }
}

function filmInWords(replay) {
  const numbers = [count(replay.passes, "step"), count(replay.names.size, "request")];
  return `The run: ${list(numbers)}, at most ${replay.lanes.taken.length} at once`;
}
