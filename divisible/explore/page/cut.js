// The cuts of a model's layers into stages: dragged, or moved by keys.

import { box } from "./drawing.js";

const STAGE_COLORS = ["#4477aa", "#ccbb44", "#66aa55", "#ee99aa"];
const LEAST = 0.004;

/** Draws layers as wide as they are long, and a handle at each cut.
 * whenMoved: called with the new cuts; null for cuts that stay. */
export function drawCut(area, layers, cuts, whenMoved) {
  const total = layers.seconds.reduce((sum, each) => sum + each, 0) || 1;
  const widths = layers.seconds.map((each) => Math.max(each / total, LEAST));
  const whole = widths.reduce((sum, each) => sum + each, 0);
  const edges = [0];
  for (const width of widths) edges.push(edges.at(-1) + width / whole);
  const focused = [...area.querySelectorAll("button")].indexOf(document.activeElement);
  const parts = [];
  for (let stage = 0; stage + 1 < cuts.length; stage++) {
    for (let i = cuts[stage]; i < cuts[stage + 1]; i++) {
      const [x, width] = [1000 * edges[i], 1000 * (edges[i + 1] - edges[i])];
      parts.push(`<path d="${box(x, 4, width, 40)}" fill="${STAGE_COLORS[stage % 4]}" fill-opacity="0.7" stroke="#fff"><title></title></path>`);
    }
  }
  area.innerHTML = `<svg viewBox="0 0 1000 48" preserveAspectRatio="none" aria-hidden="true">${parts.join("")}</svg>`;
  area.querySelectorAll("title").forEach((title, i) => {
    title.textContent = `layer ${i}: ${layers.names[i]}`;
  });
  cuts.slice(1, -1).forEach((cut, i) => {
    const handle = document.createElement("button");
    handle.type = "button";
    handle.disabled = whenMoved === null;
    handle.setAttribute("role", "slider");
    handle.setAttribute("aria-label", `cut before stage ${i + 1}`);
    handle.setAttribute("aria-valuemin", cuts[i] + 1);
    handle.setAttribute("aria-valuemax", cuts[i + 2] - 1);
    handle.setAttribute("aria-valuenow", cut);
    handle.setAttribute("aria-valuetext", `before layer ${cut}, ${layers.names[cut]}`);
    handle.title = handle.getAttribute("aria-valuetext");
    handle.style.left = `${100 * edges[cut]}%`;
    const moveTo = (position) => {
      const within = Math.min(Math.max(position, cuts[i] + 1), cuts[i + 2] - 1);
      if (within !== cut) whenMoved(cuts.with(i + 1, within));
    };
    handle.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (step) {
        event.preventDefault();
        moveTo(cut + step);
      }
    });
    // A handle is wider than a thin layer: it moves by as much as the pointer does.
    let grabbed = null;
    const shareOf = (event) => edges[cut] + shareAt(area, event) - grabbed;
    const release = () => {
      grabbed = null;
      handle.style.left = `${100 * edges[cut]}%`;
    };
    handle.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      handle.setPointerCapture(event.pointerId);
      grabbed = shareAt(area, event);
    });
    handle.addEventListener("pointermove", (event) => {
      if (grabbed === null) return;
      handle.style.left = `${100 * Math.min(Math.max(shareOf(event), 0), 1)}%`;
    });
    handle.addEventListener("pointercancel", release);
    handle.addEventListener("pointerup", (event) => {
      if (grabbed === null) return;
      const share = shareOf(event);
      release();
      const distances = edges.map((edge) => Math.abs(edge - share));
      moveTo(distances.indexOf(Math.min(...distances)));
    });
    area.append(handle);
  });
  if (focused >= 0) area.querySelectorAll("button")[focused]?.focus();
}

function shareAt(area, event) {
  const place = area.getBoundingClientRect();
  return (event.clientX - place.left) / place.width;
}
