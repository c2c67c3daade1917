"""A real server with the demonstration voice, and a browser in front of it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest
from playwright.sync_api import sync_playwright

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("RUMIK_RUN", str(ROOT / "target/release/rumik-run"))

# Counts what is given to the sound card, and when.
EARS = """
window.heard = [];
const start = AudioBufferSourceNode.prototype.start;
AudioBufferSourceNode.prototype.start = function (...when) {
  window.heard.push({ now: performance.now(), samples: this.buffer.length, state: this.context.state });
  return start.apply(this, when);
};
"""


class Server:
    def __init__(self, *arguments):
        command = [PROGRAM, "serve", "--bind", "127.0.0.1:0", *arguments]
        self.log = tempfile.NamedTemporaryFile("w+")
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=self.log)
        until = time.monotonic() + 60
        while not (found := re.search(r"listening on (http://\S+)\n", pathlib.Path(self.log.name).read_text())):
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"the server did not start: {pathlib.Path(self.log.name).read_text()}")
            time.sleep(0.05)
        self.url = found[1]

    def ask(self, path, body=None, **headers):
        """Status and bytes of a request."""
        data = body if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json", **headers})
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as error:
            return error.code, error.read()

    def metric(self, name):
        text = self.ask("/metrics")[1].decode()
        return sum(float(line.split()[-1]) for line in text.splitlines() if re.match(rf"{name}(\{{|\s)", line))

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


@pytest.fixture(scope="session")
def server():
    server = Server("--slots", "2")
    yield server
    server.stop()


@pytest.fixture(scope="session")
def chromium():
    path = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    # The strictest rule that a browser has: no sound before a click or a key.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--autoplay-policy=user-gesture-required"])
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium, server):
    """Opens the page in a fresh profile; fails on any message in the console and on any request to elsewhere."""
    contexts, complaints = [], []

    def open_page(url=None, quiet=True, init="", **options):
        context = chromium.new_context(accept_downloads=True, **options)
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.add_init_script(EARS + init)
        home = url or server.url
        if quiet:
            page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith((home, "blob:")) or complaints.append(f"asked {request.url}"))
        page.goto(home + "/")
        if not url:
            page.locator("#voice-options label").first.wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert not complaints
