"""The page in a real browser, on a server with a fake model; skipped without a Chromium."""

import contextlib
import threading
import time

import numpy as np
import pytest
import uvicorn

from jaxformer.errors import UserError
from jaxformer.serving.app import make_app
from jaxformer.serving.batching import OverloadedError
from jaxformer.serving.limits import Limits
from jaxformer.serving.protocol import Translation, list_languages

pytestmark = pytest.mark.ci

SOURCE = ["der", "alte", "Hund"]


class Reverser:
    """Reverses the words; the word at t attends 0.7 to its source and 0.3 to the first word."""

    name = "reverser"
    languages = {"de": ["en"]}  # noqa: RUF012

    def __init__(self):
        self.texts = []

    def translate(self, sentences):
        return list(map(self.answer, sentences))

    def answer(self, sentence):
        self.texts.append(sentence.text)
        words = sentence.text.split()
        if words == ["long"]:
            return UserError("sentence: expected at most 9 tokens; split it into sentences")
        if words == ["full"]:
            return OverloadedError(7)
        if words == ["bug"]:
            return ZeroDivisionError()
        if not words:
            return Translation([], [])

        terms = dict(sentence.terms)
        reversed_words = [terms.get(word.lower(), word) for word in words[::-1]]
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


@contextlib.contextmanager
def serving(model, **options):
    """Gives the address of a server on this machine."""
    app = make_app(model, Limits(char_limit=60, batch_limit=3), **options)
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
def address(model):
    with serving(model) as found:
        yield found


@pytest.fixture
def page(browser, address):
    """The page, which must have no errors, and request only the server."""
    troubles = []

    def check_address(request):
        if not request.url.startswith(address):
            troubles.append(request.url)

    def check_message(message):
        # Browsers log each answer that is an error.
        if message.location["url"] != f"{address}/translate":
            troubles.append(message.text)

    page = browser.new_page(viewport={"width": 1000, "height": 800})
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", check_message)
    page.on("request", check_address)
    page.goto(address)
    page.wait_for_function("() => pair.target === 'en'")
    yield page

    page.close()
    assert troubles == []


def shown(page, text):
    """Waits until the page shows a translation."""
    page.wait_for_function("text => byId('translation').textContent === text", arg=text)


def weight(word):
    return float(word.evaluate("word => word.style.getPropertyValue('--weight')"))


def test_translates_what_is_typed_and_drops_what_is_not_finished(page, model):
    assert page.locator("#source-name").inner_text() == "German"
    assert page.locator("#target-name").inner_text() == "English"
    assert page.locator("#model").inner_text() == "Model: reverser"

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
    page.locator("#glossary summary").focus()
    page.keyboard.press("Tab")
    page.keyboard.press("ArrowRight")
    assert targets.nth(1).evaluate("word => word === document.activeElement")
    assert list(map(weight, sources.all())) == [0.3, 0.7, 0]
    page.keyboard.press("Tab")
    assert list(map(weight, targets.all())) == [0.3, 0.3, 1]


def test_sentences_of_a_line_have_their_own_attention(browser, model):
    """The sentence of the cursor, if the server splits lines."""
    pytest.importorskip("sentencex", reason="sentencex is not installed")
    with serving(model, split=True) as address:
        page = browser.new_page()
        page.goto(address)
        page.wait_for_function("() => pair.target === 'en'")
        page.fill("#source", "Der Hund. Er schläft.")
        shown(page, "Hund. Der schläft. Er")
        for place, words in ((2, ["Der", "Hund."]), (14, ["Er", "schläft."])):
            page.evaluate("place => byId('source').setSelectionRange(place, place)", place)
            number = 1 if place == 2 else 2
            title = f"Attention of sentence {number}"
            page.wait_for_function(
                "title => byId('attention-title').textContent === title", arg=title
            )
            assert page.locator("#source-words .word").all_inner_texts() == words
        page.close()


def test_terms_of_a_glossary(page):
    """A line that is still being typed changes nothing."""
    page.fill("#source", "der alte Hund")
    shown(page, "Hund alte der")
    page.click("#glossary summary")
    page.fill("#terms", "Hund = dog\n\nalte =")
    shown(page, "dog alte der")
    page.fill("#terms", "Hund = dog\nalte=old=er")
    shown(page, "dog old=er der")
    page.fill("#terms", "")
    shown(page, "Hund alte der")


