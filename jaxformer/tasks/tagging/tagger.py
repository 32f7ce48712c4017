"""Tags of words with a trained model."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxformer.checks import check_texts, check_tokens
from jaxformer.data.encoded_text import EncodedText
from jaxformer.data.huggingface_tokenizer import AlignedTokens, HuggingFaceTokenizer
from jaxformer.errors import prefix_errors
from jaxformer.evaluation.entity_scores import OUTSIDE, find_entities
from jaxformer.inference.encoder_outputs import encoder_outputs
from jaxformer.inference.weights import EncoderPredictor
from jaxformer.kinds.annotated_texts import TAGGING
from jaxformer.models.architecture import Architecture


class TaggedWord(NamedTuple):
    """A word with its most probable tag.

    Attributes:
      word: The word.
      tag: The tag; "O" for a word that the tokenizer removes, such as a control character.
      probability: Probability of the tag.
      start: Index of the first character in the text, or of the word in a list of words.
      end: Index of the character after the last one, or of the next word.
    """

    word: str
    tag: str
    probability: float
    start: int
    end: int


class Entity(NamedTuple):
    """An entity, such as the name of a person.

    Attributes:
      text: The entity.
      type: Its type, such as "PER".
      probability: Mean probability of the tags of its words.
      start: Index of its first character in the text.
      end: Index of the character after its last one.
    """

    text: str
    type: str
    probability: float
    start: int
    end: int


class _Words(NamedTuple):
    """The words of a text, and the first token of each; None for a word without tokens."""

    words: list[TaggedWord]  # with blank tags
    first_tokens: list[int | None]


class Tagger(EncoderPredictor):
    """Tags words with the model of a workdir.

    >>> tagger = Tagger.load("runs/conll")  # doctest: +SKIP
    >>> tagger.entities("Ada Lovelace lived in London.")  # doctest: +SKIP
    [Entity(text='Ada Lovelace', type='PER', probability=0.99, start=0, end=12), ...]

    Attributes:
      config: The config of the run.
      params: Parameters.
      tokenizer: The tokenizer that the model was trained with.
      labels: All tags.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (TAGGING,)
    tokenizer: HuggingFaceTokenizer

    @property
    def labels(self) -> list[str]:
        return self.tokenizer.symbols

    def _describe_outputs(self) -> str:
        return f"tags {' '.join(self.labels[:5])}"

    def tag(
        self,
        texts: Sequence[str],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[list[TaggedWord]]:
        """Returns the words of each text with their tags.

        Words are the tokenizer's: BERT separates punctuation. The tag of a word is the tag of its
        first token.

        Args:
          texts: Texts.
          report: Called with the number of texts after each batch.

        Raises:
          UserError: A text is longer than ``model.max_length`` tokens.
        """
        texts = check_texts(texts, "texts")
        aligned = [self.align(text, f"texts:{n}") for n, text in enumerate(texts, start=1)]
        words = [_words_of(text, own) for text, own in zip(texts, aligned, strict=True)]
        return self._tag(aligned, words, report)

    def tag_words(
        self,
        sentences: Sequence[Sequence[str]],
        *,
        report: Callable[[int], object] = lambda _: None,
    ) -> list[list[TaggedWord]]:
        """Returns the tags of given words; otherwise as :meth:`tag`."""
        aligned = []
        words = []
        for number, sentence in enumerate(sentences, start=1):
            place = f"sentences:{number}"
            sentence = check_texts(sentence, place)
            with prefix_errors(place):
                own = self.tokenizer.align_words(sentence)
            self._check_length(own, place)

            aligned.append(own)
            words.append(_given_words(sentence, own))

        return self._tag(aligned, words, report)

    def entities(self, text: str) -> list[Entity]:
        """Returns the entities of a text, in their order; tags are such as B-PER, I-PER and O."""
        [words] = self.tag([text])
        return join_entities(text, words)

    def align(self, text: str, place: str) -> AlignedTokens:
        """Returns the tokens of a text; refuses a text that is too long."""
        with prefix_errors(place):
            aligned = self.tokenizer.align(text)
        self._check_length(aligned, place)
        return aligned

    def _check_length(self, aligned: AlignedTokens, place: str) -> None:
        check_tokens(
            aligned.ids,
            self.tokenizer.vocab_size,
            place,
            longest=self.config.model.max_length,
        )

    def _tag(
        self,
        aligned: Sequence[AlignedTokens],
        words: Sequence[_Words],
        report: Callable[[int], object],
    ) -> list[list[TaggedWord]]:
        model: Any = self.config.model
        texts = [EncodedText.of(own.ids, own.types, model.num_token_types) for own in aligned]
        outputs = encoder_outputs(
            _tag_probabilities,
            model,
            self.params,
            texts,
            report=report,
        )

        results = []
        for probabilities, own in zip(outputs, words, strict=True):
            results.append(self._choose_tags(own, probabilities))
        return results

    def _choose_tags(
        self,
        words: _Words,
        probabilities: Float[np.ndarray, "T N"],
    ) -> list[TaggedWord]:
        """Returns words with the most probable tags of their first tokens."""
        tagged = []
        for word, token in zip(words.words, words.first_tokens, strict=True):
            if token is not None:
                best = int(probabilities[token].argmax())
                probability = float(probabilities[token, best])
                word = word._replace(tag=self.labels[best], probability=probability)
            tagged.append(word)
        return tagged


def join_entities(text: str, words: Sequence[TaggedWord]) -> list[Entity]:
    """Returns the entities of the tagged words of a text."""
    found = []
    tags = [word.tag for word in words]
    for span in find_entities(tags):
        own = words[span.start : span.end]
        start = own[0].start
        end = own[-1].end
        probabilities = [word.probability for word in own]

        entity = Entity(
            text=text[start:end],
            type=span.type,
            probability=float(np.mean(probabilities)),
            start=start,
            end=end,
        )
        found.append(entity)
    return found


def first_tokens(aligned: AlignedTokens) -> dict[int, int]:
    """Returns the first token of each word that has tokens, by the number of the word."""
    found: dict[int, int] = {}
    for token, word in enumerate(aligned.words):
        if word is not None:
            found.setdefault(word, token)
    return found


def _words_of(text: str, aligned: AlignedTokens) -> _Words:
    """Returns the words that a tokenizer finds in a text."""
    spans: dict[int, tuple[int, int]] = {}
    for word, (start, end) in zip(aligned.words, aligned.spans, strict=True):
        if word is not None:
            first, _ = spans.get(word, (start, end))
            spans[word] = (first, end)

    words = [
        TaggedWord(text[start:end], OUTSIDE, probability=0.0, start=start, end=end)
        for start, end in spans.values()
    ]
    firsts = first_tokens(aligned)
    return _Words(words, [firsts[word] for word in spans])


def _given_words(sentence: Sequence[str], aligned: AlignedTokens) -> _Words:
    """Returns the words of a list, which have their numbers for places."""
    tokens_of_words = first_tokens(aligned)
    words = []
    firsts = []
    for number, text in enumerate(sentence):
        word = TaggedWord(text, OUTSIDE, probability=0.0, start=number, end=number + 1)
        words.append(word)
        firsts.append(tokens_of_words.get(number))
    return _Words(words, firsts)


@functools.partial(jax.jit, static_argnums=0)
def _tag_probabilities(
    config: Architecture,
    params: PyTree,
    tokens: Int[Array, "B T"],
    types: Int[Array, "B T"],
) -> Float[Array, "B T N"]:
    model = TAGGING.build(config)
    logits: Any = model.apply(
        {"params": params},
        tokens,
        token_types=types,
        method="tag_logits",
    )
    return jax.nn.softmax(logits)
