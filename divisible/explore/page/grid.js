// The order of each rank as a grid, in which actions are dragged.

import { FONT, box, escaped, fill, placeIn, svgText } from "./drawing.js";

const LABEL = 58;
const HEAD = 16;
const ROW = 24;
const MOST_CELL_TEXTS = 1600;

function cellWidth(grid) {
  const longest = Math.max(3, ...grid.text.map((each) => each.length));
  return grid.text.length > MOST_CELL_TEXTS ? 12 : 7 * longest + 8;
}

/** Draws a grid. view: {colors, selected, target} with numbers of actions. */
export function drawGrid(svg, answer, view) {
  const { grid } = answer;
  const cell = cellWidth(grid);
  const n = Math.max(0, ...grid.step) + 1;
  const width = LABEL + n * cell + 4;
  const height = HEAD + answer.ranks * ROW + 2;
  const parts = [`<rect width="${width}" height="${height}" fill="#fff"/>`];
  const every = cell < 20 ? 10 : 1;
  for (let step = 0; step < n; step += every) {
    const x = LABEL + step * cell + cell / 2;
    parts.push(svgText(x, 11, step, 'font-size="10" text-anchor="middle" fill="#777"'));
  }
  for (let rank = 0; rank < answer.ranks; rank++) {
    const y = HEAD + rank * ROW;
    parts.push(svgText(LABEL - 6, y + 16, `rank ${rank}`, 'font-size="12" text-anchor="end" fill="#222"'));
    parts.push(`<path d="M${LABEL} ${y + ROW - 1}H${width}" stroke="#eee"/>`);
  }
  const paths = new Map();
  grid.rank.forEach((rank, i) => {
    const color = view.colors[grid.kind[i]];
    if (!paths.has(color)) paths.set(color, []);
    paths.get(color).push(cellBox(grid, i, cell));
  });
  for (const [color, boxes] of paths) parts.push(`<path d="${boxes.join("")}" fill="${color}"/>`);
  if (grid.text.length <= MOST_CELL_TEXTS) {
    grid.text.forEach((text, i) => {
      const x = LABEL + grid.step[i] * cell + cell / 2;
      const y = HEAD + grid.rank[i] * ROW + 15;
      const isDark = "FB".includes(grid.kind[i]);
      parts.push(`<text x="${x}" y="${y}" ${FONT} font-size="11" text-anchor="middle" fill="${isDark ? "#fff" : "#000"}">${text}</text>`);
    });
  }
  if (view.selected !== null) {
    parts.push(`<path d="${cellBox(grid, view.selected, cell)}" fill="none" stroke="#ee8800" stroke-width="3"/>`);
  }
  if (view.target !== null) {
    // A line where the action would stand.
    const isAfter = view.target > view.selected;
    const x = LABEL + grid.step[view.target] * cell + (isAfter ? cell : 0);
    const y = HEAD + grid.rank[view.target] * ROW;
    parts.push(`<path d="M${x} ${y}v${ROW - 2}" stroke="#ee8800" stroke-width="4"/>`);
  }
  const label = `Order of ${answer.name}: ${answer.microbatches} microbatches, ${answer.stages} stages on ${answer.ranks} ranks.`;
  fill(svg, width, height, `<title>${escaped(label)}</title>` + parts.join(""), label);
}

function cellBox(grid, i, cell) {
  return box(LABEL + grid.step[i] * cell + 0.5, HEAD + grid.rank[i] * ROW + 1, cell - 1, ROW - 3);
}

/** The rank and the number of the action that is nearest to a pointer. */
export function actionAt(svg, event, answer, rank = null) {
  const { grid } = answer;
  const [x, y] = placeIn(svg, event);
  const row = rank === null ? Math.floor((y - HEAD) / ROW) : rank;
  if (row < 0 || row >= answer.ranks) return null;
  const step = (x - LABEL) / cellWidth(grid);
  let best = null;
  let distance = Infinity;
  for (let i = grid.offsets[row]; i < grid.offsets[row + 1]; i++) {
    const far = Math.abs(grid.step[i] + 0.5 - step);
    if (far < distance) [best, distance] = [i, far];
  }
  // While an action is dragged, the nearest one counts, however far.
  return rank === null && distance > 0.5 ? null : best;
}

/** The action for an arrow key: beside it, or at about the same step of another rank. */
export function besideAction(grid, at, key, ranks) {
  if (at === null) return grid.rank.length ? 0 : null;
  const rank = grid.rank[at];
  if (key === "ArrowLeft" || key === "ArrowRight") {
    const next = at + (key === "ArrowLeft" ? -1 : 1);
    return grid.rank[next] === rank ? next : at;
  }
  const wanted = rank + (key === "ArrowUp" ? -1 : 1);
  if (wanted < 0 || wanted >= ranks) return at;
  let best = at;
  let distance = Infinity;
  for (let i = grid.offsets[wanted]; i < grid.offsets[wanted + 1]; i++) {
    const far = Math.abs(grid.step[i] - grid.step[at]);
    if (far < distance) [best, distance] = [i, far];
  }
  return best;
}
