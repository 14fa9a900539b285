// What all pictures share: SVG text, colours, scales of time.

export const LEFT = 58;
export const RIGHT = 56;
export const FONT = 'font-family="system-ui, sans-serif"';

export function escaped(text) {
  return String(text).replace(
    /[&<>"]/g,
    (each) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[each],
  );
}

export function svgText(x, y, text, more = "") {
  return `<text x="${x}" y="${y}" ${FONT} ${more}>${escaped(text)}</text>`;
}

/** The colour of a kind, with white for the later stages of a rank. */
export function mixed(color, place) {
  const white = place * 0.5;
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  const lighter = parts.map((part) => Math.round(part + (255 - part) * white));
  return "#" + lighter.map((part) => part.toString(16).padStart(2, "0")).join("");
}

/** A path of a rectangle; many of them make one element, which is drawn faster. */
export function box(x, y, width, height) {
  return `M${x.toFixed(2)} ${y.toFixed(1)}h${width.toFixed(2)}v${height}h${(-width).toFixed(2)}z`;
}

/** The factor from seconds to a unit that suits a scale, and the unit. */
export function timeUnit(seconds) {
  if (seconds < 1e-3) return [1e6, "µs"];
  return seconds < 1 ? [1e3, "ms"] : [1, "s"];
}

/** A time in words, with three digits. */
export function inWords(seconds) {
  const [factor, unit] = timeUnit(seconds);
  return `${Number((seconds * factor).toPrecision(3))} ${unit}`;
}

/** Round numbers from 0 to a span, at most about ten. */
export function ticks(span) {
  if (!(span > 0)) return [0];
  const power = 10 ** Math.floor(Math.log10(span / 8));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => span / each <= 10);
  return Array.from({ length: Math.floor(span / step + 1e-9) + 1 }, (_, i) => i * step);
}

/** An axis of time below a picture. */
export function timeAxis(span, width, top, bottom) {
  const [factor, unit] = timeUnit(span);
  const scale = (width - LEFT - RIGHT) / (span || 1);
  const parts = ticks(span).map((tick) => {
    const x = LEFT + tick * scale;
    const label = Number((tick * factor).toPrecision(6));
    return (
      `<path d="M${x} ${top}V${bottom}" stroke="#e4e4e4"/>` +
      svgText(x, bottom + 13, label, 'font-size="11" text-anchor="middle" fill="#555"')
    );
  });
  parts.push(svgText(width - 4, bottom + 13, unit, 'font-size="11" text-anchor="end" fill="#555"'));
  return parts.join("");
}

/** Sets the size and the content of a picture. */
export function fill(svg, width, height, content, label) {
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("width", width);
  svg.setAttribute("height", height);
  svg.setAttribute("aria-label", label);
  svg.innerHTML = content;
}

/** The place of a pointer in the units of a picture. */
export function placeIn(svg, event) {
  const area = svg.getBoundingClientRect();
  const view = svg.viewBox.baseVal;
  return [
    ((event.clientX - area.left) / area.width) * view.width,
    ((event.clientY - area.top) / area.height) * view.height,
  ];
}
