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
const paint = () => {
  const stops = ["--panel", "--accent-soft", "--accent", "--ink"].map(colour);
  const mix = (level) => {
    const at = (level / 255) * (stops.length - 1), from = Math.min(Math.floor(at), stops.length - 2);
    return stops[from].map((value, i) => value + (stops[from + 1][i] - value) * (at - from));
  };
  for (const canvas of document.querySelectorAll("canvas")) {
    const { width, height } = canvas, levels = atob(canvas.dataset.levels);
    const context = canvas.getContext("2d"), image = context.createImageData(width, height);
    for (let x = 0; x < width; x++) {
      for (let y = 0; y < height; y++) {
        const place = 4 * ((height - 1 - y) * width + x);
        image.data.set([...mix(levels.charCodeAt(x * height + y)), 255], place);
      }
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
