"""Parsing with a trained model: words in, trees out (section 6.3)."""

import pathlib
from collections.abc import Callable, Sequence

from jaxformer.config import SearchConfig
from jaxformer.data.trees import Tree, delinearise
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

        Whatever the model writes, a tree is made of it, as
        :func:`~jaxformer.data.trees.delinearise` says.

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
        parses = self.translator.translate(sources, name=name, first=first, report=report)
        tags = [None] * len(sentences) if tags is None else tags
        return [
            delinearise(parse.split(" "), words, known) if words else None
            for parse, words, known in zip(parses, sentences, tags, strict=True)
        ]
