// What the page shows, and the link that keeps it.

/** Reads the state from the fragment of the address; without one, it is the default. */
export function readState(fragment, start) {
  const state = {
    a: { ...start.question },
    b: null,
    show: { messages: true, critical: true, measured: true },
  };
  if (fragment.length < 2) return state;
  let kept;
  try {
    kept = JSON.parse(decodeURIComponent(fragment.slice(1)));
  } catch {
    return state;
  }
  if (kept === null || typeof kept !== "object") return state;
  if (kept.a) state.a = { ...start.defaults, ...kept.a };
  if (kept.b) state.b = { ...start.defaults, ...kept.b };
  Object.assign(state.show, kept.show);
  return state;
}

/** Writes the state as a fragment: what differs from the defaults. */
export function writeState(state, start) {
  const kept = { a: differing(state.a, start.defaults) };
  if (state.b) kept.b = differing(state.b, start.defaults);
  const hidden = Object.entries(state.show).filter(([, isShown]) => !isShown);
  if (hidden.length) kept.show = Object.fromEntries(hidden);
  return "#" + encodeURIComponent(JSON.stringify(kept));
}

function differing(question, defaults) {
  const differs = ([name, value]) =>
    JSON.stringify(value) !== JSON.stringify(defaults[name]);
  return Object.fromEntries(Object.entries(question).filter(differs));
}
