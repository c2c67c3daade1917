"""What a visitor does, and what is seen and heard."""

import shutil

import pytest
from axe_playwright_python.sync_playwright import Axe
from conftest import ROOT, Server

SHORT = "Good morning, and welcome to the show."
LONG = " ".join(["My sister opened the window. The weather is very good today. We will eat rice and fish in the evening."] * 12)


def wait_for(page, state):
    page.locator(f"body[data-state={state}]").wait_for(state="attached")


def speak(page, text=SHORT, seed="5"):
    """Speaks and waits until all of it arrived."""
    page.fill("#text", text)
    page.fill("#seed", seed)
    takes = page.locator(".take").count()
    page.click("#speak")
    page.locator(".take").nth(takes).wait_for()


def download(page, take=0):
    with page.expect_download() as saved:
        page.locator(".take .download").nth(take).click()
    return saved.value.path().read_bytes(), saved.value.suggested_filename


def whole(server, **fields):
    status, wav = server.ask("/v1/audio/speech", {"input": SHORT, "seed": 5, "voice": "Ira", "response_format": "wav", "stream": False, **fields})
    assert status == 200, wav
    return wav


def test_sound_begins_before_the_speech_ends(visit):
    page = visit()
    speak(page, LONG[:200])
    times = page.evaluate("""() => ({
        starts: window.heard.map((piece) => piece.now),
        end: performance.getEntriesByType("resource").find((entry) => entry.name.endsWith("/v1/audio/speech")).responseEnd,
    })""")
    assert len(times["starts"]) > 3
    assert times["starts"][0] < times["end"], "nothing was given to the sound card before the response ended"
    assert page.inner_text("#first").endswith(" ms") and page.inner_text("#speed").endswith("× real time")


def test_a_take_is_the_api_s_own_bytes(visit, server):
    page = visit()
    page.check("[name=voice][value=Zoya]", force=True)
    page.select_option("#tone", "happy")
    page.select_option("#pace", "slow")
    speak(page, "I have 25 books.", "7")
    wav, name = download(page)
    assert wav == whole(server, input="I have 25 books.", seed=7, voice="Zoya", tone="happy", pace="slow")
    assert name == "i-have-25-books-7.wav"
    assert len(wav) == 44 + 2 * sum(piece["samples"] for piece in page.evaluate("window.heard"))
    how = page.inner_text(".take .how")
    assert "Zoya · happy, slow pace · seed 7" in how, how


def test_samples_survive_any_cut_of_the_stream(visit, server):
    init = """
        const ask = window.fetch;
        window.fetch = async (...request) => {
            const response = await ask(...request);
            if (!String(request[0]).endsWith("speech")) return response;
            let rest = new Uint8Array();
            return new Response(response.body.pipeThrough(new TransformStream({
                transform(piece, out) {
                    for (let at = 0; at < piece.length; at += 333) out.enqueue(piece.slice(at, at + 333));
                },
            })), response);
        };"""
    page = visit(init=init)
    speak(page)
    assert download(page)[0] == whole(server)


def test_stop_ends_the_request_and_keeps_what_was_heard(visit, server):
    page = visit()
    hang_ups = server.metric("rumik_hang_ups_total")
    page.fill("#text", LONG)
    page.click("#speak")
    page.locator("#figures").wait_for()
    page.click("#speak")
    wait_for(page, "over")
    assert page.inner_text("#speak") == "Speak"
    assert "stopped" in page.inner_text(".take .how")
    for _ in range(100):
        if server.metric("rumik_hang_ups_total") == hang_ups + 1 and server.metric("rumik_slots_busy") == 0:
            break
        page.wait_for_timeout(100)
    else:
        pytest.fail("the server went on speaking")
    # and the next one is as good as any
    speak(page)
    assert download(page)[0] == whole(server)


def test_takes_are_kept_and_played_again(visit):
    page = visit()
    speak(page)
    samples = page.evaluate("window.heard.reduce((sum, piece) => sum + piece.samples, 0)")
    page.reload()
    page.locator(".take").wait_for()
    assert page.evaluate("window.heard.length") == 0
    page.click(".take .round")
    wait_for(page, "playing")
    assert [(piece["samples"], piece["state"]) for piece in page.evaluate("window.heard")] == [(samples, "running")]
    page.click("#play")
    wait_for(page, "paused")
    page.click("#play")
    wait_for(page, "playing")
    wait_for(page, "over")


