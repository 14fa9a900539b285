// One schedule: its controls, its pictures, and what one does with them.

import { drawCut } from "./cut.js";
import { inWords } from "./drawing.js";
import { fileName, saveFile, svgFile } from "./exporting.js";
import { actionAt, besideAction, drawGrid } from "./grid.js";
import { drawMemory } from "./memory.js";
import { Refusal, fetchAnswer, fetchMoved, fetchReason, isStored, storedAnswers } from "./service.js";
import { drawTimeline, momentAt, neighbour } from "./timeline.js";

const COUNTS = ["ranks", "chunks", "microbatches", "minibatches", "groups"];
const TIMES = ["forward", "backward_input", "backward_weight"];
const ARROWS = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"];

export class Panel {
  /** start: what the server sends once; changed: called with each new question;
   * said: says something to a screen reader. */
  constructor(start, question, { changed, drawn, said }) {
    this.start = start;
    this.question = question;
    this.changed = changed;
    this.drawn = drawn;
    this.said = said;
    this.answer = null;
    this.chain = [];
    this.selectedEvent = null;
    this.selectedAction = null;
    this.target = null;
    this.asked = 0;
    const copy = document.getElementById("panel").content.cloneNode(true);
    this.element = copy.querySelector(".panel");
    this.form = this.find("form");
    this.connect();
    this.showQuestion();
  }

  find(selector) {
    return this.element.querySelector(selector);
  }

  /** Asks for the answer to the present question, and draws it. */
  async ask() {
    const number = ++this.asked;
    this.element.classList.add("waiting");
    try {
      const answer = await fetchAnswer(this.question);
      if (number !== this.asked) return;
      this.answer = answer;
      this.chain = [];
      this.selectedEvent = this.selectedAction = this.target = null;
      this.refuse("");
      this.find(".why").textContent = "";
      this.showAnswer();
      this.drawn();
    } catch (error) {
      if (number === this.asked) this.fail(error);
    } finally {
      if (number === this.asked) this.element.classList.remove("waiting");
    }
  }

  /** Takes another question, and asks it. */
  change(fields) {
    this.question = { ...this.question, ...fields };
    this.showQuestion();
    this.changed();
    return this.ask();
  }

  fail(error) {
    if (!(error instanceof Refusal)) throw error;
    this.refuse(error.message);
  }

  refuse(words) {
    const place = this.find(".refused");
    place.textContent = words;
    place.hidden = !words;
    for (const svg of this.element.querySelectorAll("svg")) {
      svg.classList.toggle("stale", Boolean(words));
    }
  }

  connect() {
    const names = this.start.schedules.map((each) => each.name);
    this.form.schedule.innerHTML = names.map((name) => `<option>${name}</option>`).join("");
    if (isStored) {
      const situations = [...new Set(storedAnswers.map((each) => each.situation))];
      this.form.situation.replaceChildren(...situations.map((each) => new Option(each)));
      const named = storedAnswers.filter((each) => each.question.text === null);
      const there = new Set(named.map((each) => each.question.schedule));
      for (const option of [...this.form.schedule.options]) {
        if (!there.has(option.value)) option.remove();
      }
    }
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.form.addEventListener("input", (event) => this.read(event.target));
    for (const [name, act] of Object.entries({
      text: () => saveFile(fileName(this.answer.name, "txt"), `${this.answer.text}\n`, "text/plain"),
      svg: () => saveFile(fileName(this.answer.name, "svg"), svgFile(this.find(".timeline")), "image/svg+xml"),
      reset: () => this.change({ text: null }),
      use: () => this.change({ text: this.find("textarea").value, groups: 1 }),
      even: () => this.change({ cuts: null }),
    })) {
      this.find(`button[name=${name}]`).addEventListener("click", act);
    }
    this.connectTimeline();
    this.connectGrid();
  }

  /** Reads one control that was changed. */
  read(control) {
    const { name, value } = control;
    if (isStored) return this.readStored(name);
    if (name === "schedule") return this.change({ schedule: value, text: null, cuts: null });
    if (name === "layers") return this.change({ layers: control.checked, memory: null });
    if (COUNTS.includes(name)) {
      const number = Math.round(Number(value));
      if (value === "" || !Number.isFinite(number)) return undefined;
      const fields = { [name]: number };
      if (name === "ranks" || name === "chunks") Object.assign(fields, { cuts: null, text: null });
      if (name === "microbatches") fields.text = null;
      this.question = { ...this.question, ...fields };
    } else if (TIMES.includes(name)) {
      this.question = { ...this.question, [name]: timesOf(value) };
    } else if (name === "memory") {
      this.question = { ...this.question, memory: value.trim() || null };
    } else {
      this.question = { ...this.question, [name]: value.trim() === "" ? null : numberOf(value) };
    }
    // What is being written stays as it is, but other controls may follow.
    this.showQuestion(control);
    this.changed();
    return this.ask();
  }

