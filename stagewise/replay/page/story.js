"use strict";
// An example's story: stops in its run, each with a few sentences, and the result at the end.

class Story {
  /** told: {look, stops: [{trace, step, says, text}], verdict}, as story.py makes it. */
  constructor(page, { look, stops, verdict }) {
    Object.assign(this, { page, look, at: 0 });
    this.stops = [...stops, { says: "The result", text: verdict }]; // the last stop is at the end of the run
    const find = (id) => document.getElementById(id);
    Object.assign(this, {
      root: find("story"),
      told: find("told"),
      back: find("story-back"),
      next: find("story-next"),
    });
    this.buttons = this.stops.map(({ says }, i) => {
      const button = element("button", "stop", this.label(i), { type: "button", title: says });
      button.setAttribute("aria-label", `Stop ${i + 1}: ${says}`);
      button.addEventListener("click", () => this.go(i));
      const item = element("li");
      item.append(button);
      return button;
    });
    find("stops").append(...this.buttons.map((button) => button.parentNode));
    this.back.addEventListener("click", () => this.go(this.at - (this.isAt(this.at) ? 1 : 0)));
    this.next.addEventListener("click", () => page.leapTo(this.position(Math.min(this.at + 1, this.stops.length - 1))));
    this.root.hidden = this.back.parentNode.hidden = false;
    document.body.classList.add("story-page", `look-${look}`);
  }

  label(i) {
    return i === this.stops.length - 1 ? "✓" : String(i + 1);
  }

  /** Where the stops of a trace are, for its film. */
  marks(trace) {
    const marks = this.stops.slice(0, -1).map((stop, i) => ({ ...stop, label: this.label(i) }));
    return marks.filter((mark) => mark.trace === trace);
  }

  position(i) {
    const { clock } = this.page;
    return i === this.stops.length - 1 ? clock.end : clock.position(this.stops[i].trace, this.stops[i].step);
  }

  isAt(i) {
    return Math.abs(this.position(i) - this.page.position) < 1e-9;
  }

  /** The stop at the position, counted from 1; 0 if there is none. */
  get here() {
    return this.stops.findIndex((_, i) => this.isAt(i)) + 1;
  }

  go(i) {
    this.page.turnTo(this.position(Math.max(0, Math.min(this.stops.length - 1, i))));
  }

  /** How long play should stay here, in milliseconds: at a stop, as long as it takes to read. */
  get dwell() {
    const i = this.here - 1;
    return i < 0 || this.page.asksNext ? 0 : 1200 + 35 * this.stops[i].text.length;
  }

  /** Show the last stop that the position has reached. */
  show() {
    const { page } = this;
    this.at = 0;
    for (let i = 1; i < this.stops.length; i++) {
      const position = this.position(i);
      if (position <= page.position + 1e-9 && position >= this.position(this.at)) this.at = i;
    }
    const isHere = this.isAt(this.at);
    const arrived = isHere && this.arrivedAt !== this.at;
    this.arrivedAt = isHere ? this.at : null;
    if (arrived && "trace" in this.stops[this.at]) page.showEngine(this.stops[this.at].trace);
    this.tell(this.at, page.asksNext);
    setClass(this.told, `told${isHere ? " here" : ""}${this.at === this.stops.length - 1 ? " outcome" : ""}`);
    this.buttons.forEach((button, i) => {
      if (i === this.at && isHere) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    });
    this.back.disabled = this.at === 0 && isHere;
    this.next.disabled = this.at === this.stops.length - 1;
  }

  tell(i, isHidden = false) {
    const { trace, step, says, text } = this.stops[i];
    const isLast = i === this.stops.length - 1;
    const where = isLast ? "The end" : `Step ${this.page.replays[trace].first + step}`;
    const whose = this.page.replays.length > 1 && !isLast ? `, stage ${this.page.replays[trace].stage}` : "";
    const same = this.page.replays.every(({ stage }) => stage === this.page.replays[0].stage);
    fillText(this.told, [
      ["stop-where", `${where}${same ? "" : whose}: `],
      ["stop-says", `${says}. `],
      ["", isHidden ? "More after the question." : text],
    ]);
  }

  /** As high as the longest text, so that nothing below it jumps. */
  measure() {
    this.told.style.minHeight = "";
    let most = 0;
    for (let i = 0; i < this.stops.length; i++) {
      this.tell(i);
      most = Math.max(most, this.told.offsetHeight);
    }
    this.told.style.minHeight = `${most}px`;
    this.show();
  }
}