def test_settings_of_a_take_come_back_and_takes_go(visit):
    page = visit()
    page.check("[name=voice][value=Siya]", force=True)
    page.check("[name=manner][value=describe]", force=True)
    page.fill("#instructions", "calm, slow pace")
    speak(page, SHORT, "11")
    page.check("[name=voice][value=Ira]", force=True)
    page.check("[name=manner][value=pick]", force=True)
    speak(page, "Please close the door.", "12")
    page.locator(".take .reuse").nth(1).click()
    assert page.input_value("#text") == SHORT and page.input_value("#seed") == "11"
    assert page.is_checked("[name=voice][value=Siya]") and page.input_value("#instructions") == "calm, slow pace"
    page.locator(".take .delete").first.click()
    page.locator(".take").nth(1).wait_for(state="detached")
    assert page.inner_text(".take .said") == SHORT
    page.reload()
    page.locator(".take").wait_for()
    assert page.locator(".take").count() == 1
    page.click(".take .delete")
    page.locator("#no-takes").wait_for()


def test_a_refusal_is_shown_where_it_belongs(visit):
    page = visit(quiet=False)  # a browser writes every 400 to the console
    page.fill("#text", "।।…!?")
    page.click("#speak")
    page.locator("#error").wait_for()
    assert "nothing to say" in page.inner_text("#error")
    assert page.get_attribute("#text", "aria-invalid") == "true"
    assert page.evaluate("document.activeElement.id") == "text"
    page.fill("#text", SHORT)
    assert page.is_hidden("#error") and page.get_attribute("#text", "aria-invalid") is None
    page.fill("#seed", "seven")
    page.click("#speak")
    page.locator("#error").wait_for()
    assert page.evaluate("document.activeElement.id") == "seed"
    assert page.locator(".take").count() == 0


def test_an_overload_says_when_to_come_back(visit):
    page = visit(quiet=False)
    error = {"error": {"message": "all places are taken", "type": "rate_limit_error", "param": None, "code": "overloaded"}}
    page.route("**/v1/audio/speech", lambda route: route.fulfill(status=429, headers={"Retry-After": "3"}, json=error))
    page.fill("#text", SHORT)
    page.click("#speak")
    page.locator("#error").wait_for()
    assert page.inner_text("#error") == "all places are taken Try again in 3 s."


def test_how_a_text_is_read(visit):
    page = visit()
    page.fill("#text", "I have 25 books.")
    page.click("#show-reading")
    page.locator("#reading ins").wait_for()
    assert "I have twenty-five books." in page.inner_text("#reading")
    assert page.inner_text("#reading dt") == "cardinal"
    page.uncheck("#normalize")
    page.locator("#reading ins").wait_for(state="detached")
    page.check("#normalize")
    page.fill("#text", "₹500")
    page.get_by_text("पाँच सौ रुपये").first.wait_for()
    page.fill("#text", "😀")
    page.get_by_text("Nothing to say yet.").wait_for()


def test_the_keyboard_is_enough(visit):
    page = visit()
    page.focus("#text")
    page.keyboard.type("Hello")
    page.get_by_role("button", name="laugh").press("Enter")
    assert page.input_value("#text") == "Hello <laugh> "
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("Control+z")
    assert page.input_value("#text") == "Hello"
    page.fill("#text", LONG)
    page.keyboard.press("Control+Enter")
    page.locator("#figures").wait_for()
    page.keyboard.press("Escape")
    wait_for(page, "over")


def test_a_model_that_is_not_verified_is_announced(visit, tmp_path):
    for name in ["demo", "demo-int4"]:
        shutil.copytree(ROOT / "fixtures" / name, tmp_path, dirs_exist_ok=True, ignore=shutil.ignore_patterns("model-0*", "golden*", "recipe"))
    server = Server("--model", str(tmp_path), "--unverified")
    try:
        page = visit(server.url)
        page.locator("#unverified").wait_for()
        assert "verify.json" in page.inner_text("#unverified")
    finally:
        server.stop()
    assert visit().is_hidden("#unverified")


def test_a_server_with_keys_asks_for_one(visit, tmp_path):
    (tmp_path / "keys").write_text("a-key-that-is-long-enough-to-be-one\n")
    server = Server("--api-keys", str(tmp_path / "keys"))
    try:
        page = visit(server.url, quiet=False)
        page.locator("#key-form").wait_for()
        page.fill("#key", "a-key-that-is-long-enough-to-be-one")
        page.click("#key-form button")
        page.locator("#voice-options label").first.wait_for()
        assert page.is_hidden("#key-form")
        speak(page)
    finally:
        server.stop()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_stands_in_the_way_of_anyone(visit, scheme):
    page = visit(color_scheme=scheme)
    speak(page)
    page.click("#show-reading")
    page.locator("#reading p").first.wait_for()
    wait_for(page, "over")
    found = Axe().run(page)
    assert found.violations_count == 0, found.generate_report()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_is_wider_than_the_window(visit, width):
    page = visit(viewport={"width": width, "height": 800})
    speak(page, "The weather is very good today, and supercalifragilisticexpialidocious" * 2)
    page.click("#show-reading")
    page.locator("#reading p").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_policy_forbids_everything_else(server):
    import urllib.request

    with urllib.request.urlopen(server.url + "/") as response:
        policy = response.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'") and "unsafe" not in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"
