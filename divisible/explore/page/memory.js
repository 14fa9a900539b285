// What each rank holds over time, against a limit.

import { LEFT, RIGHT, escaped, fill, svgText, timeAxis } from "./drawing.js";

const MEMORY_TOP = 6;

/** Draws the memory of each rank. view: {span, width} */
export function drawMemory(svg, answer, view) {
  const { memory } = answer;
  const { span, width } = view;
  const row = answer.ranks > 24 ? 18 : 32;
  const bottom = MEMORY_TOP + answer.ranks * row;
  const scale = (width - LEFT - RIGHT) / (span || 1);
  const most = memory.levels.map((levels) => Math.max(...levels.map((each) => each[1])));
  const highest = Math.max(memory.limit ?? 0, ...most, 1e-12);
  const parts = [`<rect width="${width}" height="${bottom + 20}" fill="#fff"/>`];
  parts.push(timeAxis(span, width, MEMORY_TOP, bottom));
  memory.levels.forEach((levels, rank) => {
    const foot = MEMORY_TOP + (rank + 1) * row - 2;
    const high = (held) => (foot - (held / highest) * (row - 5)).toFixed(2);
    const isOver = memory.over.includes(rank);
    let line = `M${LEFT} ${foot}`;
    for (const [second, held] of levels) {
      line += `H${(LEFT + second * scale).toFixed(2)}V${high(held)}`;
    }
    line += `H${(LEFT + answer.seconds * scale).toFixed(2)}V${foot}Z`;
    const color = isOver ? "#882255" : "#4477aa";
    parts.push(`<path d="${line}" fill="${color}" fill-opacity="0.35" stroke="${color}" stroke-width="1"/>`);
    if (memory.limit !== null) {
      parts.push(`<path d="M${LEFT} ${high(memory.limit)}H${width - RIGHT}" stroke="#882255" stroke-dasharray="5 3"/>`);
    }
    parts.push(svgText(LEFT - 6, foot - row / 2 + 7, `rank ${rank}`, 'font-size="12" text-anchor="end" fill="#222"'));
    parts.push(svgText(width - RIGHT + 4, foot - row / 2 + 7, memory.peaks[rank], 'font-size="10" fill="#555"'));
  });
  const label = `Held by each rank at its peak, ${memory.unit}: ${memory.peaks.join(", ")}.`;
  fill(svg, width, bottom + 20, `<title>${escaped(label)}</title>` + parts.join(""), label);
}
