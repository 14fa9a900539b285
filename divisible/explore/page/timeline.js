// The timeline: a row for each rank, messages, the critical path, what was measured.

import { LEFT, RIGHT, box, escaped, fill, inWords, mixed, placeIn, svgText, timeAxis } from "./drawing.js";

const LANE_TOP = 6;
const MOST_BAR_TEXTS = 2500;

function rowHeight(answer, measured) {
  const height = answer.ranks > 24 ? 16 : 28;
  return measured ? 2 * height : height;
}

/** Draws a timeline.
 * view: {span, width, colors, messages, critical, measured, chain, selected} */
export function drawTimeline(svg, answer, view) {
  const row = rowHeight(answer, view.measured);
  const { width, span } = view;
  const scale = (width - LEFT - RIGHT) / (span || 1);
  const bottom = LANE_TOP + answer.ranks * row;
  const parts = [`<rect width="${width}" height="${bottom + 20}" fill="#fff"/>`];
  parts.push(timeAxis(span, width, LANE_TOP, bottom));
  for (let rank = 0; rank < answer.ranks; rank++) {
    const y = LANE_TOP + rank * row + row / 2 + 4;
    const bubble = `${(100 * answer.bubble[rank]).toFixed(1)}%`;
    parts.push(svgText(LEFT - 6, y, `rank ${rank}`, 'font-size="12" text-anchor="end" fill="#222"'));
    parts.push(svgText(width - RIGHT + 6, y, bubble, 'font-size="11" fill="#555"'));
  }
  const half = view.measured ? row / 2 : row;
  const place = { top: LANE_TOP, row, height: half - 5, scale };
  parts.push(barPaths(answer.events, place, view.colors));
  if (view.measured) {
    const lower = { ...place, top: LANE_TOP + half - 2, height: half - 5 };
    parts.push(barPaths(view.measured.events, lower, view.colors, answer.ranks));
    for (let rank = 0; rank < answer.ranks; rank++) {
      const y = LANE_TOP + rank * row + row - 7;
      parts.push(svgText(LEFT - 6, y, "measured", 'font-size="9" text-anchor="end" fill="#555"'));
    }
  }
  if (view.messages) parts.push(messageLines(answer.messages, place));
  if (view.critical) parts.push(pathLine(answer.events, answer.critical, place, "#000000", "4 2"));
  if (view.chain && view.chain.length) {
    parts.push(pathLine(answer.events, view.chain, place, "#ee8800", ""));
  }
  if (view.selected !== null) parts.push(outline(answer.events, view.selected, place));
  const label =
    `Timeline of ${answer.name} on ${answer.ranks} ranks: ${inWords(answer.seconds)},` +
    ` bubble ${answer.bubble.map((each) => `${(100 * each).toFixed(0)}%`).join(", ")}.`;
  fill(svg, width, bottom + 20, `<title>${escaped(label)}</title>` + parts.join(""), label);
}

function barPaths(events, place, colors, ranks = Infinity) {
  const paths = new Map();
  const lines = [];
  const texts = [];
  const { top, row, height, scale } = place;
  for (let i = 0; i < events.rank.length; i++) {
    if (events.rank[i] >= ranks) continue;
    const kind = events.kind[i];
    const x = LEFT + events.start[i] * scale;
    const width = (events.end[i] - events.start[i]) * scale;
    const isThin = kind === "wait" || kind === "send" || kind === "receive";
    const y = top + events.rank[i] * row + 2 + (isThin ? height / 4 : 0);
    const color = mixed(colors[kind], isThin ? 0 : events.place[i]);
    if (!paths.has(color)) paths.set(color, []);
    paths.get(color).push(box(x, y, width, isThin ? height / 2 : height));
    if (width >= 4) lines.push(`M${x.toFixed(2)} ${y}v${isThin ? height / 2 : height}`);
    const text = shortText(events.text[i], width);
    if (text && !isThin && texts.length < MOST_BAR_TEXTS) {
      texts.push(
        svgText(
          (x + width / 2).toFixed(1),
          (y + height / 2 + 4).toFixed(1),
          text,
          'font-size="10" text-anchor="middle" fill="#000"',
        ),
      );
    }
  }
  const drawn = [...paths].map(([color, boxes]) => `<path d="${boxes.join("")}" fill="${color}"/>`);
  drawn.push(`<path d="${lines.join("")}" stroke="#000" stroke-opacity="0.45" stroke-width="0.6"/>`);
  return drawn.join("") + texts.join("");
}

/** The text that a bar has room for: all, or the microbatch alone. */
function shortText(text, width) {
  if (width >= 6.5 * text.length + 2) return text;
  const found = /^\d+[FBIWR](\d+)/.exec(text);
  return found && width >= 6.5 * found[1].length + 2 ? found[1] : "";
}

function messageLines(messages, { top, row, height, scale }) {
  const lines = messages.from.map((from, i) => {
    const x0 = (LEFT + messages.sent[i] * scale).toFixed(2);
    const x1 = (LEFT + messages.arrives[i] * scale).toFixed(2);
    const isDown = messages.to[i] > from;
    const y0 = top + from * row + 2 + (isDown ? height : 0);
    const y1 = top + messages.to[i] * row + 2 + (isDown ? 0 : height);
    return `M${x0} ${y0}L${x1} ${y1}`;
  });
  return `<path class="messages" d="${lines.join("")}" fill="none" stroke="#882255" stroke-width="0.9" stroke-opacity="0.75"/>`;
}

function pathLine(events, chain, place, color, dashes) {
  const boxes = chain.map((i) => eventBox(events, i, place)).join("");
  return `<path d="${boxes}" fill="none" stroke="${color}" stroke-width="2" stroke-dasharray="${dashes}"/>`;
}

function outline(events, i, place) {
  return `<path d="${eventBox(events, i, place)}" fill="none" stroke="#ee8800" stroke-width="3"/>`;
}

function eventBox(events, i, { top, row, height, scale }) {
  const x = LEFT + events.start[i] * scale;
  const width = (events.end[i] - events.start[i]) * scale;
  return box(x, top + events.rank[i] * row + 2, Math.max(width, 1), height);
}

/** The rank and the second under a pointer; null outside. */
export function momentAt(svg, event, answer, view) {
  const [x, y] = placeIn(svg, event);
  const rank = Math.floor((y - LANE_TOP) / rowHeight(answer, view.measured));
  const scale = (view.width - LEFT - RIGHT) / (view.span || 1);
  const seconds = (x - LEFT) / scale;
  if (rank < 0 || rank >= answer.ranks || seconds < 0) return null;
  return { rank, seconds };
}

/** The next event for an arrow key: in the rank, or at about the same time in another. */
export function neighbour(events, at, key, ranks) {
  if (at === null) return events.rank.length ? 0 : null;
  const rank = events.rank[at];
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next = at + (key === "ArrowLeft" ? -1 : 1);
    return events.rank[next] === rank ? next : at;
  }
  const wanted = rank + (key === "ArrowUp" ? -1 : 1);
  if (wanted < 0 || wanted >= ranks) return at;
  let best = at;
  let distance = Infinity;
  events.rank.forEach((each, i) => {
    const far = Math.abs(events.start[i] - events.start[at]);
    if (each === wanted && far < distance) [best, distance] = [i, far];
  });
  return best;
}
