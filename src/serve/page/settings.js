// The controls on one side, the fields of a request on the other.

import { recall, remember } from "./store.js";

const $ = (id) => document.getElementById(id);
const KEPT = "settings";

/** Largest seed that a field of this page draws; any number the server takes may be typed. */
const SEEDS = 1e6;

/** Which control to blame for which field. */
const CONTROLS = { input: "text", tone: "tone", accent: "accent", pace: "pace", instructions: "instructions",
  description: "instructions", seed: "seed" };

const chosen = (name) => document.querySelector(`[name="${name}"]:checked`)?.value;
const title = (words) => words.replace(/(^|\s)\p{L}/gu, (c) => c.toUpperCase());

export class Settings {
  constructor() {
    for (const manner of document.querySelectorAll('[name="manner"]')) manner.addEventListener("change", showManner);
    $("composer").addEventListener("input", () => remember("localStorage", KEPT, this.body({ draw: false })));
  }

  /** Fills the lists with what the server accepts, and sets what was set last time. */
  offer({ data, tones, accents, paces }) {
    const options = data.map(({ name: voice }, index) => {
      const label = document.createElement("label");
      const radio = Object.assign(document.createElement("input"), { type: "radio", name: "voice", value: voice, checked: index === 0 });
      label.append(radio, Object.assign(document.createElement("span"), { textContent: voice }));
      return label;
    });
    $("voice-options").replaceChildren(...options);
    for (const [id, words] of [["tone", tones], ["accent", accents], ["pace", paces]]) {
      $(id).replaceChildren(new Option("Any", ""), ...words.map((word) => new Option(title(word), word)));
    }
    const kept = recall("localStorage", KEPT);
    if (kept) this.set(kept);
  }

  /** The body of a request to speak. A seed is drawn when none is given, so that every take can be made again. */
  body({ draw = true } = {}) {
    const seed = $("seed").value.trim() || (draw ? String(Math.floor(Math.random() * SEEDS)) : "");
    const described = chosen("manner") === "describe";
    const fields = {
      input: $("text").value,
      voice: chosen("voice"),
      tone: described ? "" : $("tone").value,
      accent: described ? "" : $("accent").value,
      pace: described ? "" : $("pace").value,
      instructions: described ? $("instructions").value.trim() : "",
      // What is not a number goes as it is: the server says what is wrong with it.
      seed: /^\d+$/.test(seed) ? Number(seed) : seed,
      normalize: $("normalize").checked ? "" : false,
    };
    return Object.fromEntries(Object.entries(fields).filter(([name, value]) => name === "input" || (value !== "" && value !== undefined)));
  }

  /** The body of a request to read. */
  reading() {
    const { input, pace, normalize } = this.body();
    return { input, ...(pace && { pace }), ...(normalize === false && { normalize }) };
  }

  /** Sets the controls as a request has them. */
  set(body) {
    $("text").value = body.input ?? "";
    const voice = document.querySelector(`[name="voice"][value="${CSS.escape(body.voice ?? "")}"]`);
    if (voice) voice.checked = true;
    for (const id of ["tone", "accent", "pace", "instructions", "seed"]) $(id).value = body[id] ?? "";
    const manner = body.instructions ? "describe" : "pick";
    document.querySelector(`[name="manner"][value="${manner}"]`).checked = true;
    $("normalize").checked = body.normalize !== false;
    showManner();
  }

  /** Marks the control of a field that was refused; none for `null`. */
  blame(param) {
    for (const marked of document.querySelectorAll("[aria-invalid]")) marked.removeAttribute("aria-invalid");
    const control = $(CONTROLS[param]);
    control?.setAttribute("aria-invalid", "true");
    control?.focus();
  }
}

function showManner() {
  $("pick").hidden = chosen("manner") === "describe";
  $("describe").hidden = !$("pick").hidden;
}
