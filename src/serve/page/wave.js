// Waveforms: peaks of a sound, and bars on a canvas.

/** Bars a second that are kept of a sound. */
const PEAKS_PER_SECOND = 50;

const BAR = 3;
const GAP = 2;

/** The loudest sample of each fiftieth of a second, gathered while a sound arrives. */
export class Peaks {
  constructor(rate) {
    this.width = rate / PEAKS_PER_SECOND;
    this.values = [];
    this.seen = 0;
  }

  push(samples) {
    for (const sample of samples) {
      const bar = Math.floor(this.seen / this.width);
      this.values[bar] = Math.max(this.values[bar] ?? 0, Math.abs(sample) / 32768);
      this.seen += 1;
    }
  }

  get seconds() {
    return this.values.length / PEAKS_PER_SECOND;
  }
}

/** `count` bars over `values`, each the loudest of its part; for a picture of fixed width. */
export function shrink(values, count) {
  const part = (i) => Math.floor((i * values.length) / count);
  return Array.from({ length: Math.min(count, values.length) }, (_, i) =>
    Math.max(0, ...values.slice(part(i), Math.max(part(i + 1), part(i) + 1))));
}

/** Loudness that fills the height at least: a quiet sound shall look quiet. */
const FULL = 0.4;

/**
 * Draws bars from the left over `whole` of the width (1: all of it); those before `played` (0 to 1 of the bars) in the
 * accent colour. The loudest bar fills the height.
 */
export function draw(canvas, values, { whole = 1, played = 0 } = {}) {
  const ratio = window.devicePixelRatio || 1;
  const { clientWidth: width, clientHeight: height } = canvas;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const style = getComputedStyle(canvas);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  pen.clearRect(0, 0, width, height);
  const slots = Math.max(1, Math.floor((width + GAP) / (BAR + GAP)));
  const filled = Math.max(1, Math.round(slots * whole));
  const bars = stretch(values, filled);
  const full = Math.max(FULL, ...bars);
  for (let slot = 0; slot < slots; slot += 1) {
    const value = bars[slot] ?? 0;
    const tall = Math.max(BAR, (value / full) ** 0.7 * (height - 2));
    const spoken = slot < bars.length;
    pen.fillStyle = style.getPropertyValue(!spoken ? "--line" : slot < played * bars.length ? "--accent" : "--wave");
    pen.beginPath();
    pen.roundRect(slot * (BAR + GAP), (height - tall) / 2, BAR, tall, BAR / 2);
    pen.fill();
  }
}

/** Exactly `count` bars: fewer values are repeated, more are shrunk. */
function stretch(values, count) {
  if (!values.length) return [];
  if (values.length >= count) return shrink(values, count);
  return Array.from({ length: count }, (_, i) => values[Math.floor((i * values.length) / count)]);
}
