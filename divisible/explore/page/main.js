// The page: one schedule or two, on one scale of time, and the link that keeps them.

import { Panel } from "./panel.js";
import { fetchStart, isStored } from "./service.js";
import { readState, writeState } from "./state.js";

const main = document.querySelector("main");
const tools = document.querySelector(".tools");
const said = document.querySelector(".said");
const boxes = Object.fromEntries(
  [...tools.querySelectorAll("input")].map((each) => [each.name, each]),
);

const start = await fetchStart();
let state = readState(location.hash, start);
let panels = [];

document.body.classList.toggle("stored", isStored);
document.body.classList.toggle("with-layers", start.layers !== null);
document.body.classList.toggle("with-measured", start.measured !== null);
showLegend();
const note = document.querySelector(".note");
note.textContent = start.note;
note.hidden = !start.note;
build();

function say(words) {
  said.textContent = words;
}

/** Makes a panel for each schedule of the state. */
function build() {
  for (const name of ["messages", "critical", "measured"]) boxes[name].checked = state.show[name];
  boxes.compare.checked = state.b !== null;
  main.classList.toggle("two", state.b !== null);
  const questions = [state.a, state.b].filter((each) => each !== null);
  panels = questions.map(
    (question) => new Panel(start, question, { changed: keep, drawn: draw, said: say }),
  );
  main.replaceChildren(...panels.map((panel) => panel.element));
  return Promise.all(panels.map((panel) => panel.ask()));
}

/** Keeps the state in the address. */
function keep() {
  state.a = panels[0].question;
  state.b = panels.length > 1 ? panels[1].question : null;
  history.replaceState(null, "", writeState(state, start));
}

/** Draws all panels on one scale of time. */
function draw() {
  const began = performance.now();
  const span = Math.max(...panels.map((panel) => panel.seconds(state.show)));
  for (const panel of panels) panel.draw(span, state.show);
  document.body.dataset.drawn = (performance.now() - began).toFixed(1);
}

function showLegend() {
  const shown = ["F", "B", "I", "W", "R", "update", "other"];
  if (start.measured) shown.push("send", "receive", "wait");
  document.querySelector(".legend").innerHTML = shown
    .map((kind) => `<li><svg viewBox="0 0 10 10" aria-hidden="true"><path d="M0 0h10v10h-10z" fill="${start.colors[kind]}"/></svg>${start.labels[kind]}</li>`)
    .join("");
}

tools.addEventListener("change", (event) => {
  const { name, checked } = event.target;
  if (name === "compare") {
    state.a = panels[0].question;
    state.b = checked ? { ...panels[0].question } : null;
    build().then(keep);
  } else {
    state.show[name] = checked;
    keep();
    draw();
  }
});

tools.querySelector("button[name=link]").addEventListener("click", async () => {
  keep();
  try {
    await navigator.clipboard.writeText(location.href);
    say("the link is copied");
  } catch {
    // Without a clipboard, the address of the page is the link.
    say("the address of the page is the link");
  }
});

window.addEventListener("hashchange", () => {
  state = readState(location.hash, start);
  build();
});

let width = window.innerWidth;
window.addEventListener("resize", () => {
  if (window.innerWidth !== width) {
    width = window.innerWidth;
    draw();
  }
});
