"""Parsing with a trained model: words in, trees out (section 6.3)."""

import pathlib
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.config import SearchConfig
from jaxformer.data.trees import XX, Tree, delinearise, stands_for_word
from jaxformer.errors import UserError
from jaxformer.inference.alignment import align_in_order, word_attention
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
        """The tree over the words of each sentence, in the order given.

        It is that of the best hypothesis, made whole: :func:`one_tag_a_word` says which part of
        speech is which word's, by the model's attention, and
        :func:`~jaxformer.data.trees.delinearise` what becomes of brackets.

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
        # A search may find nothing at all.
        best = [(beam[0].text, beam[0].tokens) if beam else ("", []) for beam in found]
        attention = word_attention(self.translator, [_visible(words) for words in sentences], best)
        tags = [None] * len(sentences) if tags is None else tags
        return [
            delinearise(one_tag_a_word(parse.split(), weights), words, known) if words else None
            for (parse, _), weights, words, known in zip(
                best, attention, sentences, tags, strict=True
            )
        ]


def one_tag_a_word(tokens: Sequence[str], weights: Float[np.ndarray, "T S"]) -> list[str]:
    """The linearised tree with a part of speech for each word, except for words at the end.

    A decoder skips a word now and then, or says one twice; all words after it would be in the wrong
    place. Its attention shows which word it is at: parts of speech that go with none are left out,
    and a word that goes with none gets ``XX``, behind the word before it.

    >>> weights = np.eye(3)[[0, 0, 2, 2]]  # looks at no brackets, and not at the second word
    >>> " ".join(one_tag_a_word("(NP (DT) (NN) )NP".split(), weights))
    '(NP (DT) XX (NN) )NP'

    Args:
      tokens: As :func:`~jaxformer.data.trees.linearise` writes them, or anything else.
      weights: The attention of each token over the words.
    """
    places = [place for place, token in enumerate(tokens) if stands_for_word(token)]
    word_of = {places[n]: word for word, n in align_in_order(weights[places])}
    result, behind, done = [], 0, 0
    for place, token in enumerate(tokens):
        if not stands_for_word(token):
            result.append(token)
        elif place in word_of:
            at = behind or len(result)
            result[at:at] = [XX] * (word_of[place] - done)
            result.append(token)
            behind, done = len(result), word_of[place] + 1
    return result


def _visible(words: Sequence[str]) -> str:
    """The words, without the white space that they may have inside, of which none is ASCII."""
    return " ".join("".join(word.split()) or "\ufffd" for word in words)
