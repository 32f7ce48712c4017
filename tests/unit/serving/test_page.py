"""The page in a real browser, on a server with a fake model; skipped without a Chromium."""

import threading
import time

import numpy as np
import pytest
import uvicorn

from jaxformer.serving.app import make_app
from jaxformer.serving.protocol import Limits, Translation

pytestmark = pytest.mark.ci

SOURCE = ["der", "alte", "Hund"]


class Reverser:
    """Reverses the words; the word at t attends 0.7 to its source and 0.3 to the first word."""

    languages = {"de": ["en"]}  # noqa: RUF012

    def __init__(self):
        self.texts = []

    def translate(self, sentences):
        return list(map(self.answer, sentences))

    def answer(self, sentence):
        self.texts.append(sentence.text)
        words = sentence.text.split()
        if not words:
            return Translation([], [])

        reversed_words = words[::-1]
        texts = [" ".join(reversed_words), "<b>second</b> best"]
        scores = [-0.5, -1.25]
        if len(words) > 9:
            return Translation(texts, scores)

        weights = np.zeros((len(words), len(words)))  # [T, S]
        weights[:, 0] = 0.3
        for t in range(len(words)):
            weights[t, len(words) - 1 - t] += 0.7
        attention = {"source": words, "target": reversed_words, "weights": weights.tolist()}
        return Translation(texts, scores, attention)


@pytest.fixture
def model():
    return Reverser()


@pytest.fixture
def address(model):
    """The address of a server on this machine."""
    app = make_app(model, Limits(char_limit=60))
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)

    _, port = server.servers[0].sockets[0].getsockname()
    yield f"http://127.0.0.1:{port}"

    server.should_exit = True
    thread.join()


@pytest.fixture
def page(browser, address):
    """The page, which must have no errors, and request only the server."""
    troubles = []

    def check_address(request):
        if not request.url.startswith(address):
            troubles.append(request.url)

    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda message: troubles.append(message.text))
    page.on("request", check_address)
    page.goto(address)
    page.wait_for_function("() => pair !== null")
    yield page

    page.close()
    assert [trouble for trouble in troubles if "400 (Bad Request)" not in trouble] == []


def shown(page, text):
    """Waits until the page shows a translation."""
    page.wait_for_function("text => byId('translation').textContent === text", arg=text)


def weight(word):
    return float(word.evaluate("word => word.style.getPropertyValue('--weight')"))


def test_translates_what_is_typed_and_drops_what_is_not_finished(page, model):
    assert page.locator("#source-name").inner_text() == "German"
    assert page.locator("#target-label").inner_text() == "English"

    page.locator("#source").press_sequentially(" ".join(SOURCE), delay=5)
    shown(page, "Hund alte der")
    assert model.texts[-1] == "der alte Hund"
    assert len(model.texts) < len("der alte Hund") / 2
    items = page.locator("#n-best li").all_inner_texts()
    assert items == ["Hund alte der score -0.50", "<b>second</b> best score -1.25"]

    page.locator("#source").fill("")
    shown(page, "")
    assert page.locator("#n-best li").count() == 0
    assert page.locator("#attention").is_hidden()
    assert page.locator("#options").is_hidden()


def test_attention_of_words_by_pointer_and_keyboard(page):
    page.locator("#source").fill("der alte Hund")
    shown(page, "Hund alte der")
    sources = page.locator("#source-words .word")
    targets = page.locator("#target-words .word")
    assert sources.all_inner_texts() == SOURCE

    targets.nth(1).hover()
    assert list(map(weight, sources.all())) == [0.3, 0.7, 0]
    description = page.locator("#description").inner_text().translate({0x2068: "", 0x2069: ""})
    assert description == "\u201calte\u201d attends to: alte 70%, der 30%."

    sources.nth(0).hover()
    assert list(map(weight, targets.all())) == [0.3, 0.3, 1]

    page.mouse.move(0, 0)
    page.locator("#source").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert targets.nth(1).evaluate("word => word === document.activeElement")
    assert list(map(weight, sources.all())) == [0.3, 0.7, 0]
    page.keyboard.press("Tab")
    assert list(map(weight, targets.all())) == [0.3, 0.3, 1]


def test_lines_and_errors(page):
    source = page.locator("#source")
    source.fill("eins zwei\n\ndrei vier")
    shown(page, "zwei eins\n\nvier drei")
    assert page.locator("#target-words .word").all_inner_texts() == ["vier", "drei"]
    source.press("Control+Home")
    page.wait_for_function("() => byId('target-words').textContent === 'zweieins'")
    source.fill("1 2 3 4 5 6 7 8 9 10")
    shown(page, "10 9 8 7 6 5 4 3 2 1")
    assert page.locator("#target-words .word").count() == 0
    assert "Only shorter lines" in page.locator("#description").inner_text()
    source.fill("x" * 61)
    page.wait_for_function("() => byId('message').textContent.includes('exceeds text limit (60)')")
    source.fill("gut")
    shown(page, "gut")
    assert page.locator("#message").inner_text() == ""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_fits_narrow_screens_and_has_contrast(page, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 320, "height": 640})
    page.locator("#source").fill("Donaudampfschifffahrtsgesellschaftskapitaen")
    shown(page, "Donaudampfschifffahrtsgesellschaftskapitaen")
    assert page.evaluate("document.documentElement.scrollWidth") <= 320

    color, background = page.evaluate(
        "[getComputedStyle(document.body).color, getComputedStyle(document.body).backgroundColor]"
    )
    light, dark = sorted(map(luminance, (color, background)), reverse=True)
    assert (light + 0.05) / (dark + 0.05) >= 7
    assert (luminance(background) < 0.5) == (scheme == "dark")


def luminance(color):
    """Returns the relative luminance of a color such as "rgb(0, 0, 0)" (WCAG 2)."""

    def linear(part):
        value = int(part) / 255
        if value <= 0.04045:
            return value / 12.92
        return ((value + 0.055) / 1.055) ** 2.4

    red, green, blue = map(linear, color[4:-1].split(","))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
