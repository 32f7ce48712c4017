"""The page as text: complete, offline, and safe for any sentence."""

import base64
import hashlib
import html.parser
import json
import re

import numpy as np
import pytest

from jaxformer.errors import UserError
from jaxformer.plots.attention_page import AttentionView, embed_in_frame

HOSTILE = [
    "</script><script>alert(1)</script>",
    "<!--<script>",
    "</title><img src=x onerror=alert(1)>",
    "\"double\" 'single' `back` \\",
    "{{data}} {{policy}} \\1",
    "&lt;&amp;&#60;",
    "🙂 👩\u200d👧 مرحبا שלום \u202eabc 你好 \u2028\u2029\u0085",
]


def softmax(*shape):
    weights = np.exp(3 * np.random.default_rng(0).normal(size=shape)).astype(np.float32)
    return weights / weights.sum(axis=-1, keepdims=True)


def page_of(source, target, **settings):
    s, t = len(source), len(target)
    texts = settings.pop("sentence", "a sentence"), settings.pop("translation", "ein Satz")
    weights = softmax(2, 3, s, s), softmax(2, 3, t, t), softmax(2, 3, t, s)
    return AttentionView(*texts, source, target, *weights).page(**settings)


class Reader(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.elements = []
        self.inside = False
        self.feed(page)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs), []))
        self.inside = True

    def handle_endtag(self, tag):
        self.inside = False

    def handle_data(self, data):
        if self.inside:
            self.elements[-1][2].append(data)

    def texts(self, tag):
        return ["".join(text) for name, _, text in self.elements if name == tag]

    @property
    def data(self):
        (found,) = (t for n, a, t in self.elements if n == "script" and "type" in a)
        return json.loads("".join(found))

    @property
    def policy(self):
        """Returns the sources of each directive of the content security policy."""
        (meta,) = (a for n, a, _ in self.elements if n == "meta" and "http-equiv" in a)
        assert meta["http-equiv"] == "Content-Security-Policy"
        directives = [part.split() for part in str(meta["content"]).split(";")]
        return {name: sources for name, *sources in directives}


def digests(parts):
    sums = [base64.b64encode(hashlib.sha256(part.encode()).digest()).decode() for part in parts]
    return [f"'sha256-{digest}'" for digest in sums]


def test_only_the_pages_own_scripts_and_style_may_run():
    text = page_of(["a", "b"], ["c"])
    page = Reader(text)
    code = ["".join(t) for n, a, t in page.elements if n == "script" and "type" not in a]
    assert page.policy == {
        "default-src": ["'none'"],
        "script-src": digests(code),
        "style-src": digests(page.texts("style")),
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
    assert len(code) == 3
    # Nothing is fetched, and no attribute is code.
    for _, attributes, _ in page.elements:
        assert not {"src", "href", "style", "action", "srcset"} & set(attributes)
        assert not [name for name in attributes if name.startswith("on")]
    assert not re.search(r"https?:|//cdn|@import|url\(|fetch\(|XMLHttp|eval\(|innerHTML", text)


@pytest.mark.parametrize("text", HOSTILE)
def test_text_is_escaped(text):
    harmless = Reader(page_of(["a", "b"], ["c"]))
    page = Reader(page_of([text, "b"], [text], sentence=text, translation=text))
    assert page.data["source"] == [text, "b"]
    assert page.data["target"] == [text]
    assert page.texts("title") == [f"Attention: {text}"]
    assert page.texts("dd") == [text, text]
    elements = [(tag, attributes) for tag, attributes, _ in page.elements]
    assert elements == [(tag, attributes) for tag, attributes, _ in harmless.elements]
    assert page.policy == harmless.policy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "self"}, "expected kind to be one of encoder, decoder, cross, got 'self'"),
        ({"layer": 2}, "expected layer to be from 0 to 1, got 2"),
        ({"heads": [0, 3]}, "expected heads to be from 0 to 2, got 3"),
        ({"figure": 9}, "expected figure to be 3, 4, 5 or None, got 9"),
    ],
)
def test_a_selection_that_does_not_exist_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        page_of(["a", "b"], ["c"], **settings)


def test_a_frame_sandboxes_the_page():
    page = page_of(HOSTILE, ["c"])
    ((tag, attributes, text),) = Reader(embed_in_frame(page, height=500)).elements
    assert (tag, text) == ("iframe", [])
    assert attributes["srcdoc"] == page
    assert attributes["sandbox"] == "allow-scripts"  # allow-same-origin would break the isolation.