def test_lines_and_errors(page):
    source = page.locator("#source")
    source.fill("eins zwei\n\ndrei vier")
    shown(page, "zwei eins\n\nvier drei")
    assert page.locator("#target-words .word").all_inner_texts() == ["vier", "drei"]
    source.press("Control+Home")
    page.wait_for_function("() => byId('target-words').textContent === 'zweieins'")
    assert page.locator("#n-best-title").inner_text() == "Best translations of line 1"
    source.fill("1 2 3 4 5 6 7 8 9 10")
    shown(page, "10 9 8 7 6 5 4 3 2 1")
    assert page.locator("#target-words .word").count() == 0
    assert "This line is too long" in page.locator("#description").inner_text()
    assert page.locator("#n-best-title").inner_text() == "Best translations"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x" * 61, "At most 60 characters at a time; this text has 61."),
        ("\U0001f600" * 61, "At most 60 characters at a time; this text has 61."),
        ("1\n2\n3\n4", "At most 3 lines at a time; this text has 4."),
        ("long", "A line is too long for the model: put each sentence on a line."),
        ("full", "The server is busy. Trying again in 7 s."),
        ("bug", "The server could not translate this text; its log says why."),
    ],
)
def test_errors_are_sentences_and_leave_nothing_old(page, text, message):
    source = page.locator("#source")
    source.fill("gut so")
    shown(page, "so gut")

    source.fill(text)
    page.wait_for_function("text => byId('message').textContent === text", arg=message)
    assert page.locator("#translation").inner_text() == ""
    for element in ("#options", "#attention", "#copy"):
        assert page.locator(element).is_hidden()

    source.fill("gut")
    shown(page, "gut")
    assert page.locator("#message").inner_text() == ""


def test_translates_when_the_server_is_back(page, address):
    source = page.locator("#source")
    source.fill("gut so")
    shown(page, "so gut")

    page.evaluate("() => { realFetch = fetch; fetch = async () => { throw new TypeError() } }")
    source.fill("alles gut")
    page.wait_for_function("() => byId('message').textContent.includes('does not answer')")
    assert page.locator("#translation").inner_text() == ""

    page.evaluate("() => { fetch = realFetch }")
    shown(page, "gut alles")
    assert page.locator("#message").inner_text() == ""


def test_example_copy_clear_and_sentences(page):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    example = page.locator("#example button")
    example.click()
    shown(page, "Bahnhof? der ist Wo")
    assert example.is_hidden()

    page.locator("#copy").click()
    page.wait_for_function("() => byId('copy').textContent === 'Copied'")
    assert page.evaluate("() => navigator.clipboard.readText()") == "Bahnhof? der ist Wo"

    # A page from another machine has no clipboard; then the translation is selected and copied.
    page.locator("#source").fill("drei vier")
    shown(page, "vier drei")
    page.evaluate("() => { navigator.clipboard.writeText = undefined }")
    page.locator("#copy").click()
    page.wait_for_function("() => getSelection().toString() === 'vier drei'")
    assert page.evaluate("() => navigator.clipboard.readText()") == "vier drei"

    page.locator("#clear").click()
    shown(page, "")
    assert page.locator("#source").evaluate("box => box === document.activeElement")
    page.keyboard.press("Control+z")
    shown(page, "vier drei")

    split = page.locator("#split")
    assert split.is_hidden()
    page.locator("#source").fill("Dr. Ott kam. Er ging!\nUnd? Ja.")
    split.click()
    assert page.locator("#source").input_value() == "Dr. Ott kam.\nEr ging!\nUnd?\nJa."
    assert split.is_hidden()


def test_the_box_grows_with_its_text(page):
    source = page.locator("#source")

    def height():
        visible, whole = source.evaluate("box => [box.clientHeight, box.scrollHeight]")
        assert whole == visible
        return visible

    smallest = height()
    source.fill("a\n" * 20)
    assert height() > 2 * smallest
    source.fill("a " * 600)
    assert height() > 2 * smallest
    source.fill("")
    assert height() == smallest


def test_languages_to_choose(page, model, address):
    model.languages = {"de": ["en", "fr"], "fr": ["de"]}
    page.route("**/languages", lambda route: route.fulfill(json=list_languages(model.languages)))
    page.reload()
    page.wait_for_function("() => pair.target === 'en'")
    source = page.get_by_label("source language")
    target = page.get_by_label("target language")
    assert source.locator("option").all_inner_texts() == ["French", "German"]

    page.locator("#source").fill("un deux")
    target.select_option("French")
    assert page.locator("#translation").get_attribute("lang") == "fr"
    source.select_option("fr")
    assert page.locator("#target-name").inner_text() == "German"
    assert page.evaluate("() => pair") == {"source": "fr", "target": "de"}

    # Who chose French stays with it when the server is asked again.
    source.select_option("de")
    target.select_option("French")
    page.evaluate("() => connect()")
    page.wait_for_function("() => pair.target === 'fr'")
    assert target.input_value() == "fr"


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
