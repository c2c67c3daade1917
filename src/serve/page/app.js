// The page: what the controls say becomes a request, what arrives becomes sound, a picture and a take.

import * as api from "./api.js";
import { Player } from "./player.js";
import { show as showReading } from "./reading.js";
import { Settings } from "./settings.js";
import { Shelf } from "./shelf.js";
import * as store from "./store.js";
import { Peaks, draw } from "./wave.js";

/** Seconds the picture is wide while nobody knows how long the speech will be. */
const WINDOW = 6;
/** Milliseconds between two looks at a server that is still loading its model. */
const LOADING = 1500;
/** Milliseconds without a key before the text is read anew. */
const PAUSE = 250;

const $ = (id) => document.getElementById(id);
const text = $("text");
const player = new Player();
const settings = new Settings();
const shelf = new Shelf({ play: playTake, reuse: (take) => settings.set(take.settings) });

let rate = 24000; // samples a second, until the server says
let peaks = new Peaks(rate);
let speech = null; // the request in flight

// ---- speaking

async function speak() {
  stop();
  clearError();
  const body = settings.body();
  const mine = { body, aborter: new AbortController(), asked: performance.now(), first: null, last: null };
  speech = mine;
  player.unlock(rate);
  player.begin();
  shelf.current = null;
  peaks = new Peaks(rate);
  say("Waiting for the first sound");
  try {
    for await (const samples of api.speak(body, mine.aborter.signal)) {
      if (speech !== mine) return; // stopped, and dealt with
      mine.last = performance.now();
      mine.first ??= mine.last;
      player.push(samples);
      peaks.push(samples);
      showFigures(figures(mine));
    }
    if (speech === mine) end(false);
  } catch (error) {
    if (speech !== mine) return;
    const heard = player.duration;
    end(true);
    showError(heard ? new Error(`The speech broke off after ${heard.toFixed(1)} s. ${error.message}`) : error);
  }
}

/** Stops the request and the sound. What arrived is kept as a take. */
function stop() {
  if (speech) {
    speech.aborter.abort();
    end(true);
  }
  player.stop();
}

/** Ends the speech in flight and keeps what there is of it. */
function end(cut) {
  const { body, ...times } = speech;
  speech = null;
  player.complete();
  const seconds = player.duration;
  say(`${cut ? "Stopped" : "Finished"}, ${seconds.toFixed(1)} seconds`);
  if (!seconds) return;
  const take = { made: Date.now(), settings: body, rate, peaks: peaks.values, cut, ...figures(times) };
  shelf.add(take, player.samples);
}

const figures = ({ asked, first, last }) => ({
  first: first - asked,
  seconds: player.duration,
  speed: (1000 * player.duration) / (last - asked),
});

async function playTake(take) {
  if (shelf.current === take.id) {
    if (player.state === "playing") player.pause();
    else player.play();
    return;
  }
  stop();
  player.unlock(take.rate); // before anything is awaited: it must be part of the click
  const samples = await store.samples(take.id);
  player.begin();
  peaks = new Peaks(take.rate);
  peaks.values = take.peaks;
  shelf.current = take.id;
  player.push(samples);
  player.complete();
  showFigures(take);
}

// ---- what is seen

let shown = "";

function frame() {
  const { position, duration, state } = player;
  const width = speech ? Math.max(WINDOW, duration) : duration;
  const sounding = state === "playing";
  const picture = [position, duration, width, state, Boolean(speech), $("wave").clientWidth].join();
  if (picture !== shown) {
    shown = picture;
    document.body.dataset.state = speech ? "speaking" : state;
    $("speak").textContent = speech ? "Stop" : "Speak";
    $("speak").classList.toggle("stop", Boolean(speech));
    $("play").disabled = state === "empty";
    $("play").classList.toggle("playing", sounding);
    $("play").setAttribute("aria-label", sounding ? "Pause" : "Play");
    shelf.sounding = sounding;
    $("hint").hidden = duration > 0 || Boolean(speech);
    showPlace(position, duration, width);
    draw($("wave"), peaks.values, { whole: width && duration / width, played: duration && position / duration });
  }
  requestAnimationFrame(frame);
}

