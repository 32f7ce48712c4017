"""Interactive HTML page for the attention of every layer, head and kind.

The file works offline. Its content security policy allows only the scripts and the style in the
file, by their SHA-256, and no network access. Words of the sentence are data, never markup.
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

_FINEST = 65535  # Weights are stored as uint16 fractions of this.
_KINDS = ("encoder", "decoder", "cross")
_SCRIPTS = {
    "model": "attention_page_model.js",
    "panels": "attention_page_panels.js",
    "controls": "attention_page.js",
}


@dataclasses.dataclass(frozen=True, repr=False)
class AttentionView:
    """A translation and its attention weights; a notebook displays it as an interactive page.

    Attributes:
      sentence: The source text; the only text of an encoder or a language model.
      translation: The translation, as text; the label of a classifier.
      source: S source tokens, end-of-sentence included; none of a language model.
      target: T decoder input tokens, beginning-of-sentence included; none of an encoder.
      encoder: Encoder self-attention weights, float32; None for a language model.
      decoder: Decoder self-attention weights, float32; None for an encoder.
      cross: Encoder-decoder attention weights, float32; None for a model without both.
    """

    sentence: str
    translation: str
    source: list[str]
    target: list[str]
    encoder: Float[np.ndarray, "L H S S"] | None = None
    decoder: Float[np.ndarray, "L H T T"] | None = None
    cross: Float[np.ndarray, "L H T S"] | None = None

    @property
    def kinds(self) -> list[str]:
        """Kinds of attention, of "encoder", "decoder" and "cross"."""
        return [kind for kind in _KINDS if getattr(self, kind) is not None]

    def weights_of(self, kind: str) -> tuple[list[str], list[str], Float[np.ndarray, "L H Q K"]]:
        """Returns queries, keys and weights of "encoder", "decoder" or "cross" attention.

        Raises:
          UserError: There is no such kind.
        """
        if kind not in self.kinds:
            kinds = ", ".join(self.kinds)
            raise UserError(f"expected kind to be one of {kinds}, got {kind!r:.80}")

        queries = self.source if kind == "encoder" else self.target
        keys = self.target if kind == "decoder" else self.source
        return queries, keys, getattr(self, kind)

    def page(
        self,
        *,
        kind: str | None = None,
        layer: int | None = None,
        heads: Sequence[int] | None = None,
        figures: Mapping[int, PaperFigure] | None = None,
        figure: int | None = None,
    ) -> str:
        """Returns an interactive page, for a UTF-8 file or :func:`embed_in_frame`.

        Args:
          kind: Attention shown first: "encoder", "decoder" or "cross"; None: the last of
            :attr:`kinds`.
          layer: Layer shown first, from 0; None: the last.
          heads: Heads shown first, from 0; None: all.
          figures: Presets for the paper's figures; None: chosen by
            :func:`~jaxformer.plots.paper_figures.paper_figures`.
          figure: Figure of the paper, 3, 4 or 5, whose counterpart is shown first.

        Raises:
          UserError: Weights are not finite, or there is no such kind, layer, head or figure.
        """
        if kind is None:
            kind = self.kinds[-1]
        _, _, weights = self.weights_of(kind)
        layers, all_heads = weights.shape[:2]

        first_layer: int = layers - 1 if layer is None else layer
        first_heads = sorted(range(all_heads) if heads is None else heads)
        _check_indices("layer", [first_layer], layers)
        _check_indices("heads", first_heads, all_heads)
        if figure not in (None, 3, 4, 5):
            raise UserError(f"expected figure to be 3, 4, 5 or None, got {figure!r:.80}")

        if figures is None:
            _, tokens, self_attention = self.weights_of(self.kinds[0])
            figures = paper_figures(self_attention, tokens)

        start = {
            "kind": kind,
            "layer": first_layer,
            "heads": first_heads,
            "figure": figure,
        }
        return self._page(figures, start)

    def _page(self, figures: Mapping[int, PaperFigure], start: Mapping[str, object]) -> str:
        """Returns the page with these presets, which first shows ``start``."""
        sizes = {}
        encoded = {}
        for kind in self.kinds:
            weights = getattr(self, kind)
            sizes[kind] = weights.shape[:2]
            encoded[kind] = _encode_weights(kind, weights)

        presets = {}
        for number, choice in figures.items():
            presets[str(number)] = dataclasses.asdict(choice)

        content = {
            "source": self.source,
            "target": self.target,
            "sizes": sizes,
            "weights": encoded,
            "figures": presets,
            "start": start,
        }

        heading = "Label" if self.translation else ""
        if self.cross is not None:
            heading = "Translation"

        # Texts become markup here, so they are escaped.
        return _fill_template(
            sentence=html.escape(self.sentence),
            translation=html.escape(self.translation),
            given="Source" if self.source else "Text",
            heading=heading,
            data=_escape_json(content),
        )

    def __repr__(self) -> str:
        _, _, weights = self.weights_of(self.kinds[0])
        layers, heads = weights.shape[:2]
        texts = f"{self.sentence!r} -> {self.translation!r}"
        return f"<AttentionView: {texts}, {layers} layers of {heads} heads>"

    def _repr_html_(self) -> str:
        return embed_in_frame(self.page())


def _check_indices(name: str, indices: Sequence[int], count: int) -> None:
    for index in indices:
        if index not in range(count):
            raise UserError(f"expected {name} to be from 0 to {count - 1}, got {index!r:.80}")


def embed_in_frame(page: str, height: int = 760) -> str:
    """Embeds a page in a sandboxed frame, isolated from the notebook around it."""
    return (
        f'<iframe title="Attention" sandbox="allow-scripts" width="100%" height="{height}" '
        f'style="border: 0" srcdoc="{html.escape(page)}"></iframe>'
    )


def _fill_template(**contents: str) -> str:
    """Fills the template; replaced text is not scanned for ``{{name}}`` again."""
    scripts = {name: _read_part(file) for name, file in _SCRIPTS.items()}
    style = _read_part("attention_page.css")

    script_hashes = " ".join(map(source_hash, scripts.values()))
    policy = (
        f"default-src 'none'; script-src {script_hashes}; "
        f"style-src {source_hash(style)}; base-uri 'none'; form-action 'none'"
    )

    parts = {**contents, **scripts, "style": style, "policy": policy}
    template = _read_part("attention_page.html")

    def part(match: re.Match[str]) -> str:
        return parts[match[1]]

    return re.sub(r"\{\{(\w+)\}\}", part, template)


def _read_part(file: str) -> str:
    # Text mode normalizes newlines, as browsers do before they hash a script or style.
    folder = importlib.resources.files("jaxformer.plots")
    return folder.joinpath(file).read_text(encoding="ascii")


def source_hash(part: str) -> str:
    """Returns a script or style as a content security policy names it."""
    digest = hashlib.sha256(part.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


def _encode_weights(kind: str, weights: Float[np.ndarray, "L H Q K"]) -> str:
    """Encodes the weights as Base64 of little-endian uint16, in C order."""
    if not np.isfinite(weights).all():
        raise UserError(
            f"expected finite weights of {kind} attention, got NaN or infinity: training has "
            "diverged or the checkpoint is damaged; use an earlier one with --weights"
        )

    fractions = np.clip(weights, 0, 1)
    integers = np.rint(fractions * _FINEST)
    content = integers.astype("<u2").tobytes()
    return base64.b64encode(content).decode()


def _escape_json(content: object) -> str:
    """Encodes JSON for a script element, with escapes for </script> and comments."""
    compact = (",", ":")
    text = json.dumps(content, separators=compact, allow_nan=False)

    def escape(match: re.Match[str]) -> str:
        return f"\\u{ord(match[0]):04x}"

    return re.sub("[<>&]", escape, text)
