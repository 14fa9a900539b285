// Files and links of what the page shows.

/** Saves text as a file. */
export function saveFile(name, text, type) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** A picture as a file of its own. */
export function svgFile(svg) {
  const copy = svg.cloneNode(true);
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  for (const name of ["tabindex", "class"]) copy.removeAttribute(name);
  return new XMLSerializer().serializeToString(copy) + "\n";
}

/** A name for a file, of letters, digits and a few marks. */
export function fileName(name, ending) {
  return `${name.replace(/[^\w.-]+/g, "_").slice(0, 60) || "schedule"}.${ending}`;
}
