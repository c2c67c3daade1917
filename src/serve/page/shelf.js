// The list of takes: play, download, use again, delete.

import { wav } from "./api.js";
import * as store from "./store.js";
import { draw } from "./wave.js";

const $ = (id) => document.getElementById(id);

export class Shelf {
  #acts;
  #rows = new Map();
  #current = null;

  /** `play(take)` and `reuse(take)` are what the buttons of a take do. */
  constructor(acts) {
    this.#acts = acts;
    $("clear").addEventListener("click", () => this.clear());
  }

  /** Shows what earlier visits left. */
  async load() {
    for (const take of await store.all()) this.#show(take);
  }

  async add(take, samples) {
    const id = await store.add(take, samples);
    this.#show({ ...take, id });
    this.current = id;
  }

  async clear() {
    if (!confirm("Delete all takes of this browser?")) return;
    await store.clear();
    $("takes").replaceChildren();
    this.#rows.clear();
    this.#count();
  }

  /** Id of the take on the stage. */
  get current() {
    return this.#current;
  }

  set current(id) {
    this.#rows.get(this.#current)?.row.classList.remove("current");
    this.#current = id;
    this.#rows.get(id)?.row.classList.add("current");
  }

  /** Whether the take on the stage is heard. */
  set sounding(sounding) {
    for (const [id, { row }] of this.#rows) {
      const button = row.querySelector(".round");
      const playing = sounding && id === this.#current;
      if (button.classList.toggle("playing", playing) !== (button.ariaPressed === "true")) button.ariaPressed = String(playing);
    }
  }

  /** Draws the pictures anew, in the colours of now. */
  redraw() {
    for (const { canvas, take } of this.#rows.values()) draw(canvas, take.peaks);
  }

  #count() {
    $("no-takes").hidden = this.#rows.size > 0;
    $("clear").hidden = this.#rows.size < 2;
  }

  #show(take) {
    const row = $("take").content.firstElementChild.cloneNode(true);
    const part = (name) => row.querySelector(name);
    part(".said").textContent = take.settings.input;
    part(".said").title = take.settings.input;
    part(".how").textContent = manner(take);
    part(".round").setAttribute("aria-label", `Play: ${take.settings.input.slice(0, 60)}`);
    part(".round").addEventListener("click", () => this.#acts.play(take));
    part(".download").addEventListener("click", () => download(take));
    part(".reuse").addEventListener("click", () => this.#acts.reuse(take));
    part(".delete").addEventListener("click", () => this.#remove(take.id));
    this.#rows.set(take.id, { row, take, canvas: part("canvas") });
    $("takes").prepend(row);
    draw(part("canvas"), take.peaks);
    this.#count();
  }

  async #remove(id) {
    const { row } = this.#rows.get(id);
    const next = row.nextElementSibling ?? row.previousElementSibling;
    await store.remove(id);
    row.remove();
    this.#rows.delete(id);
    this.#count();
    (next?.querySelector(".delete") ?? $("text")).focus();
  }
}

/** How a take was made, in a line. */
function manner({ settings, seconds, first, speed, cut }) {
  const { voice, tone, accent, pace, instructions, seed, normalize } = settings;
  return [
    voice,
    [tone, accent && `${accent} accent`, pace && `${pace} pace`].filter(Boolean).join(", ") || instructions,
    `seed ${seed}`,
    normalize === false && "as written",
    `${seconds.toFixed(2)} s`,
    `first sound ${Math.round(first)} ms`,
    `${speed.toFixed(1)}×`,
    cut && "stopped",
  ].filter(Boolean).join(" · ");
}

async function download({ id, settings, rate }) {
  const words = settings.input.trim().toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? ["speech"];
  const link = document.createElement("a");
  link.href = URL.createObjectURL(wav(await store.samples(id), rate));
  link.download = `${words.slice(0, 5).join("-")}-${settings.seed}.wav`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
