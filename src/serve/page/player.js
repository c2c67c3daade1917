// Plays a sound while it arrives. Every piece is scheduled as soon as it is here, so a tab in the background plays on.
// (An AudioWorklet would need a secure origin; a server in the local network has none.)

/** Seconds between the first piece and its sound, and after the stream fell behind. */
const LEAD = 0.06;
const LEAD_AFTER_GAP = 0.4;

export class Player {
  #context;
  #rate;
  #samples = new Int16Array(0);
  #length = 0;
  #complete = false;
  #sources = new Set();
  /** What sounds when: sample `at` sounds at context time `time`; everything up to `until` is scheduled. */
  #anchor = { time: 0, at: 0 };
  #until = 0;
  #stopped = true;
  /** Times the sound ran dry. */
  gaps = 0;

  /** Opens the sound output; must be called from a click or a key, as browsers ask. */
  unlock(rate) {
    if (!this.#context || this.#rate !== rate) {
      this.#context?.close();
      this.#context = new AudioContext({ sampleRate: rate, latencyHint: "interactive" });
      this.#rate = rate;
    }
    this.#context.resume();
  }

  /** Begins an empty sound. */
  begin() {
    this.#silence();
    this.#samples = new Int16Array(2 * this.#rate);
    this.#length = 0;
    this.#anchor = { time: 0, at: 0 };
    this.#until = 0;
    this.#complete = false;
    this.#stopped = false;
    this.gaps = 0;
  }

  /** Appends samples and lets them sound in their turn. */
  push(samples) {
    if (this.#length + samples.length > this.#samples.length) {
      const larger = new Int16Array(2 * (this.#length + samples.length));
      larger.set(this.#samples.subarray(0, this.#length));
      this.#samples = larger;
    }
    this.#samples.set(samples, this.#length);
    this.#length += samples.length;
    if (!this.#stopped) this.#schedule();
  }

  /** Says that nothing more will come. */
  complete() {
    this.#complete = true;
    this.#endIfOver();
  }

  /** Goes on after a pause, or plays from the beginning. */
  play() {
    if (this.#stopped) this.seek(0);
    this.#context?.resume();
  }

  /** Plays from a second on. */
  seek(seconds) {
    if (!this.#length) return;
    this.#silence();
    this.#until = Math.min(Math.floor(seconds * this.#rate), this.#length);
    this.#anchor = { time: 0, at: this.#until };
    this.#stopped = false;
    this.#context.resume();
    this.#schedule();
    this.#endIfOver();
  }

  pause() {
    this.#context?.suspend();
  }

  /** Ends the sound; what arrived can be played again. */
  stop() {
    this.#silence();
    this.#stopped = true;
    this.#context?.suspend(); // an output that runs for nobody costs battery
  }

  get samples() {
    return this.#samples.slice(0, this.#length);
  }

  get duration() {
    return this.#rate ? this.#length / this.#rate : 0;
  }

  /** The second that sounds now. */
  get position() {
    if (this.#stopped) return 0;
    const since = Math.max(0, this.#context.currentTime - this.#anchor.time);
    return Math.min(this.#anchor.at / this.#rate + since, this.#until / this.#rate);
  }

  /** "empty", "playing", "paused" by the visitor or by the browser, or "over". */
  get state() {
    if (!this.#length) return "empty";
    if (this.#stopped) return "over";
    return this.#context.state === "running" ? "playing" : "paused";
  }

  #schedule() {
    if (this.#until >= this.#length) return;
    const now = this.#context.currentTime;
    let start = this.#anchor.time + (this.#until - this.#anchor.at) / this.#rate;
    if (start < now) {
      const ranDry = this.#until > 0 && this.#until !== this.#anchor.at;
      this.gaps += ranDry ? 1 : 0;
      start = now + (ranDry ? LEAD_AFTER_GAP : LEAD);
      this.#anchor = { time: start, at: this.#until };
    }
    const piece = this.#samples.subarray(this.#until, this.#length);
    const buffer = this.#context.createBuffer(1, piece.length, this.#rate);
    buffer.copyToChannel(Float32Array.from(piece, (sample) => sample / 32768), 0);
    const source = this.#context.createBufferSource();
    source.buffer = buffer;
    source.connect(this.#context.destination);
    source.onended = () => {
      if (this.#sources.delete(source)) this.#endIfOver();
    };
    source.start(start);
    this.#sources.add(source);
    this.#until = this.#length;
  }

  #endIfOver() {
    if (this.#complete && !this.#sources.size && !this.#stopped) this.stop();
  }

  #silence() {
    const sources = [...this.#sources];
    this.#sources.clear();
    for (const source of sources) source.stop();
  }
}
