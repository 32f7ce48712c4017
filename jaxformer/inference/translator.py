"""Translation of text with a trained model (section 6.1)."""

import itertools
import pathlib
from collections.abc import Callable, Iterable, Sequence
from typing import SupportsIndex

from jaxtyping import PyTree

from jaxformer import pretrained
from jaxformer.checks import check_same_length, check_texts, check_tokens, check_unicode
from jaxformer.config import Config, DataConfig
from jaxformer.data.characters import replace_controls
from jaxformer.data.sentences import join_sentences, split_sentences
from jaxformer.data.tokenizer import EOS, Vocabulary
from jaxformer.errors import UserError, prefix_errors
from jaxformer.files import model_path
from jaxformer.inference.autoregressive import AutoregressivePredictor
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.hypotheses import Decoded, Hypothesis, with_texts
from jaxformer.inference.shortlist import Shortlist
from jaxformer.inference.stages import Source, Stages, all_shapes
from jaxformer.kinds.parsing import PARSING
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.runs.workdir import Workdir
from jaxformer.search import BeamSearch, Constraint, Sampling


class Translator(AutoregressivePredictor):
    """Translates sentences with a trained encoder-decoder.

    >>> Translator.load().translate(["Where is the station?"])
    ['Wo ist der Bahnhof?']

    Attributes:
      config: The config of the first model; ``config.search`` is the search of the ensemble.
      models: The model, or each member of an ensemble, with its parameters, cast or quantized for
        decoding. A contrast has ``models.experts`` and ``models.amateurs``.
      tokenizer: The tokenizer that the models were trained with.
      weights: Description of the checkpoints, such as "step 2000".
    """

    kinds = (TRANSLATION, PARSING)

    def __init__(
        self,
        config: Config,
        params: PyTree,
        tokenizer: Vocabulary,
        weights: str = "given",
    ) -> None:
        """Initializes a translator; :meth:`load` reads all arguments from a workdir.

        Enables JAX's persistent compilation cache, in ``$JAXFORMER_CACHE`` unless JAX is already
        configured with another directory.

        Raises:
          UserError: The vocabularies of tokenizer and model differ, or an argument is malformed.
        """
        super().__init__(config, params, tokenizer, weights)
        self.shortlist: Shortlist | None = None

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path = pretrained.WORKDIR,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
        shortlist: bool = False,
    ) -> "Translator":
        """Reads config, tokenizer and parameters from the workdir of a training run.

        Args:
          workdir: The run directory, or the address of a model on the Hugging Face Hub, such as
            "hf://OWNER/NAME"; by default the English-German model that comes with the package.
          weights: Checkpoint; see :func:`~jaxformer.load_model`. Several, separated by commas, form
            an ensemble.
          search: Replaces the run's search.
          compute_dtype: Replaces the run's compute dtype: "float32", "bfloat16", "float16", or
            "int8", which quantizes the parameters.
          shortlist: Generate only tokens of the workdir's shortlist, which is faster. Translations
            then depend on their batch, and constraints and prefixes are refused.

        Raises:
          UserError: A file is missing or damaged, or there are no such weights.
        """
        translator = super().load(
            workdir,
            weights=weights,
            search=search,
            compute_dtype=compute_dtype,
        )
        if shortlist:
            translator.load_shortlist(workdir)
        return translator

    def load_shortlist(self, workdir: str | pathlib.Path) -> None:
        """Makes the translator generate only tokens of a workdir's shortlist."""
        folder = Workdir(model_path(workdir))
        _, target_size = self.vocab_sizes
        self.shortlist = Shortlist.load(folder.path, target_size)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraint] = (),
        name: str = "sentences",
        first: int = 1,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[str]:
        """Returns the best translation of every sentence, in the order given.

        Takes the arguments of :meth:`hypotheses` and raises the same errors. The translation of a
        sentence without hypotheses, such as a blank one, is empty.
        """
        hypotheses = self.hypotheses(
            sentences,
            n_best=1,
            prefixes=prefixes,
            constraints=constraints,
            name=name,
            first=first,
            report=report,
        )

        # A blank sentence has no hypotheses.
        def text_of(n_best: list[Hypothesis]) -> str:
            return n_best[0].text if n_best else ""

        return [text_of(n_best) for n_best in hypotheses]

    def translate_paragraphs(self, paragraphs: Sequence[str]) -> list[str]:
        """Returns the best translation of every paragraph, sentence by sentence.

        >>> Translator.load().translate_paragraphs(["Where is the station? I am tired."])
        ['Wo ist der Bahnhof? Ich bin müde.']

        Raises:
          UserError: As :meth:`split_sentences` and :meth:`hypotheses` do.
        """
        texts = check_texts(paragraphs, "paragraphs")
        split = [self.split_sentences(text, f"paragraphs:{n}") for n, text in enumerate(texts, 1)]
        translations = iter(self.translate([each for sentences in split for each in sentences]))

        joined = []
        for sentences in split:
            own = itertools.islice(translations, len(sentences))
            joined.append(self.join_sentences(own))
        return joined

    def split_sentences(self, paragraph: str, place: str = "paragraph") -> list[str]:
        """Returns the sentences of a paragraph, by the rules of the source language.

        Error messages begin with ``place``.

        Raises:
          UserError: The package sentencex is missing, the model is not a translator from one
            language to another, or the text is not valid Unicode.
        """
        source, _ = self._language_pair()
        return split_sentences(paragraph, source, place)

    def join_sentences(self, translations: Iterable[str]) -> str:
        """Returns the paragraph of some translations; Chinese and Japanese have no spaces."""
        _, target = self._language_pair()
        return join_sentences(translations, target)

    def _language_pair(self) -> tuple[str, str]:
        """Returns the codes of the source and the target language."""
        data = self.config.data
        if self.config.kind is not TRANSLATION or not isinstance(data, DataConfig):
            raise UserError(
                f"expected a translator to split text for, got {self.config.kind.description}"
            )
        if self.tokenizer.language_codes:
            raise UserError(
                "expected a model with one target language to split text for, got one whose "
                "sentences begin with a code such as "
                f"{next(iter(self.tokenizer.language_codes))}; write a sentence on each line"
            )
        return data.source_language, data.target_language

    def hypotheses(
        self,
        sentences: Sequence[str],
        *,
        n_best: int = 0,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraint] = (),
        name: str = "sentences",
        first: int = 1,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """Returns the n-best list of every sentence, best first, in the order given.

        Sentences are sorted by length and decoded in batches of a few fixed shapes. Results do not
        depend on the batching. A blank sentence has no hypotheses.

        Args:
          sentences: Source sentences.
          n_best: Number of hypotheses; 0 for all of the search. Few are found sooner than all.
          prefixes: Text that each translation must start with, cut at the maximum length.
          constraints: Constraints in addition to ``config.search.constraints``; see
            :mod:`jaxformer.search.constraints`.
          name: Name of the sentences in error messages, such as a file name.
          first: Number of the first sentence. It appears in messages and in the constraints'
            ``context.sentence_ids``, and samples depend on it.
          report: Called with the number of sentences in each finished batch.

        Raises:
          UserError: A sentence is longer than the model allows, ``sentences`` is a single string,
            or the number of prefixes differs. Raised before any translation.
        """
        sentences = check_texts(sentences, "sentences")
        sources = [self.source_ids(text, f"{name}:{n}") for n, text in enumerate(sentences, first)]

        target_prefixes = None
        if prefixes is not None:
            prefixes = check_texts(prefixes, "prefixes")
            check_same_length(
                prefixes,
                sentences,
                name="prefixes",
                other="sentences",
            )

            for n, text in enumerate(prefixes, first):
                check_unicode(text, f"prefix {n}")
            target_prefixes = [self.tokenizer.encode_target(text) for text in prefixes]

        found = self.translate_ids(
            sources,
            target_prefixes,
            n_best=n_best,
            constraints=constraints,
            first=first,
            report=report,
        )
        return [self.hypotheses_of(decoded) for decoded in found]

    def hypotheses_of(self, decoded: Decoded) -> list[Hypothesis]:
        """Returns the hypotheses of one sentence with their texts."""
        return with_texts(decoded, self.detokenize)

    @property
    def vocab_sizes(self) -> tuple[int, int]:
        """Numbers of source and target token ids that all models have."""
        return self.models.vocab_size, self.models.output_size

    def warm_up(
        self,
        *,
        sentences: int = 1,
        tokens: int = 64,
        prefixes: bool = False,
        report: Callable[[str], object] = lambda step: None,
    ) -> None:
        """Compiles the programs for calls of :meth:`translate` up to this size ahead of time.

        A server calls it on startup, so that no request waits for compilation. Programs are also
        stored in the persistent cache, for later processes. Each of the few batch shapes has two
        programs.

        Args:
          sentences: Maximum number of sentences of a call.
          tokens: Maximum number of source tokens of a sentence, end-of-sentence included; clipped
            at ``model.max_length``.
          prefixes: Compile the programs for calls with prefixes instead.
          report: Called with a description of each step before it starts.

        Raises:
          UserError: A size is less than 1.
        """
        for name, size in (("sentences", sentences), ("tokens", tokens)):
            if size < 1:
                raise UserError(f"{name} must be at least 1: got {size}")

        search = self.config.search
        longest = self.max_length
        shapes = all_shapes(
            sentences,
            min(tokens, longest),
            longest,
            search=search,
        )

        # The probability of a start that the tokenizer forces does not count.
        target_start = self.tokenizer.target_start
        plan = Stages(free=len(target_start))
        decoder = Decoder(self.models, search, plan)
        has_prefixes = prefixes or bool(target_start)
        for number, shape in enumerate(shapes, 1):
            sizes = f"batches of {shape.rows}, sources of at most {shape.source} tokens"
            report(f"{number} of {len(shapes)}: {sizes}")
            plan.compile(decoder, shape, prefixes=has_prefixes)

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]] | None = None,
        *,
        n_best: int = 0,
        constraints: Sequence[Constraint] = (),
        first: int = 1,
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[Decoded]:
        """Works as :meth:`hypotheses` does, on token ids from :meth:`source_ids` instead of text.

        Returns:
          For each source, the lists ``tokens``, ``scores`` and ``log_probs``, best first.
        """
        items = self._items(sources, prefixes, first)
        self._check_n_best(n_best)
        search = self._constrained_search(constraints)
        has_prefixes = any(item.prefix is not None for item in items)
        is_forced = bool(search.constraints) or has_prefixes
        if self.shortlist is not None and is_forced:
            raise UserError("a shortlist works without constraints and prefixes: leave one out")

        plan = Stages(
            shortlist=self.shortlist,
            n_best=n_best,
            # The probability of a start that the tokenizer forces does not count.
            free=len(self.tokenizer.target_start),
        )
        decoder = Decoder(self.models, search, plan)
        found = decoder.decode(items, report=report)

        # A blank sentence is in no batch.
        nothing = Decoded([], [], [])
        return [found.get(number, nothing) for number in range(len(items))]

    def _items(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]] | None,
        first: int,
    ) -> list[Source]:
        """Checks sources and prefixes, and numbers the sources from ``first``."""
        source_size, target_size = self.vocab_sizes
        sources = [
            check_tokens(
                ids,
                source_size,
                name=f"sources[{n}]",
                longest=self.max_length,
            )
            for n, ids in enumerate(sources)
        ]
        if prefixes is not None:
            check_same_length(
                prefixes,
                sources,
                name="prefixes",
                other="sources",
            )

        # Some tokenizers, as of multilingual models, have a start of targets, which is forced.
        target_start = self.tokenizer.target_start
        items = []
        for number, source in enumerate(sources):
            prefix = target_start or None
            if prefixes is not None:
                prefix = check_tokens(prefixes[number], target_size, name=f"prefixes[{number}]")
            items.append(Source(source, first + number, prefix))
        return items

    def source_ids(self, text: str, place: str = "sentence") -> list[int]:
        """Returns token ids with the end of the source, or [] if there are no visible characters.

        Error messages begin with ``place``.

        Raises:
          UserError: The sentence is too long, not valid Unicode, or has an unknown language code.
        """
        end = self.tokenizer.source_end
        ids = self._encode(text, self.tokenizer.encode_batch, place, end)
        self.tokenizer.check_language(text, place)
        return ids

    def target_ids(self, text: str, place: str = "translation") -> list[int]:
        """Works as :meth:`source_ids` does, for a translation."""
        return self._encode(text, self.tokenizer.encode_target_batch, place, EOS)

    def prefix_ids(self, text: str, place: str = "prefix") -> list[int]:
        """Works as :meth:`target_ids` does, without end-of-sentence, for a forced prefix."""
        return self.target_ids(text, place)[:-1]

    def detokenize(self, ids: Iterable[SupportsIndex]) -> str:
        """Returns the text of token ids, which is one line.

        Control characters such as tabs and line breaks, which byte pieces can spell, become spaces.

        Raises:
          UserError: An id is out of range.
        """
        return replace_controls(self.tokenizer.decode(ids))

    def _encode(
        self,
        text: str,
        encode: Callable[[Sequence[str]], list[list[int]]],
        place: str,
        end: int,
    ) -> list[int]:
        check_unicode(text, place)

        with prefix_errors(place):
            [ids] = encode([text])
        most = self.max_length - 1  # end-of-sentence follows
        if len(ids) > most:
            raise UserError(
                f"{place}: expected at most {most} tokens (model.max_length), got "
                f"{len(ids)}; with --split, jaxformer translate and serve split it into sentences"
            )
        return [*ids, end] if ids else []
