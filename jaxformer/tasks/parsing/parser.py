"""Parses with a trained model (section 6.3)."""

import math
import pathlib
import reprlib
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.checks import check_same_length
from jaxformer.config import check_kind
from jaxformer.data.tokenizer import split_spaces
from jaxformer.errors import UserError
from jaxformer.inference.alignment import GAP_PROBABILITY, align_in_order, word_attention
from jaxformer.inference.hypotheses import Hypothesis
from jaxformer.inference.translator import Translator
from jaxformer.kinds.parsing import PARSING
from jaxformer.search import BeamSearch, Sampling
from jaxformer.tasks.parsing.linearization import XX, delinearize, is_preterminal
from jaxformer.tasks.parsing.trees import Leaf, Tree


class Parser:
    """Parses sentences with a Transformer that was trained on trees.

    >>> parser = Parser.load("runs/parsing-small")  # doctest: +SKIP
    >>> parser.parse([["It", "works", "."]])  # doctest: +SKIP
    [<Tree (S (NP (PRP It)) (VP (VBZ works)) (. .))>]

    Departs from the paper: ``best_hypothesis`` may differ from the best hypothesis of the search,
    and parts of speech are aligned with words by attention.

    Attributes:
      translator: Translates words into linearized trees.
    """

    def __init__(self, translator: Translator) -> None:
        """Takes a model that was trained to parse; :meth:`load` reads a model from a workdir."""
        check_kind(translator.config, PARSING)
        self.translator = translator

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
        shortlist: bool = False,
    ) -> "Parser":
        """Reads a model from a workdir; arguments and errors as for ``Translator.load``."""
        translator = Translator.load(
            workdir,
            weights=weights,
            search=search,
            compute_dtype=compute_dtype,
            shortlist=shortlist,
        )
        return cls(translator)

    def parse(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        tags: Sequence[Sequence[str] | None] | None = None,
        name: str = "sentences",
        first: int = 1,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[Tree | None]:
        """Returns the tree over the words of each sentence, in the order given.

        The tree is the :func:`best_hypothesis`, repaired: :func:`one_tag_per_word` aligns parts of
        speech with words by the model's attention, and :func:`delinearize` completes the brackets.

        Args:
          sentences: Words in the treebank's notation; see
            :func:`~jaxformer.tasks.parsing.trees.split_words`.
          tags: Parts of speech of each sentence; None: predicted by the model.
          name: Name of the sentences in error messages, such as a file name.
          first: Number of the first sentence in error messages.
          report: Called with the number of sentences in each finished batch.

        Returns:
          Trees; None for a sentence without words.

        Raises:
          UserError: A sentence is longer than the model allows or not a list of words, a word
            contains a round bracket or white space, or the number of tags differs.
        """
        _check_words(sentences)
        if tags is None:
            tags = [None] * len(sentences)
        check_same_length(tags, sentences, "tags", "sentences")

        sources = [" ".join(words) for words in sentences]
        beams = self.translator.hypotheses(sources, name=name, first=first, report=report)
        parses = [
            best_hypothesis(beam, len(words)) for beam, words in zip(beams, sentences, strict=True)
        ]

        targets = [(parse.text, parse.tokens) for parse in parses]
        attention = word_attention(self.translator, sources, targets)

        trees: list[Tree | None] = []
        for parse, weights, words, given in zip(parses, attention, sentences, tags, strict=True):
            if not words:
                trees.append(None)
                continue
            tokens = one_tag_per_word(split_spaces(parse.text), weights)
            trees.append(delinearize(tokens, words, given))
        return trees


def _check_words(sentences: Sequence[Sequence[str]]) -> None:
    for number, words in enumerate(sentences):
        if isinstance(words, str):
            raise UserError(
                f"sentences[{number}]: expected a list of words, got one string, "
                f"{reprlib.repr(words)}; split it: split_words(text)"
            )

        for word in words:
            Leaf(XX, word)  # Raises an error for invalid words before the search.


def best_hypothesis(beam: Sequence[Hypothesis], words: int) -> Hypothesis:
    """Returns the likeliest hypothesis, with a penalty for a wrong number of parts of speech.

    Each missing or surplus part of speech multiplies the probability by 0.05. Without the penalty,
    hypotheses that end long before the sentence may be the likeliest. For an empty beam, an empty
    hypothesis is returned.

    Args:
      beam: Hypotheses of the search.
      words: Number of words of the sentence.
    """

    def penalized_log_prob(hypothesis: Hypothesis) -> float:
        found = sum(map(is_preterminal, hypothesis.text.split()))
        penalty = math.log(GAP_PROBABILITY) * abs(found - words)
        return hypothesis.log_prob + penalty

    empty = Hypothesis("", [], 0.0, 0.0)
    return max(beam, key=penalized_log_prob, default=empty)


def one_tag_per_word(tokens: Sequence[str], weights: Float[np.ndarray, "T S"]) -> list[str]:
    """Returns tokens with exactly one part of speech per word, except for trailing words.

    A decoder sometimes skips or repeats a word, which would shift all words after it. Its attention
    shows the word of each part of speech (:func:`~jaxformer.inference.alignment.align_in_order`).
    Unaligned parts of speech are removed. An unaligned word gets ``XX`` after the previous one.

    >>> weights = np.eye(3)[[0, 0, 2, 2]]  # no token attends to the second word
    >>> " ".join(one_tag_per_word("(NP (DT) (NN) )NP".split(), weights))
    '(NP (DT) XX (NN) )NP'
    """
    positions = [n for n, token in enumerate(tokens) if is_preterminal(token)]
    aligned = align_in_order(weights[positions])
    word_of = {positions[n]: word for word, n in aligned}

    result = []
    after_word = 0  # the index in the result after the last word; 0 before the first
    done = 0  # the number of words in the result
    for position, token in enumerate(tokens):
        if not is_preterminal(token):
            result.append(token)
            continue
        if position not in word_of:
            continue

        word = word_of[position]
        unaligned = [XX] * (word - done)
        start = after_word or len(result)
        result[start:start] = unaligned
        result.append(token)
        after_word = len(result)
        done = word + 1

    return result