  /** Shows the answer for both controls, or else the first one for the changed one. */
  readStored(name) {
    const [situation, schedule] = [this.form.situation.value, this.form.schedule.value];
    const isThere = (each) => each.situation === situation;
    const isNamed = (each) => each.question.text === null && each.question.schedule === schedule;
    const found =
      storedAnswers.find((each) => isThere(each) && isNamed(each)) ??
      storedAnswers.find(name === "schedule" ? isNamed : isThere);
    return this.change(found.question);
  }

  /** Shows the question in the controls. */
  showQuestion(except = null) {
    const question = this.question;
    const entry = this.start.schedules.find((each) => each.name === question.schedule);
    const set = (name, value) => {
      const control = this.form.elements[name];
      if (control !== except) control.value = value ?? "";
    };
    set("schedule", question.schedule);
    for (const name of COUNTS) set(name, question[name]);
    for (const name of TIMES) set(name, [question[name]].flat().join(", "));
    for (const name of ["message", "latency", "memory"]) set(name, question[name]);
    this.form.elements.layers.checked = question.layers;
    const takesAny = Boolean(entry?.any_chunks);
    this.form.chunks.disabled = !takesAny || question.text !== null;
    if (!takesAny && entry) set("chunks", entry.chunks);
    for (const name of TIMES) this.form.elements[name].disabled = question.layers;
    this.find("button[name=reset]").hidden = question.text === null || isStored;
    if (isStored) {
      const key = JSON.stringify(question);
      const found = storedAnswers.find((each) => JSON.stringify(each.question) === key);
      if (found) this.form.situation.value = found.situation;
    }
  }

  /** Shows what does not depend on the other schedule. */
  showAnswer() {
    const { answer } = this;
    const facts = answer.facts.map(([name, words]) => {
      const row = document.createElement("div");
      const [term, value] = [document.createElement("dt"), document.createElement("dd")];
      [term.textContent, value.textContent] = [name, words];
      row.append(term, value);
      return row;
    });
    this.find(".facts").replaceChildren(...facts);
    const { text, words } = answer.formula;
    this.find(".formula").textContent = `Formula: ${text ? `${text} — ${words}` : words}`;
    this.find(".over").textContent = answer.memory.words;
    this.find(".lost").textContent = answer.lost?.text ?? "";
    this.find("textarea").value = answer.text;
    if (this.question.text !== null) {
      // The text has sizes of its own.
      this.form.ranks.value = answer.ranks;
      this.form.microbatches.value = answer.microbatches;
    }
    const place = this.find(".cut");
    place.hidden = !(answer.cuts && this.start.layers);
    if (!place.hidden) {
      const whenMoved = isStored ? null : (cuts) => this.change({ cuts });
      drawCut(this.find(".layers"), this.start.layers, answer.cuts, whenMoved);
    }
    this.showGrid();
  }

  /** The measured step, if it is drawn below this schedule. */
  measured(show) {
    const { measured } = this.start;
    return show.measured && measured?.ranks === this.answer.ranks ? measured : null;
  }

  /** The seconds that the timeline needs. */
  seconds(show) {
    if (!this.answer) return 0;
    return Math.max(this.answer.seconds, this.measured(show)?.seconds ?? 0);
  }

  /** Draws on a scale of time that two schedules share. */
  draw(span, show) {
    if (!this.answer) return;
    const { answer, start } = this;
    const measured = this.measured(show);
    const width = Math.max(320, Math.floor(this.find(".timeline").getBoundingClientRect().width));
    this.view = {
      span,
      width,
      colors: start.colors,
      messages: show.messages,
      critical: show.critical,
      measured,
    };
    this.showTimeline();
    drawMemory(this.find(".memory"), answer, this.view);
  }

  showTimeline() {
    const { chain, selectedEvent: selected } = this;
    drawTimeline(this.find(".timeline"), this.answer, { ...this.view, chain, selected });
  }

  showGrid() {
    const { selectedAction: selected, target } = this;
    const view = { colors: this.start.colors, selected, target };
    drawGrid(this.find(".grid"), this.answer, view);
  }

