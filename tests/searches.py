"""Searches with models that no workdir has."""

from jaxformer.inference.decoder import Decoder
from jaxformer.inference.hypotheses import Decoded
from jaxformer.inference.stages import Source, Stages


def search_batches(models, search, sources, prefixes=None, *, first=0, report=lambda _: None):
    """Returns the hypotheses of each source, in token ids, as a translator does."""
    decoder = Decoder(models, search, Stages())
    items = []
    for number, source in enumerate(sources):
        prefix = None if prefixes is None else prefixes[number]
        items.append(Source(source, first + number, prefix))

    found = decoder.decode(items, report=report)
    nothing = Decoded([], [], [])
    return [found.get(number, nothing) for number in range(len(items))]
