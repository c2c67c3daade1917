#!/usr/bin/env python3
"""Two real replicas behind a real HAProxy or nginx with the configuration of deploy/: what do clients see when one dies?

    tests/replicas/run.py [--proxy haproxy|nginx] [--server target/release/rumik-run] [--clients 6] [--seconds 6]

Clients ask without a pause and compare every answer, sample for sample, with what one replica alone says for the same seed. While
they do, one replica is killed with SIGKILL, started anew, and the other told to drain with SIGTERM. Needs only Python's own library
and the proxy (Debian: haproxy, nginx-light). Exit 0 if what must hold held, 1 if not.
"""

import argparse
import collections
import hashlib
import http.client
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
TEXTS = ["Good morning, and welcome to the show.", "The weather is very good today.", "My sister opened the window. Please close the door."]
SEEDS = 4
SLOTS = 2
READY_S = 60
DRAIN_S = 20


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Replica:
    def __init__(self, program, port):
        self.program, self.port, self.process = program, port, None

    def start(self):
        arguments = ["serve", "--bind", f"127.0.0.1:{self.port}", "--slots", str(SLOTS), "--drain-timeout", str(DRAIN_S)]
        self.process = subprocess.Popen([self.program, *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return self

    def wait_until_ready(self):
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            try:
                if get(self.port, "/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.1)
        raise SystemExit(f"the replica on port {self.port} is not ready after {READY_S} s")

    def signal(self, number):
        self.process.send_signal(number)


def get(port, path):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def speak(port, text, seed):
    """Asks for speech; (what happened, digest of the samples, bytes received)."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    digest, received = hashlib.sha256(), 0
    try:
        body = json.dumps({"input": text, "seed": seed, "response_format": "pcm"})
        connection.request("POST", "/v1/audio/speech", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        if response.status != 200:
            response.read()
            return f"status {response.status}", None, 0
        while block := response.read1(65536):
            digest.update(block)
            received += len(block)
        return "whole", digest.hexdigest(), received
    except (OSError, http.client.HTTPException) as error:
        return ("cut" if received else f"no answer ({type(error).__name__})"), None, received
    finally:
        connection.close()


class Clients:
    """Threads that ask on and on, and what they saw, by phase."""

    def __init__(self, port, count, expected):
        self.port, self.expected = port, expected
        self.phase, self.seen = "steady", collections.defaultdict(collections.Counter)
        self.slowest, self.ended = collections.defaultdict(float), threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.ask, args=(number,), daemon=True) for number in range(count)]

    def ask(self, number):
        turn = number
        while not self.ended.is_set():
            turn += 1
            key = (TEXTS[turn % len(TEXTS)], turn % SEEDS)
            phase, begun = self.phase, time.monotonic()
            outcome, digest, _ = speak(self.port, *key)
            if outcome == "whole" and digest != self.expected[key]:
                outcome = "wrong samples"
            with self.lock:
                self.seen[phase][outcome] += 1
                self.slowest[phase] = max(self.slowest[phase], time.monotonic() - begun)
            if outcome.startswith(("status 429", "status 503")):
                time.sleep(0.5)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        for thread in self.threads:
            thread.join(90)


def haproxy(folder, port, replicas):
    environment = {**os.environ, "RUMIK_BIND": f"127.0.0.1:{port}"}
    for name, replica in zip("AB", replicas):
        environment[f"RUMIK_{name}"] = f"127.0.0.1:{replica.port}"
    return subprocess.Popen(["haproxy", "-f", str(ROOT / "deploy/haproxy.cfg")], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def nginx(folder, port, replicas):
    site = (ROOT / "deploy/nginx.conf").read_text().replace("listen 8000", f"listen 127.0.0.1:{port}")
    for name, replica in zip("ab", replicas):
        site = site.replace(f"rumik-{name}:8080", f"127.0.0.1:{replica.port}")
    main = f"daemon off; pid {folder}/pid; error_log {folder}/errors; events {{}}\nhttp {{ access_log off; client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; {' '.join(f'{kind}_temp_path {folder}/{kind};' for kind in ('fastcgi', 'uwsgi', 'scgi'))}\n{site}}}\n"
    path = pathlib.Path(folder) / "nginx.conf"
    path.write_text(main)
    return subprocess.Popen(["nginx", "-c", str(path)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def through(port):
    """Waits until the proxy hands on a request."""
    until = time.monotonic() + 15
    while time.monotonic() < until:
        try:
            if get(port, "/ready")[0] == 200:
                return
        except OSError:
            pass
        time.sleep(0.1)
    raise SystemExit("the proxy does not answer")


def experiment(options, folder):
    a, b = (Replica(options.server, free_port()).start() for _ in range(2))
    processes = [a, b]
    proxy = None
    try:
        a.wait_until_ready(), b.wait_until_ready()
        expected = {(text, seed): speak(b.port, text, seed)[1] for text in TEXTS for seed in range(SEEDS)}
        assert all(expected.values()), "a replica alone does not speak"
        port = free_port()
        proxy = {"haproxy": haproxy, "nginx": nginx}[options.proxy](folder, port, (a, b))
        through(port)
        facts = {}
        with Clients(port, options.clients, expected) as clients:
            time.sleep(options.seconds)
            clients.phase = "kill -9"
            a.signal(signal.SIGKILL)
            a.process.wait()
            time.sleep(options.seconds)
            clients.phase = "restart"
            a.start().wait_until_ready()
            time.sleep(max(3.0, options.seconds / 2))
            clients.phase = "drain"
            told = time.monotonic()
            b.signal(signal.SIGTERM)
            facts["exit of the drained replica"] = b.process.wait(DRAIN_S + 15)
            facts["seconds to drain"] = round(time.monotonic() - told, 2)
            time.sleep(options.seconds)
        return clients, facts
    finally:
        for process in [replica.process for replica in processes] + [proxy]:
            if process and process.poll() is None:
                process.kill()
                process.wait()


def verdict(clients, facts, options):
    """What must hold, as (sentence, whether it does)."""
    seen = clients.seen
    everything = sum(seen.values(), collections.Counter())
    # A client whose request was under way when the phase changed is counted in the phase it began in.
    killed = seen["steady"] + seen["kill -9"]
    return [
        ("no answer that ended well had a wrong sample", everything["wrong samples"] == 0),
        (f"the kill cut at most the streams in the {SLOTS} slots of the replica", killed["cut"] <= SLOTS),
        ("nobody else was refused or left without an answer", set(everything) <= {"whole", "cut"}),
        ("the drain cut nobody", seen["restart"]["cut"] + seen["drain"]["cut"] == 0),
        ("the drained replica ended with exit 0", facts["exit of the drained replica"] == 0),
        ("speech went on in every phase", all(seen[phase]["whole"] for phase in ("steady", "kill -9", "restart", "drain"))),
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--proxy", choices=["haproxy", "nginx"], default="haproxy")
    parser.add_argument("--server", default=str(ROOT / "target/release/rumik-run"))
    parser.add_argument("--clients", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=6.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        clients, facts = experiment(options, folder)
    print(f"{options.proxy}, 2 replicas of {SLOTS} slots, {options.clients} clients without a pause")
    for phase in ("steady", "kill -9", "restart", "drain"):
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sorted(clients.seen[phase].items(), reverse=True))
        print(f"  {phase:8} {outcomes}; slowest {clients.slowest[phase]:.1f} s")
    for name, value in facts.items():
        print(f"  {name}: {value}")
    results = verdict(clients, facts, options)
    for sentence, holds in results:
        print(f"{'ok ' if holds else 'BAD'} {sentence}")
    failed = sum(not holds for _, holds in results)
    print(f"{len(results) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
