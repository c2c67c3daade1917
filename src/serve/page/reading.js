// The view of what the text front end makes of the text: its pieces, and every rewrite with its rule.

const element = (name, text, attributes = {}) => {
  const made = document.createElement(name);
  made.textContent = text;
  Object.assign(made, attributes);
  return made;
};

/** What a rule did, in words that stand alone when it dropped something or changed what cannot be seen. */
function change({ from, to }) {
  const shown = document.createElement("dd");
  shown.dir = "auto";
  shown.append(element("del", visible(from)), " → ", to.trim() ? element("ins", visible(to)) : element("span", "nothing", { className: "about" }));
  return shown;
}

/** White space and invisible characters by their code points. */
const visible = (text) => text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (c) => `U+${c.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`);

/** Shows an answer of `POST /v1/text`. */
export function show(panel, { chunks }) {
  if (!chunks.length) {
    panel.replaceChildren(element("p", "Nothing to say yet.", { className: "about" }));
    return;
  }
  const list = document.createElement("ol");
  for (const [index, chunk] of chunks.entries()) {
    const item = document.createElement("li");
    const place = chunks.length > 1 ? `Piece ${index + 1} of ${chunks.length}, ` : "";
    item.append(element("p", `${place}about ${chunk.seconds.toFixed(1)} s`, { className: "about" }));
    item.append(element("p", chunk.text, { dir: "auto" }));
    if (chunk.rewrites.length) {
      const rewrites = document.createElement("dl");
      for (const rewrite of chunk.rewrites) rewrites.append(element("dt", rewrite.rule), change(rewrite));
      item.append(rewrites);
    }
    list.append(item);
  }
  panel.replaceChildren(list);
  if (!chunks.some((chunk) => chunk.rewrites.length)) {
    panel.append(element("p", "It is read as it is written.", { className: "about" }));
  }
}