function showPlace(position, duration, width) {
  const seek = $("seek");
  seek.disabled = duration === 0;
  seek.max = width.toFixed(2);
  seek.value = position.toFixed(2);
  seek.setAttribute("aria-valuetext", `${position.toFixed(1)} of ${duration.toFixed(1)} seconds`);
  $("clock").textContent = clock(position);
}

const clock = (seconds) => `${Math.floor(seconds / 60)}:${(Math.floor((seconds % 60) * 10) / 10).toFixed(1).padStart(4, "0")}`;

function showFigures({ first, seconds, speed }) {
  $("figures").hidden = false;
  $("first").textContent = `${Math.round(first)} ms`;
  $("speed").textContent = `${speed.toFixed(1)}× real time`;
  $("length").textContent = `${seconds.toFixed(2)} s`;
  $("gaps").textContent = player.gaps;
  $("gaps-cell").hidden = player.gaps === 0;
}

function say(words) {
  $("status").textContent = words;
}

function showError(error) {
  const wait = error.retryAfter ? ` Try again in ${error.retryAfter} s.` : "";
  $("error").textContent = `${error.message}${wait}`;
  $("error").hidden = false;
  if (error.status === 401 || error.status === 403) $("key-form").hidden = false;
  settings.blame(error.param);
}

function clearError() {
  $("error").hidden = true;
  settings.blame(null);
}

// ---- how the text is read

let readingWait = 0;
let readingRequest = null;

function readSoon() {
  clearTimeout(readingWait);
  if (!$("reading").hidden) readingWait = setTimeout(readNow, PAUSE);
}

async function readNow() {
  readingRequest?.abort();
  readingRequest = new AbortController();
  try {
    showReading($("reading"), await api.read(settings.reading(), readingRequest.signal));
  } catch (error) {
    if (error.name !== "AbortError") $("reading").textContent = error.message;
  }
}

$("show-reading").addEventListener("click", () => {
  const open = $("reading").hidden;
  $("reading").hidden = !open;
  $("show-reading").setAttribute("aria-expanded", String(open));
  if (open) readNow();
});

// ---- the controls

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (speech) stop();
  else speak();
});
$("composer").addEventListener("input", () => {
  clearError();
  readSoon();
});
$("play").addEventListener("click", () => (player.state === "playing" ? player.pause() : player.play()));
$("seek").addEventListener("input", () => player.seek(Number($("seek").value)));
for (const chip of document.querySelectorAll("[data-insert]")) {
  chip.addEventListener("click", () => insert(chip.dataset.insert));
}
document.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    speak();
  } else if (event.key === "Escape") {
    stop();
  }
});
$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  api.useKey($("key").value);
  $("key-form").hidden = true;
  clearError();
  start();
});

/** Puts a tag where the cursor is, with spaces around it; in a way that undo can take back. */
function insert(tag) {
  const before = text.value.slice(0, text.selectionStart);
  const after = text.value.slice(text.selectionEnd);
  const piece = `${before && !/\s$/.test(before) ? " " : ""}${tag}${/^\s/.test(after) ? "" : " "}`;
  text.focus();
  if (!document.execCommand("insertText", false, piece)) {
    text.setRangeText(piece, text.selectionStart, text.selectionEnd, "end");
    text.dispatchEvent(new Event("input", { bubbles: true }));
  }
}

// ---- the server

async function start() {
  try {
    const [state, choices] = await Promise.all([api.health(), api.voices()]);
    settings.offer(choices);
    rate = choices.sample_rate;
    $("model").textContent = state.model;
    $("backend").textContent = state.backend;
    tell("unverified", !state.verified && `This model is not verified: nothing shows that it speaks like its original. (${state.standing})`);
    tell("about", state.notice);
  } catch (error) {
    const loading = error.status === 503;
    tell("about", loading && "The model is being loaded.");
    if (loading) setTimeout(start, LOADING);
    else showError(error);
  }
}

/** Shows a notice above everything, or takes it away. What stands between backquotes is to be typed. */
function tell(id, words) {
  const pieces = (words || "").split("`").map((piece, i) => {
    const code = document.createElement("code");
    code.textContent = piece;
    return i % 2 ? code : piece;
  });
  $(id).replaceChildren(...pieces);
  $(id).hidden = !words;
}

matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
  shown = ""; // the canvas is drawn in colours of the scheme
  shelf.redraw();
});
shelf.load();
start();
frame();
