"""Parsing with a trained model: words in, trees out (section 6.3)."""

import itertools
import math
import pathlib
import reprlib
from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.checks import check_same_length
from jaxformer.errors import UserError
from jaxformer.inference.alignment import GAP_PROBABILITY, align_in_order, word_attention
from jaxformer.inference.translator import Hypothesis, Translator
from jaxformer.search import BeamSearch, Sampling
from jaxformer.tasks.parsing.linearization import XX, delinearize, is_preterminal
from jaxformer.tasks.parsing.trees import Leaf, Tree


class Parser:
    """Parses sentences with a Transformer that was trained on trees.

    ``parser = Parser.load("runs/parsing-small")``, then ``parser.parse([["It", "works", "."]])``
    gives ``[<Tree (S (NP (PRP It)) (VP (VBZ works)) (. .))>]``.

    Departs from the paper: the hypothesis taken is not always the search's best, and parts of
    speech are matched with words by attention.

    Attributes:
      translator: Translates words into linearized trees.
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
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
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

        It is that of the :func:`best_hypothesis`, made whole: :func:`one_tag_a_word` says which
        part of speech is which word's, by the model's attention, and
        :func:`~jaxformer.tasks.parsing.linearization.delinearize` what becomes of brackets.

        Args:
          sentences: Words as treebanks write them: ``trees.split_words``.
          tags: Parts of speech for the trees' words; those that the model predicts where None.
          name: What to call the sentences in messages: a file, say.
          first: Number of the first sentence, in messages.
          report: Called with the number of sentences of each finished batch.

        Returns:
          Trees; None for a sentence without words.

        Raises:
          UserError: A sentence is longer than the model allows or is no list of words, a word has
            a round bracket or white space in it, or there are not tags for each sentence.
        """
        _check_words(sentences)
        if tags is not None:
            check_same_length(tags, sentences, "tags", "sentences")
        for word in itertools.chain(*sentences):
            Leaf(XX, word)  # refuses what no tree could have, before the search
        sources = [" ".join(words) for words in sentences]
        found = self.translator.hypotheses(sources, name=name, first=first, report=report)
        parses = [
            best_hypothesis(beam, len(words)) for beam, words in zip(found, sentences, strict=True)
        ]
        visible = [_visible(words) for words in sentences]
        attention = word_attention(self.translator, visible, [(p.text, p.tokens) for p in parses])
        tags = [None] * len(sentences) if tags is None else tags
        return [
            delinearize(one_tag_a_word(p.text.split(), weights), words, known) if words else None
            for p, weights, words, known in zip(parses, attention, sentences, tags, strict=True)
        ]


def _check_words(sentences: Sequence[Sequence[str]]) -> None:
    if isinstance(sentences, str):
        raise UserError(
            f"sentences: expected a list of sentences, got one string, {reprlib.repr(sentences)}; "
            "put its words into a list of lists: [split_words(text)]"
        )
    for number, words in enumerate(sentences):
        if isinstance(words, str):
            raise UserError(
                f"sentences[{number}]: expected a list of words, got one string, "
                f"{reprlib.repr(words)}; split it: split_words(text)"
            )


def best_hypothesis(beam: Sequence[Hypothesis], words: int) -> Hypothesis:
    """The likeliest hypothesis, if a part of speech too few or too many has a probability of 0.05.

    Some end long before the sentence does, and are likelier than those that go on.

    Args:
      beam: What the search found; an empty hypothesis is returned if that is nothing.
      words: How many the sentence has.
    """

    def log_prob(hypothesis: Hypothesis) -> float:
        found = sum(map(is_preterminal, hypothesis.text.split()))
        return hypothesis.log_prob + math.log(GAP_PROBABILITY) * abs(found - words)

    return max(beam, key=log_prob, default=Hypothesis("", [], 0.0, 0.0))


def one_tag_a_word(tokens: Sequence[str], weights: Float[np.ndarray, "T S"]) -> list[str]:
    """The linearized tree with a part of speech for each word, except for words at the end.

    A decoder skips a word now and then, or says one twice; all words after it would be in the wrong
    place. Its attention shows which word it is at: parts of speech that go with none are left out,
    and a word that goes with none gets ``XX``, behind the word before it.

    >>> weights = np.eye(3)[[0, 0, 2, 2]]  # looks at no brackets, and not at the second word
    >>> " ".join(one_tag_a_word("(NP (DT) (NN) )NP".split(), weights))
    '(NP (DT) XX (NN) )NP'

    Args:
      tokens: As ``linearization.linearize`` writes them, or anything else.
      weights: The attention of each token over the words.
    """
    places = [place for place, token in enumerate(tokens) if is_preterminal(token)]
    word_of = {places[n]: word for word, n in align_in_order(weights[places])}
    result, behind, done = [], 0, 0
    for place, token in enumerate(tokens):
        if not is_preterminal(token):
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
