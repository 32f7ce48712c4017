"""Constituency parsing (section 6.3): translation of words into trees, validated by EVALB's F1."""

from collections.abc import Sequence

from jaxformer.config import Config
from jaxformer.data.corpus import Corpus
from jaxformer.evaluation import evalb
from jaxformer.inference.translator import Translator
from jaxformer.kinds.parsing import PARSING
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.dataset import open_dataset
from jaxformer.tasks.parsing.linearization import delinearize
from jaxformer.tasks.parsing.parser import Parser
from jaxformer.tasks.parsing.treebank import TreesCorpus
from jaxformer.tasks.parsing.trees import Tree
from jaxformer.tasks.translation import Pairs, Report, Translation, percentage_equal


class Parsing(Translation):
    """Trains a Transformer on words and trees; validates with loss, perplexity and F1."""

    kind = PARSING

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "Parsing":
        return cls(config, open_dataset(config, folder, corpus or TreesCorpus()))

    def _log_formats(self) -> dict[str, str]:
        return {
            "f1": f"F1 {{:.2f}}{self._subset_note()}",
            "exact_match": "exact {:.1f}%",
        }

    def _name_sides(self, pair: tuple[str, str]) -> list[tuple[str, str]]:
        [tree] = _trees([pair])
        return [("tree", str(tree))]

    def decode(
        self,
        translator: Translator,
        pairs: Pairs,
        report: Report,
    ) -> list[str]:
        """Parses with gold parts of speech, as ``jaxformer parse --trees`` does."""
        gold = _trees(pairs)
        words = [tree.words() for tree in gold]
        tags = [tree.tags() for tree in gold]

        parser = Parser(translator)
        parses = parser.parse(words, tags=tags, name="validation", report=report)
        return list(map(str, parses))

    def score_pairs(self, translations: Sequence[str], pairs: Pairs) -> dict[str, float]:
        references = list(map(str, _trees(pairs)))
        evaluation = evalb.score(references, translations, evalb.COLLINS)
        return {
            "f1": evaluation.all.f1,
            "exact_match": percentage_equal(translations, references),
        }


def _trees(pairs: Pairs) -> list[Tree]:
    trees = []
    for source, target in pairs:
        words = source.split(" ")
        tokens = target.split(" ")
        trees.append(delinearize(tokens, words))
    return trees
