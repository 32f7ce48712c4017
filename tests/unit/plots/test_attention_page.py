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
    rng = np.random.default_rng(0)
    scores = 3 * rng.normal(size=shape)
    odds = np.exp(scores).astype(np.float32)
    return odds / odds.sum(axis=-1, keepdims=True)


def page_of(source, target, *, sentence="a sentence", translation="ein Satz", **settings):
    s = len(source)
    t = len(target)
    view = AttentionView(
        sentence,
        translation,
        source,
        target,
        encoder=softmax(2, 3, s, s),
        decoder=softmax(2, 3, t, t),
        cross=softmax(2, 3, t, s),
    )
    return view.page(**settings)


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
    def scripts(self):
        """Returns the attributes and the text of each script."""
        return [
            (attributes, "".join(text))
            for name, attributes, text in self.elements
            if name == "script"
        ]

    @property
    def data(self):
        (found,) = (text for attributes, text in self.scripts if "type" in attributes)
        return json.loads(found)

    @property
    def code(self):
        return [text for attributes, text in self.scripts if "type" not in attributes]

    @property
    def policy(self):
        """Returns the sources of each directive of the content security policy."""
        (meta,) = (a for name, a, _ in self.elements if name == "meta" and "http-equiv" in a)
        assert meta["http-equiv"] == "Content-Security-Policy"

        policy = str(meta["content"])
        directives = [part.split() for part in policy.split(";")]
        return {name: sources for name, *sources in directives}


def digests(parts):
    found = []
    for part in parts:
        digest = hashlib.sha256(part.encode()).digest()
        found.append(f"'sha256-{base64.b64encode(digest).decode()}'")
    return found


def test_only_the_pages_own_scripts_and_style_may_run():
    text = page_of(["a", "b"], ["c"])
    page = Reader(text)

    assert len(page.code) == 3
    assert page.policy == {
        "default-src": ["'none'"],
        "script-src": digests(page.code),
        "style-src": digests(page.texts("style")),
        "base-uri": ["'none'"],
        "form-action": ["'none'"],
    }
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

    # The text adds no element and no attribute.
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

    (frame,) = Reader(embed_in_frame(page, height=500)).elements

    tag, attributes, text = frame
    assert tag == "iframe"
    assert text == []
    assert attributes["srcdoc"] == page
    # allow-same-origin would break the isolation.
    assert attributes["sandbox"] == "allow-scripts"
