"use strict";
// Spectrograms in the colours of the page, and one player at a time. Without it the browser's own players remain.
const colour = (name) => {
  const probe = document.createElement("i");
  probe.style.color = `var(${name})`;
  document.body.append(probe);
  const parts = getComputedStyle(probe).color.match(/[\d.]+/g).slice(0, 3).map(Number);
  probe.remove();
  return parts;
};
const OUTLINE = 40, GAP = 4; // rows of the picture: the waveform's outline, and what parts it from the spectrogram
const paint = () => {
  const stops = ["--panel", "--accent-soft", "--accent", "--ink"].map(colour);
  const mix = (level) => {
    const at = (level / 255) * (stops.length - 1), from = Math.min(Math.floor(at), stops.length - 2);
    return stops[from].map((value, i) => value + (stops[from + 1][i] - value) * (at - from));
  };
  for (const canvas of document.querySelectorAll("canvas")) {
    const bands = Number(canvas.dataset.bands), above = OUTLINE + GAP;
    canvas.height = above + bands;
    const { width, height } = canvas, levels = atob(canvas.dataset.levels), outline = atob(canvas.dataset.outline);
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    const dot = (x, y, rgb) => image.data.set([...rgb, 255], 4 * (y * width + x));
    for (let x = 0; x < width; x++) {
      const reach = Math.max((outline.charCodeAt(x) / 255) * (OUTLINE / 2), 0.5);
      for (let y = 0; y < above; y++) dot(x, y, Math.abs(y + 0.5 - OUTLINE / 2) <= reach ? stops[2] : stops[0]);
      for (let y = 0; y < bands; y++) dot(x, height - 1 - y, mix(levels.charCodeAt(x * bands + y)));
    }
    context.putImageData(image, 0, 0);
  }
};
const audios = [...document.querySelectorAll("audio")];
for (const audio of audios) {
  const take = audio.closest(".take"), picture = take.querySelector(".picture"), canvas = picture.querySelector("canvas");
  const button = document.createElement("button");
  const who = take.querySelector("b").textContent, text = take.closest("article").querySelector("h3").textContent;
  const show = () => {
    button.textContent = audio.paused ? "Play" : "Pause";
    button.setAttribute("aria-label", `${button.textContent} ${who}: ${text}`);
  };
  audio.controls = false;
  audio.after(button);
  show();
  button.onclick = () => (audio.paused ? audio.play() : audio.pause());
  const move = () => {
    if (canvas) picture.querySelector(".head").style.left = `${(canvas.clientWidth * audio.currentTime) / Number(canvas.dataset.seconds)}px`;
    if (!audio.paused) requestAnimationFrame(move);
  };
  audio.onplay = () => {
    audios.filter((other) => other !== audio).forEach((other) => other.pause());
    picture.classList.add("live");
    show();
    move();
  };
  audio.onpause = show;
  picture.onclick = (event) => {
    if (!canvas) return;
    const box = canvas.getBoundingClientRect();
    audio.currentTime = Math.min(((event.clientX - box.left) / box.width) * Number(canvas.dataset.seconds), audio.duration || 0);
    audio.play();
  };
}
paint();
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
