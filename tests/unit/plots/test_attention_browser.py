"""The page in a real browser: display, descriptions and keyboard control.

Needs a Chromium: the one that JAXFORMER_BROWSER names, the system's, or playwright's own.
"""

import os
import shutil

import numpy as np
import pytest

from jaxformer.plots.attention_page import attention_page, in_frame

from ...profiles import by_profile

playwright = pytest.importorskip("playwright.sync_api", reason="no browser: needs playwright")

pytestmark = pytest.mark.ci

SOURCE = ["▁the", "▁dog", "</script>", "▁مرحبا", "▁🙂", "</s>"]
TARGET = ["<s>", "▁der", "▁Hund", '"&<!--', "."]
LAYERS, HEADS = 3, 4


def softmax(*shape):
    weights = np.exp(3 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


def causal(weights):
    weights = np.tril(weights)
    return weights / weights.sum(axis=-1, keepdims=True)


CROSS = softmax(LAYERS, HEADS, len(TARGET), len(SOURCE))
PAGE = attention_page(
    SOURCE,
    TARGET,
    softmax(LAYERS, HEADS, len(SOURCE), len(SOURCE)),
    causal(softmax(LAYERS, HEADS, len(TARGET), len(TARGET))),
    CROSS,
    sentence='the dog </script><script>document.title = "broken"</script>',
    translation="<b>der Hund</b>",
)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as play:
        try:
            path = os.environ.get("JAXFORMER_BROWSER", shutil.which("chromium"))
            browser = play.chromium.launch(executable_path=path, args=["--no-sandbox"])
        except playwright.Error as error:
            pytest.skip(f"no browser: {error.message.splitlines()[0]}; set JAXFORMER_BROWSER")
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def tab(browser):
    """A browser tab, and what its page logged, requested or violated."""
    tab, troubles = browser.new_page(viewport={"width": 1280, "height": 900}), []
    tab.on("console", lambda message: troubles.append(message.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("request", lambda request: troubles.append(request.url))
    tab.add_init_script(
        "addEventListener('securitypolicyviolation',"
        " event => console.error('policy', event.violatedDirective))"
    )
    return tab, troubles


@pytest.fixture
def visit(tab, tmp_path):
    """Opens a page in the tab, and checks at the end that it had no error."""
    page, troubles = tab

    def visit(content):
        path = tmp_path / "page.html"
        path.write_text(content, encoding="utf-8")
        page.goto(path.as_uri())
        assert troubles.pop(0) == path.as_uri()
        rest(page)
        return page

    yield visit
    assert troubles == []
    troubles.clear()


@pytest.fixture
def page(visit):
    return visit(PAGE)


def rest(page):
    """Waits until the page has painted and updated its description."""
    page.wait_for_timeout(150)


def token(page, side, index):
    return page.locator(f".{side} .token").nth(index)


def said(page):
    rest(page)
    return page.locator("#description").inner_text().replace("\u2068", "").replace("\u2069", "")


def percent(weight):
    return f"{100 * weight:.{1 if weight < 0.0995 else 0}f}%"


def plain(piece):
    return piece.replace("▁", " ").strip()


def ink(page):
    """Returns the number of painted pixels of all canvases."""
    rest(page)
    return page.evaluate(
        """[...document.querySelectorAll("canvas")].map((canvas) => {
          const copy = new OffscreenCanvas(canvas.width, canvas.height);
          const context = copy.getContext("2d", {willReadFrequently: true});
          context.drawImage(canvas, 0, 0);
          const bytes = context.getImageData(0, 0, canvas.width, canvas.height).data;
          return bytes.filter((value, i) => i % 4 === 3 && value).length;
        }).reduce((a, b) => a + b, 0)"""
    )


def test_pointing_at_a_token_shows_its_attention(page):
    everything = ink(page)
    token(page, "queries", 2).hover()
    mean = CROSS[-1, :, 2].mean(axis=0)
    best = int(mean.argmax())
    words = said(page)
    assert f"“Hund”, token 3, predicting “{plain(TARGET[3])}”, attends to: " in words
    assert f"attends to: “{plain(SOURCE[best])}” {percent(mean[best])}" in words
    for head in range(HEADS):
        key = int(CROSS[-1, head, 2].argmax())
        assert f"{head + 1} “{plain(SOURCE[key])}” {percent(CROSS[-1, head, 2, key])}" in words
    assert 0 < ink(page) < everything
    page.mouse.move(5, 5)
    assert "Choose a token" in said(page)
    assert ink(page) == everything

    page.click("label[for=head-0]")
    token(page, "keys", 1).hover()
    assert "heads 2, 3 and 4" in page.locator(".panel h2").inner_text().lower()
    mean = CROSS[-1, 1:, :, 1].mean(axis=0)
    best = int(mean.argmax())
    assert f"is attended to by: “{plain(TARGET[best])}” {percent(mean[best])}" in said(page)


def test_a_click_selects_a_token_until_escape(page):
    page.get_by_text("The weights as a table").click()
    token(page, "queries", 1).click()
    page.mouse.move(5, 5)
    assert "“der”" in said(page)  # The selection is kept.
    assert token(page, "queries", 1).get_attribute("aria-pressed") == "true"
    rows = page.evaluate(
        "[...document.querySelectorAll('#table tbody tr')].map(r => [...r.cells].map("
        "c => c.textContent))"
    )
    assert rows == [
        [plain(piece), *(percent(CROSS[-1, head, 1, key]) for head in range(HEADS))]
        for key, piece in enumerate(SOURCE)
    ]
    token(page, "queries", 2).hover()
    assert "“Hund”" in said(page)
    page.mouse.move(5, 5)
    assert "“der”" in said(page)
    page.keyboard.press("Escape")
    assert "Choose a token" in said(page)


@pytest.mark.parametrize("layout", by_profile(["rows"], nightly=["columns", "rows"]))
def test_everything_works_from_the_keyboard(layout, page):
    page.locator(f"#layout-{layout}").focus()
    page.keyboard.press("Space")
    on, over = ("ArrowDown", "ArrowRight") if layout == "columns" else ("ArrowRight", "ArrowDown")
    for key, selected in (("Tab", "<s>"), (on, "der"), ("End", "."), (on, ".")):
        page.keyboard.press(key)
        assert f"“{selected}”" in said(page)
        outline = page.evaluate("getComputedStyle(document.activeElement).outlineWidth")
        assert float(outline.removesuffix("px")) >= 2
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    rest(page)
    assert token(page, "queries", 0).get_attribute("aria-pressed") == "true"
    page.keyboard.press(over)  # along the strongest line
    best = int(CROSS[-1, :, 0].mean(axis=0).argmax())
    assert f"“{plain(SOURCE[best])}”, token {best + 1} is attended to by" in said(page)
    # One tab stop per side, for any number of tokens.
    assert page.locator(".token[tabindex='0']").count() == 2
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"


def test_layers_kinds_heads_and_presets(page):
    page.get_by_label("Decoder self-attention").focus()
    page.keyboard.press("Space")
    assert "Decoder self-attention, layer 3 of 3, all 4 heads" in said(page)
    page.locator("#layer-2").focus()
    page.keyboard.press("ArrowLeft")
    page.locator("#head-1").focus()
    page.keyboard.press("Space")
    assert "Decoder self-attention, layer 2 of 3, heads 1, 3 and 4" in said(page)
    token(page, "queries", 0).hover()
    assert "attends to: “<s>” 100% (mean of 3 heads)" in said(page)
    page.get_by_role("button", name="None").click()
    assert "No head is chosen" in said(page)
    assert ink(page) == 0
    page.get_by_role("button", name="All").click()
    assert ink(page) > 0
    for figure, panels in ((3, 1), (4, 2), (5, 2)):
        button = page.get_by_role("button", name=f"Figure {figure}")
        button.click()
        words = said(page)
        assert button.get_attribute("aria-pressed") == "true"
        assert "Encoder self-attention, layer 2 of 3" in words
        assert ("attends to: " in words) == (figure != 5)
        assert page.locator(".panel").count() == panels
        assert page.locator("#caption").inner_text().startswith(f"As figure {figure}: ")
    page.locator("label[for=layer-0]").click()
    assert page.locator("#figures [aria-pressed=true]").count() == 0


def test_words_are_not_markup_and_controls_have_names(page):
    assert page.title().endswith('</script><script>document.title = "broken"</script>')
    assert page.locator("dd").nth(1).inner_text() == "<b>der Hund</b>"
    assert [button.strip() for button in page.locator(".keys .token").all_inner_texts()] == [
        piece.replace("▁", "·") for piece in SOURCE
    ]
    assert page.locator("script").count() == 4
    nameless = page.evaluate(
        "[...document.querySelectorAll('input, button, section, [role]')].filter(e =>"
        " !(e.getAttribute('aria-label') || e.textContent.trim() || e.labels?.length"
        " || e.id === 'description')).length"
    )
    assert nameless == 0
    assert page.locator("#description").get_attribute("aria-live") == "polite"
    assert page.locator("canvas[aria-hidden=true]").count() == page.locator("canvas").count()


def luminance(color):
    """Relative luminance, WCAG 2.2."""
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4
        for c in (part / 255 for part in color)
    ]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def test_dark_and_light_have_the_contrast_of_wcag_aa(page):
    token(page, "queries", 1).click()
    for scheme, color in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(22, 23, 27)")):
        page.emulate_media(color_scheme=scheme)
        rest(page)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == color
        pairs = page.evaluate(
            """[...document.querySelectorAll("h1, dt, dd, legend, .chip, .chips button, #theme, "
                + ".token, .side, p, summary, h2")].map((element) => {
              let behind = element;
              const fill = (e) => getComputedStyle(e).backgroundColor;
              while (behind.parentElement && fill(behind) === "rgba(0, 0, 0, 0)") {
                behind = behind.parentElement;
              }
              const numbers = (text) => text.match(/[\\d.]+/g).slice(0, 3).map(Number);
              return [element.className, numbers(getComputedStyle(element).color),
                      numbers(fill(behind))];
            })"""
        )
        assert len(pairs) > 40
        for name, *colors in pairs:
            first, second = sorted(map(luminance, colors))
            assert (second + 0.05) / (first + 0.05) >= 4.5, (scheme, name)
    page.get_by_role("button", name="Dark").click()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_a_phone_has_no_sideways_scrolling_of_the_page(page):
    page.set_viewport_size({"width": 390, "height": 900})
    for layout in ("columns", "rows"):
        page.locator(f"label[for=layout-{layout}]").click()
        rest(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.set_viewport_size({"width": 1280, "height": 900})


def test_a_notebook_s_frame_works_in_its_sandbox(visit):
    page = visit(f"<!DOCTYPE html><title>notebook</title><body>{in_frame(PAGE)}</body>")
    frame = page.frame_locator("iframe")
    frame.locator(".queries .token").nth(2).hover()
    rest(page)
    assert "Hund" in frame.locator("#description").inner_text()
    assert page.title() == "notebook"


def test_sixty_tokens_stay_under_the_pointer(visit):
    weights = softmax(6, 8, 60, 60)
    names = [f"▁word{i}" for i in range(60)]
    page = visit(
        attention_page(names, names, weights, causal(weights), weights, sentence="", translation="")
    )
    place = token(page, "queries", 7).bounding_box()
    token(page, "queries", 7).click()
    rest(page)
    assert token(page, "queries", 7).bounding_box() == place
