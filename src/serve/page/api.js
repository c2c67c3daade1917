// The server's API: requests out, sound in.

import { recall, remember } from "./store.js";

/** A refusal, as the server words it. */
export class Refusal extends Error {
  constructor(status, message, param, retryAfter) {
    super(message);
    this.status = status;
    this.param = param;
    this.retryAfter = retryAfter;
  }
}

let key = recall("sessionStorage", "key") ?? "";

/** Sets the API key, for this tab only. */
export function useKey(text) {
  key = text.trim();
  remember("sessionStorage", "key", key);
}

async function request(path, body, signal) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body), signal });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refusal(0, "The server does not answer. Is it still running?");
  }
  if (!response.ok) throw await refusal(response);
  return response;
}

async function refusal(response) {
  const text = await response.text().catch(() => "");
  const wait = Number.parseInt(response.headers.get("retry-after") ?? "", 10);
  try {
    const { error } = JSON.parse(text);
    return new Refusal(response.status, error.message, error.param, wait);
  } catch {
    return new Refusal(response.status, `The server answered ${response.status} ${response.statusText}`.trim(), null, wait);
  }
}

/** State of the server: model, device, verified or not. */
export const health = async () => (await request("health")).json();

/** Names of the voices, the default one first, and the words for tone, accent and pace. */
export const voices = async () => (await request("v1/voices")).json();

/** What would be said of a text: chunks with their rewrites. */
export const read = async (body, signal) => (await request("v1/text", body, signal)).json();

/** Speaks. Yields samples as they arrive, as Int16Array, whatever pieces the network cuts the bytes into. */
export async function* speak(body, signal) {
  const response = await request("v1/audio/speech", { ...body, response_format: "pcm", stream_format: "audio" }, signal);
  const reader = response.body.getReader();
  let odd = new Uint8Array(0); // half a sample
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const bytes = new Uint8Array(odd.length + value.length);
    bytes.set(odd);
    bytes.set(value, odd.length);
    const whole = bytes.length & ~1;
    odd = bytes.slice(whole);
    if (whole > 0) yield samples(bytes.subarray(0, whole));
  }
}

/** Little-endian bytes, whatever the machine's own order is. */
function samples(bytes) {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  return Int16Array.from({ length: bytes.length / 2 }, (_, i) => view.getInt16(2 * i, true));
}

/** A WAV file of mono 16-bit samples: byte for byte what the server makes of `response_format: "wav"`. */
export function wav(samples, rate) {
  const view = new DataView(new ArrayBuffer(44 + 2 * samples.length));
  const text = (at, word) => [...word].forEach((c, i) => view.setUint8(at + i, c.charCodeAt(0)));
  text(0, "RIFF");
  view.setUint32(4, 36 + 2 * samples.length, true);
  text(8, "WAVEfmt ");
  view.setUint32(16, 16, true);
  view.setUint16(20, 1, true); // integer PCM
  view.setUint16(22, 1, true); // channels
  view.setUint32(24, rate, true);
  view.setUint32(28, 2 * rate, true);
  view.setUint16(32, 2, true);
  view.setUint16(34, 16, true);
  text(36, "data");
  view.setUint32(40, 2 * samples.length, true);
  samples.forEach((sample, i) => view.setInt16(44 + 2 * i, sample, true));
  return new Blob([view.buffer], { type: "audio/wav" });
}
