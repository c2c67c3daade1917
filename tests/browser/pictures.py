#!/usr/bin/env python3
"""Takes the pictures in docs/images: the page on a desk, in the dark and on a phone, after a real take.

    target/browser-tests/bin/python tests/browser/pictures.py      once tests/browser/run has made that environment
"""

import shutil

from conftest import ROOT, Server
from playwright.sync_api import sync_playwright

FIRST = "आज मौसम बहुत अच्छा है।"
SECOND = "Good morning, and welcome to the show. I have 25 books, and the weather is very good today."
WINDOWS = {
    "page-desktop": {"viewport": {"width": 1280, "height": 860}},
    "page-dark": {"viewport": {"width": 1280, "height": 860}, "color_scheme": "dark"},
    "page-phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


def take(browser, url, name, options):
    context = browser.new_context(**options)
    page = context.new_page()
    page.goto(url)
    page.locator("#voice-options label").first.wait_for()
    if name != "page-phone":
        page.click("#show-reading")
    for number, (text, voice) in enumerate([(FIRST, "Zoya"), (SECOND, "Ira")]):
        page.fill("#text", text)
        page.check(f"[name=voice][value={voice}]", force=True)
        page.click("#speak")
        page.locator(".take").nth(number).wait_for()
    page.locator("body[data-state=over]").wait_for()
    page.click(".take .round")
    page.wait_for_timeout(1500)
    page.screenshot(path=ROOT / f"docs/images/{name}.png", full_page=True)
    context.close()


def main():
    (ROOT / "docs/images").mkdir(exist_ok=True)
    server = Server()
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium-headless-shell") or shutil.which("chromium"))
            for name, options in WINDOWS.items():
                take(browser, server.url, name, options)
            browser.close()
    finally:
        server.stop()


if __name__ == "__main__":
    main()