  connectTimeline() {
    const svg = this.find(".timeline");
    svg.addEventListener("click", (event) => {
      if (!this.answer) return;
      const moment = momentAt(svg, event, this.answer, this.view);
      if (moment) this.askWhy(moment.rank, moment.seconds);
    });
    svg.addEventListener("keydown", (event) => {
      if (!this.answer) return;
      const { events, ranks } = this.answer;
      if (ARROWS.includes(event.key)) {
        event.preventDefault();
        const at = (this.selectedEvent = neighbour(events, this.selectedEvent, event.key, ranks));
        if (at === null) return;
        this.said(`rank ${events.rank[at]}, ${events.text[at]}, from ${inWords(events.start[at])}`);
        this.showTimeline();
      } else if ((event.key === "Enter" || event.key === " ") && this.selectedEvent !== null) {
        event.preventDefault();
        const at = this.selectedEvent;
        this.askWhy(events.rank[at], events.start[at]);
      }
    });
  }

  /** Asks why a rank waits, or why it began its action when it did. */
  async askWhy(rank, seconds) {
    const number = this.asked;
    try {
      const { text, chain } = await fetchReason(this.question, rank, seconds);
      // The chain has the numbers of events in the answer that was clicked.
      if (number !== this.asked) return;
      this.find(".why").textContent = text;
      this.chain = chain;
      this.showTimeline();
    } catch (error) {
      this.fail(error);
    }
  }

  connectGrid() {
    const svg = this.find(".grid");
    let rank = null;
    svg.addEventListener("pointerdown", (event) => {
      if (!this.answer || isStored || event.button !== 0) return;
      const at = actionAt(svg, event, this.answer);
      if (at === null) return;
      svg.setPointerCapture(event.pointerId);
      rank = this.answer.grid.rank[at];
      this.selectedAction = at;
      this.showGrid();
    });
    svg.addEventListener("pointermove", (event) => {
      if (rank === null) return;
      const at = actionAt(svg, event, this.answer, rank);
      const target = at === this.selectedAction ? null : at;
      if (target !== this.target) {
        this.target = target;
        this.showGrid();
      }
    });
    const end = (isDropped) => {
      const [source, target] = [this.selectedAction, this.target];
      const isMoved = isDropped && rank !== null && target !== null;
      rank = this.target = null;
      if (isMoved) this.move(source, target);
      else if (this.answer) this.showGrid();
    };
    svg.addEventListener("pointerup", () => end(true));
    svg.addEventListener("pointercancel", () => end(false));
    svg.addEventListener("keydown", (event) => {
      if (!this.answer || !ARROWS.includes(event.key)) return;
      event.preventDefault();
      const { grid, ranks } = this.answer;
      const next = besideAction(grid, this.selectedAction, event.key, ranks);
      if (next === null) return;
      if (event.altKey && this.selectedAction !== null && !isStored) {
        if (next !== this.selectedAction && grid.rank[next] === grid.rank[this.selectedAction]) {
          this.move(this.selectedAction, next);
        }
        return;
      }
      this.selectedAction = next;
      const position = next - grid.offsets[grid.rank[next]];
      this.said(`rank ${grid.rank[next]}, position ${position}, ${grid.text[next]}`);
      this.showGrid();
    });
  }

  /** Moves an action to the place of another one of its rank, if that can run. */
  async move(source, target) {
    const { grid } = this.answer;
    const rank = grid.rank[source];
    const first = grid.offsets[rank];
    const number = this.asked;
    try {
      const { text } = await fetchMoved(this.question, rank, source - first, target - first);
      // A later change of the controls takes precedence.
      if (number !== this.asked) return;
      await this.change({ text, groups: 1 });
      if (number + 1 !== this.asked) return;
      this.selectedAction = target;
      this.showGrid();
      this.said(`moved to position ${target - first} of rank ${rank}`);
    } catch (error) {
      if (number !== this.asked) return;
      this.showGrid();
      this.fail(error);
      // The schedule itself is as it was.
      for (const svg of this.element.querySelectorAll("svg")) svg.classList.remove("stale");
    }
  }
}

/** A number, or text that Python refuses in its own words. */
function numberOf(text) {
  const number = Number(text);
  return text.trim() !== "" && Number.isFinite(number) ? number : text;
}

/** One number, or a list of them. */
function timesOf(text) {
  const parts = text.split(/[\s,]+/).filter(Boolean).map(numberOf);
  return parts.length === 1 ? parts[0] : parts;
}
