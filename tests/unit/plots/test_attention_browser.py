"""The page in a real browser: display, descriptions and keyboard control.

Needs a Chromium: the one that JAXFORMER_BROWSER names, the system's, or playwright's own.
"""

import numpy as np
import pytest

from jaxformer.plots.attention_page import AttentionView, embed_in_frame

pytestmark = pytest.mark.ci

SOURCE = ["▁the", "▁dog", "</script>", "▁مرحبا", "▁🙂", "</s>"]
TARGET = ["<s>", "▁der", "▁Hund", '"&<!--', "."]
LAYERS = 3
HEADS = 4


def softmax(*shape):
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=shape)
    odds = np.exp(scores).astype(np.float32)
    return odds / odds.sum(axis=-1, keepdims=True)


def causal(weights):
    weights = np.tril(weights)
    return weights / weights.sum(axis=-1, keepdims=True)


CROSS = softmax(LAYERS, HEADS, len(TARGET), len(SOURCE))
PAGE = AttentionView(
    sentence='the dog </script><script>document.title = "broken"</script>',
    translation="<b>der Hund</b>",
    source=SOURCE,
    target=TARGET,
    encoder=softmax(LAYERS, HEADS, len(SOURCE), len(SOURCE)),
    decoder=causal(softmax(LAYERS, HEADS, len(TARGET), len(TARGET))),
    cross=CROSS,
).page()


@pytest.fixture(scope="module")
def tab(browser):
    """A browser tab, and what its page logged, requested or violated."""
    tab = browser.new_page(viewport={"width": 1280, "height": 900})
    troubles = []
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
    """Returns the description, without its marks of isolated text."""
    rest(page)
    words = page.locator("#description").inner_text()
    return words.replace("\u2068", "").replace("\u2069", "")


def percent(weight):
    digits = 1 if weight < 0.0995 else 0
    return f"{100 * weight:.{digits}f}%"


def quoted(piece):
    plain = piece.replace("▁", " ").strip()
    return f"“{plain}”"


def test_pointing_at_a_token_shows_its_attention(page):
    token(page, "queries", 2).hover()

    words = said(page)
    assert f"“Hund”, token 3, predicting {quoted(TARGET[3])}, attends to: " in words
    mean = CROSS[-1, :, 2].mean(axis=0)
    best = int(mean.argmax())
    piece = quoted(SOURCE[best])
    assert f"attends to: {piece} {percent(mean[best])}" in words
    for head in range(HEADS):
        weights = CROSS[-1, head, 2]
        key = int(weights.argmax())
        piece = quoted(SOURCE[key])
        assert f"{head + 1} {piece} {percent(weights[key])}" in words


def test_a_click_selects_a_token_until_escape(page):
    page.get_by_text("The weights as a table").click()
    token(page, "queries", 1).click()
    page.mouse.move(5, 5)

    # The selection is kept.
    assert "“der”" in said(page)
    assert token(page, "queries", 1).get_attribute("aria-pressed") == "true"
    row = page.locator("#table tbody tr").nth(2)
    weights = [percent(CROSS[-1, head, 1, 2]) for head in range(HEADS)]
    cells = row.locator("th, td").all_inner_texts()
    assert cells == [SOURCE[2], *weights]

    page.keyboard.press("Escape")
    assert "Choose a token" in said(page)


def test_everything_works_from_the_keyboard(page):
    page.locator("#layout-rows").focus()
    page.keyboard.press("Space")
    for key, selected in (("Tab", "<s>"), ("ArrowRight", "der"), ("End", ".")):
        page.keyboard.press(key)
        assert f"“{selected}”" in said(page)

    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    # Along the strongest line.
    page.keyboard.press("ArrowDown")
    mean = CROSS[-1, :, 0].mean(axis=0)
    best = int(mean.argmax())
    piece = quoted(SOURCE[best])
    assert f"{piece}, token {best + 1} is attended to by" in said(page)


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

    page.get_by_role("button", name="Figure 4").click()
    assert "Encoder self-attention, layer 2 of 3" in said(page)
    assert page.locator(".panel").count() == 2


def test_kinds_may_have_other_layers_and_heads(visit):
    """A student has fewer decoder layers, and a recurrence in place of heads."""
    cross = softmax(2, 2, len(TARGET), len(SOURCE))
    view = AttentionView(
        sentence="a",
        translation="b",
        source=SOURCE,
        target=TARGET,
        encoder=softmax(3, 4, len(SOURCE), len(SOURCE)),
        decoder=softmax(1, 1, len(TARGET), len(TARGET)),
        cross=cross,
    )
    page = visit(view.page())
    assert "Encoder-decoder attention, layer 2 of 2, all 2 heads" in said(page)

    token(page, "queries", 1).hover()
    mean = cross[-1, :, 1].mean(axis=0)
    best = int(mean.argmax())
    piece = quoted(SOURCE[best])
    assert f"{piece} {100 * mean[best]:.0f}%" in said(page)

    for kind, layer, heads in [
        ("Decoder", "1 of 1", "head 1"),
        ("Encoder", "1 of 3", "mean of 4"),
    ]:
        page.get_by_label(f"{kind} self-attention").focus()
        page.keyboard.press("Space")
        words = said(page)
        assert words.startswith(f"{kind} self-attention, layer {layer}. ")
        assert f"({heads}" in words


def test_words_are_not_markup(page):
    assert page.title().endswith('</script><script>document.title = "broken"</script>')
    assert page.locator("dd").nth(1).inner_text() == "<b>der Hund</b>"
    buttons = page.locator(".keys .token").all_inner_texts()
    expected = [piece.replace("▁", "·") for piece in SOURCE]
    assert [button.strip() for button in buttons] == expected
    assert page.locator("script").count() == 4


def test_a_notebook_s_frame_works_in_its_sandbox(visit):
    notebook = "<!DOCTYPE html><title>notebook</title><body>"
    page = visit(f"{notebook}{embed_in_frame(PAGE)}</body>")
    frame = page.frame_locator("iframe")

    frame.locator(".queries .token").nth(2).hover()
    rest(page)

    assert "Hund" in frame.locator("#description").inner_text()
    assert page.title() == "notebook"
