"""Attention as one HTML file: every layer, head and kind, to be explored in a browser.

The file needs no network and may not use one: its content security policy allows the scripts and
the style that are in it, known by their SHA-256, and nothing else. Words of the sentence are data,
never markup.
"""

import base64
import dataclasses
import hashlib
import html
import importlib.resources
import json
import re
from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.errors import UserError
from jaxformer.plots.paper_figures import PaperFigure, paper_figures

_FINEST = 65535  # weights are written as fractions of this, in 16 bits
_SCRIPTS = {
    "model": "attention_page_model.js",
    "panels": "attention_page_panels.js",
    "controls": "attention_page.js",
}


def attention_page(
    source: Sequence[str],
    target: Sequence[str],
    encoder: Float[np.ndarray, "L H S S"],
    decoder: Float[np.ndarray, "L H T T"],
    cross: Float[np.ndarray, "L H T S"],
    *,
    sentence: str,
    translation: str,
    kind: str = "cross",
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    figures: Mapping[int, PaperFigure] | None = None,
    figure: int | None = None,
) -> str:
    """The page: to be written to a file in UTF-8, or put in a frame by :func:`in_frame`.

    Args:
      source: The encoder's tokens, end of sentence included.
      target: The tokens that the decoder was fed.
      encoder: Weights of encoder self-attention.
      decoder: Weights of decoder self-attention.
      cross: Weights of encoder-decoder attention.
      sentence: The source text, for the heading.
      translation: Its translation, for the heading.
      kind: What to show first: "encoder", "decoder" or "cross".
      layer: Its layer, from 0; None: the last.
      heads: Its heads, from 0; None: all.
      figures: What the presets show; None: what :func:`paper_figures` chooses.
      figure: Show the counterpart of this figure of the paper first, 3, 4 or 5.

    Raises:
      UserError: Weights are not finite.
    """
    kinds = {"encoder": encoder, "decoder": decoder, "cross": cross}
    for name, weights in kinds.items():
        if not np.isfinite(weights).all():
            raise UserError(
                f"expected finite weights of {name} attention, got NaN or infinity: training has "
                "diverged or the checkpoint is damaged; use an earlier one with --weights"
            )
    layers, all_heads = encoder.shape[:2]
    figures = paper_figures(encoder, source) if figures is None else figures
    content = {
        "source": list(source),
        "target": list(target),
        "layers": layers,
        "heads": all_heads,
        "weights": {name: _packed(weights) for name, weights in kinds.items()},
        "figures": {str(n): dataclasses.asdict(choice) for n, choice in figures.items()},
        "start": {
            "kind": kind,
            "layer": layers - 1 if layer is None else layer,
            "heads": sorted(range(all_heads) if heads is None else heads),
            "figure": figure,
        },
    }
    return _filled(
        title=_text(sentence),
        sentence=_text(sentence),
        translation=_text(translation),
        data=_json(content),
    )


def in_frame(page: str, height: int = 760) -> str:
    """The page as a sandboxed frame of HTML, for notebooks: it cannot touch the page around it.

    Args:
      page: Of :func:`attention_page`.
      height: In pixels.
    """
    return (
        f'<iframe title="Attention" sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border: 0" srcdoc="{html.escape(page)}"></iframe>'
    )


def _filled(**contents: str) -> str:
    """The template with its parts, each ``{{name}}`` once; what is put in is not read again."""
    scripts = {name: _part(file) for name, file in _SCRIPTS.items()}
    style = _part("attention_page.css")
    policy = (
        f"default-src 'none'; script-src {' '.join(map(_digest, scripts.values()))}; "
        f"style-src {_digest(style)}; base-uri 'none'; form-action 'none'"
    )
    parts = {**contents, **scripts, "style": style, "policy": policy}
    template = _part("attention_page.html")
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def _part(file: str) -> str:
    # As text: newlines are what the browser's hash of the part has, whatever the checkout's are.
    return importlib.resources.files("jaxformer.plots").joinpath(file).read_text(encoding="ascii")


def _digest(part: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()}'"


def _packed(weights: Float[np.ndarray, "L H Q K"]) -> str:
    """Base64 of the weights as little-endian uint16, in C order."""
    fractions = np.rint(np.clip(weights, 0, 1) * _FINEST).astype("<u2")
    return base64.b64encode(fractions.tobytes()).decode()


def _json(content: object) -> str:
    """JSON that no HTML parser takes for markup: it ends at no </script> and opens no comment."""
    escapes = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
    text = json.dumps(content, separators=(",", ":"), allow_nan=False)
    return re.sub("[<>&]", lambda match: escapes[match[0]], text)


def _text(text: str) -> str:
    """The text as HTML; half a surrogate pair, which is no text, as U+FFFD."""
    return html.escape(text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
