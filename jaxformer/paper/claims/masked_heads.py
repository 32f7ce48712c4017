"""The losses of a trained model without each of its attention heads (Michel et al. 2019)."""

import pathlib

from jaxformer import pretrained
from jaxformer.inference.head_masking import MaskedHeads
from jaxformer.inference.translator_heads import mask_translator_heads
from jaxformer.paper.claims.claim import Claim
from jaxformer.paper.claims.everyday_pairs import PAIRS
from jaxformer.paper.table_commands import markdown_table
from jaxformer.plots.head_grids import draw_head_grids
from jaxformer.search import BeamSearch


def measure() -> MaskedHeads:
    return mask_translator_heads(pretrained.WORKDIR, PAIRS, search=BeamSearch(beam_size=1))


def report(figures: MaskedHeads) -> str:
    whole = figures.whole
    losses: dict[tuple[str, int], list[str]] = {}
    scores: dict[tuple[str, int], list[str]] = {}
    for head, quality in figures.without.items():
        layer = (head.kind, head.layer)
        losses.setdefault(layer, []).append(f"{quality.loss - whole.loss:+.3f}")
        scores.setdefault(layer, []).append(f"{quality.score - whole.score:+.1f}")

    tables = []
    for title, cells in (("change of the loss", losses), ("change of BLEU", scores)):
        numbers = range(1, 1 + max(map(len, cells.values())))
        header = [title, *(f"without head {number}" for number in numbers)]
        rows = [[f"{kind}, layer {layer}", *values] for (kind, layer), values in cells.items()]
        tables.append(markdown_table(header, rows))
    return (
        f"The model that comes with jaxformer, float32, greedy search; {len(PAIRS)} sentences that "
        f"were written for this page. Whole model: loss {whole.loss:.3f} nats a token, BLEU "
        f"{whole.score:.1f}.\n\n" + "\n".join(tables)
    )


def draw(figures: MaskedHeads, path: pathlib.Path) -> None:
    draw_head_grids(figures.losses_gained(), path, label="change of the loss, nats a token")


CLAIM = Claim(
    name="masked_heads",
    place=45,
    says="Every head of a trained model is needed.",
    measure=measure,
    report=report,
    draw=draw,
)
