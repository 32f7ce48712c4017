"""Constituency parsing (section 6.3): translation of words into trees, validated by EVALB's F1."""

from collections.abc import Callable

from jax.sharding import Mesh
from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.corpus import Corpus
from jaxformer.evaluation import evalb
from jaxformer.inference.translator import Translator
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.parsing.linearization import delinearize
from jaxformer.tasks.parsing.parser import Parser
from jaxformer.tasks.parsing.treebank import TreesCorpus
from jaxformer.tasks.translation import Translation, percentage_equal


class Parsing(Translation):
    """Training of a Transformer on words and trees; validation with loss, perplexity and F1."""

    @classmethod
    def open(cls, config: Config, folder: Workdir, corpus: Corpus | None = None) -> "Parsing":
        """Opens the treebank of a config, or another corpus of words and trees."""
        return cls(config, open_dataset(config, folder, corpus or TreesCorpus()))

    def _log_formats(self) -> dict[str, str]:
        return {"f1": f"F1 {{:.2f}}{self._of_sentences()}", "exact_match": "exact {:.1f}%"}

    def score_decoded(
        self, params: PyTree, mesh: Mesh, check_stop: Callable[[], None]
    ) -> dict[str, float]:
        """Scores trees with gold parts of speech, as ``jaxformer parse --trees`` produces them."""
        gold = [
            delinearize(target.split(" "), source.split(" "))
            for source, target in self._data.valid_text
        ]

        def parse(
            translator: Translator, mine: slice, report: Callable[[int], object]
        ) -> list[str]:
            words = [tree.words() for tree in gold[mine]]
            tags = [tree.tags() for tree in gold[mine]]
            parser = Parser(translator)
            return list(map(str, parser.parse(words, tags=tags, name="validation", report=report)))

        references, parses = list(map(str, gold)), self._decode(params, mesh, parse, check_stop)
        return {
            "f1": evalb.score(references, parses, evalb.COLLINS).all.f1,
            "exact_match": percentage_equal(parses, references),
        }
