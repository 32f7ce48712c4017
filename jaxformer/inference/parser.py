"""Parsing with a trained model: words in, trees out (section 6.3)."""

import pathlib
from collections.abc import Callable, Sequence

from jaxformer.config import SearchConfig
from jaxformer.data.trees import Tree, delinearise, linearise
from jaxformer.errors import UserError
from jaxformer.inference.translator import Translator


class Parser:
    """Parses sentences with a Transformer that was trained on trees.

    ``parser = Parser.load("runs/parsing-small")``, then ``parser.parse([["It", "works", "."]])``
    gives ``[<Tree (S (NP (PRP It)) (VP (VBZ works)) (. .))>]``.

    Attributes:
      translator: Translates words into linearised trees.
    """

    def __init__(self, translator: Translator) -> None:
        """Takes a model; :meth:`load` reads one from a workdir.

        Raises:
          UserError: The model was not trained on trees.
        """
        if (corpus := translator.config.data.corpus) != "trees":
            raise UserError(
                f"expected a model that was trained to parse, with data.corpus=trees: got one of "
                f"data.corpus={corpus}; train one with --config=configs/parsing.py"
            )
        self.translator = translator

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str = "auto",
        search: SearchConfig | None = None,
        compute_dtype: str | None = None,
    ) -> "Parser":
        """Reads a model from the workdir of a training run, as :meth:`Translator.load` does.

        Raises:
          UserError: Something is missing or damaged, or the model was not trained on trees.
        """
        return cls(
            Translator.load(workdir, weights=weights, search=search, compute_dtype=compute_dtype)
        )

    def parse(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        tags: Sequence[Sequence[str] | None] | None = None,
        name: str = "sentences",
        first: int = 1,
        report: Callable[[int], None] = lambda finished: None,
    ) -> list[Tree | None]:
        """The best tree over the words of each sentence, in the order given.

        That is the best hypothesis of the beam that is a tree over just as many words. If none is,
        a tree is made of the best one, as :func:`~jaxformer.data.trees.delinearise` says.

        Args:
          sentences: Words as treebanks write them: :func:`~jaxformer.data.trees.split_words`.
          tags: Parts of speech for the trees' words; those that the model predicts where None.
          name: What to call the sentences in messages: a file, say.
          first: Number of the first sentence, in messages.
          report: Called with the number of sentences of each finished batch.

        Returns:
          Trees; None for a sentence without words.

        Raises:
          UserError: A sentence is longer than the model allows, or a word has a round bracket or
            white space in it.
        """
        sources = [" ".join(words) for words in sentences]
        found = self.translator.hypotheses(sources, name=name, first=first, report=report)
        tags = [None] * len(sentences) if tags is None else tags
        return [
            best_tree([hypothesis.text for hypothesis in beam], words, known) if words else None
            for beam, words, known in zip(found, sentences, tags, strict=True)
        ]


def best_tree(parses: Sequence[str], words: Sequence[str], tags: Sequence[str] | None) -> Tree:
    """The tree of the first linearised parse that needs no repair; if all do, of the first.

    >>> best_tree(["(S (PRP) )S", "(S (PRP) (VBZ) )S"], ["It", "works"], tags=None)
    <Tree (S (PRP It) (VBZ works))>

    Args:
      parses: Best first; a search may find none at all.
      words: The sentence, at least one word.
      tags: Parts of speech for the tree's words; those of the parse when None.

    Raises:
      UserError: A word has a round bracket or white space in it.
    """
    tokens = [parse.split(" ") for parse in parses] or [[]]
    whole = (t for t in tokens if linearise(delinearise(t, words), tags=True) == t)
    return delinearise(next(whole, tokens[0]), words, tags)
