"""Translation with a trained model: text in, text out (section 6.1)."""

import copy
import dataclasses
import pathlib
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, SupportsIndex

from jaxtyping import PyTree

from jaxformer.checks import check_same_length, check_text, check_texts, check_tokens
from jaxformer.config import Config, ModelConfig, check_config, load_run, sentence_pairs
from jaxformer.data.marian_tokenizer import load_tokenizer
from jaxformer.data.tokenizer import EOS, Tokenizer
from jaxformer.errors import UserError
from jaxformer.inference.batched_search import Decoded, compile_programs, search_batches, shapes
from jaxformer.inference.weights import load_params, override, prepare_params
from jaxformer.search import BeamSearch, Constraint, Sampling
from jaxformer.workdir import Workdir, use_compilation_cache


class Hypothesis(NamedTuple):
    """One translation of a sentence.

    Attributes:
      text: The translation.
      tokens: Its token ids; the last is end-of-sentence, unless it was cut at the limit.
      score: ``log_prob`` divided by the length penalty: what hypotheses are compared by.
      log_prob: Natural logarithm of the probability that the model gives the tokens.
    """

    text: str
    tokens: list[int]
    score: float
    log_prob: float


class Translator:
    """Translates sentences with a trained Transformer.

    ``translator = Translator.load("runs/numerals")``, then
    ``translator.translate(["two hundred and forty-seven"])`` gives
    ``["zweihundertsiebenundvierzig"]``.

    Attributes:
      config: The search, and the architecture of the first model; other parts are not
        used.
      models: Architecture and parameters, in the precision it computes in, of the model, or of
        each member of an ensemble.
      tokenizer: The tokenizer that the model was trained with.
      weights: Which checkpoint the parameters are from, in words.
    """

    def __init__(
        self, config: Config, params: PyTree, tokenizer: Tokenizer, weights: str = "given"
    ) -> None:
        """Keeps the parts together; :meth:`load` reads them from a workdir.

        Programs are kept on disk from now on, in JAX's cache of compiled programs, as the command
        line keeps them: in ``$JAXFORMER_CACHE``, unless JAX has been told another folder.

        Raises:
          UserError: The tokenizer has another vocabulary than the model, or an argument is not what
            is expected.
        """
        check_config(config)
        sentence_pairs(config)
        if not hasattr(tokenizer, "vocab_size"):
            raise UserError(
                f"tokenizer: expected a Tokenizer, got {reprlib.repr(tokenizer)}; read one with "
                "Tokenizer.load"
            )
        if isinstance(params, Mapping) and "params" in params:
            raise UserError(
                "params: expected the parameters themselves, got variables that hold them; give "
                'variables["params"]'
            )
        if tokenizer.vocab_size != config.model.vocab_size:
            raise UserError(
                f"expected a tokenizer of model.vocab_size={config.model.vocab_size} tokens: got "
                f"one of {tokenizer.vocab_size}"
            )
        use_compilation_cache()
        self.config = config
        model = (config.model, prepare_params(config.model, params))
        self.models: tuple[tuple[ModelConfig, PyTree], ...] = (model,)
        self.tokenizer = tokenizer
        self.weights = weights

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
    ) -> "Translator":
        """Reads config, tokenizer and parameters from the workdir of a training run.

        Args:
          workdir: The folder given to train.py.
          weights: "averaged", "best" (lowest validation loss), "latest", a step, or "auto":
            averaged if the newest checkpoint is part of the average, else latest. Several,
            separated by commas, are an ensemble.
          search: Replaces the run's search.
          compute_dtype: Replaces the run's: "float32", "bfloat16", or "int8", which rounds the
            parameters.

        Raises:
          UserError: Something is missing or damaged.
        """
        folder = Workdir(pathlib.Path(workdir))
        config = load_run(folder)
        sentence_pairs(config)
        folder.check_tokenizer()
        tokenizer = load_tokenizer(folder.tokenizer)
        loaded = [load_params(folder, config.model, name) for name in str(weights).split(",")]
        config = override(config, workdir, search, compute_dtype)
        members = [cls(config, params, tokenizer, name) for params, name in loaded]
        return members[0].ensemble_with(*members[1:])

    def ensemble_with(self, *others: "Translator") -> "Translator":
        """The ensemble of this translator's models and others', whose probabilities it averages.

        Raises:
          UserError: Another has another tokenizer.
        """
        for other in others:
            if other.tokenizer.sha256 != self.tokenizer.sha256:
                raise UserError(
                    "models of an ensemble must share a tokenizer: got ones with SHA-256 "
                    f"{self.tokenizer.sha256} and {other.tokenizer.sha256}"
                )
        together = copy.copy(self)
        together.models = sum((other.models for other in others), self.models)
        together.weights = ", ".join([self.weights, *(other.weights for other in others)])
        return together

    def translate(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraint] = (),
        name: str = "sentences",
        first: int = 1,
        report: Callable[[int], None] = lambda finished: None,
    ) -> list[str]:
        """The best translation of every sentence, in the order given.

        Arguments and errors are those of :meth:`hypotheses`. A blank sentence, or one that the
        settings leave without any translation, gives an empty one.
        """
        found = self.hypotheses(
            sentences,
            prefixes=prefixes,
            constraints=constraints,
            name=name,
            first=first,
            report=report,
        )
        return [best[0].text if best else "" for best in found]

    def hypotheses(
        self,
        sentences: Sequence[str],
        *,
        prefixes: Sequence[str] | None = None,
        constraints: Sequence[Constraint] = (),
        name: str = "sentences",
        first: int = 1,
        report: Callable[[int], None] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """The n-best translations of every sentence, best first, in the order given.

        Sentences are sorted by length and decoded in batches of a few fixed shapes; what comes
        out does not depend on how they were batched. A blank sentence has no hypothesis.

        Args:
          sentences: Source sentences.
          prefixes: What each translation must start with; what is too long for the search's
            limits is cut there.
          constraints: What else is forbidden, besides the constraints of the search: see
            :mod:`jaxformer.search.constraints`.
          name: What to call the sentences in messages: a file, say.
          first: Number of the first sentence, in messages; samples depend on it, and constraints
            find it in ``context.rows``.
          report: Called with the number of sentences of each finished batch.

        Raises:
          UserError: A sentence is longer than the model allows, this is one string instead of a
            list, or there is not one prefix for each sentence; nothing has been translated then.
        """
        sentences, targets = check_texts(sentences, "sentences"), None
        sources = [self.encode(text, f"{name}:{n}") for n, text in enumerate(sentences, first)]
        if prefixes is not None:
            prefixes = check_texts(prefixes, "prefixes")
            check_same_length(prefixes, sentences, "prefixes", "sentences")
            targets = [self.tokenizer.encode_target(text) for text in prefixes]
        rows = self.search(sources, targets, constraints=constraints, first=first, report=report)
        return [
            [
                Hypothesis(self.decode(tokens), tokens, score, log_prob)
                for tokens, score, log_prob in zip(*found, strict=True)
            ]
            for found in rows
        ]

    def warm_up(self, *, sentences: int = 1, tokens: int = 64, prefixes: bool = False) -> None:
        """Compiles ahead of time what calls of :meth:`translate` up to this size will run.

        A server calls it before it answers: the first call would compile otherwise. Programs are
        kept on disk, too, so that the next process loads them. There are two for each size of
        batch; a few sizes serve all calls.

        Args:
          sentences: The most sentences of a call.
          tokens: The most source tokens of a sentence, end-of-sentence included; more than
            ``model.max_length`` counts as that.
          prefixes: Whether the calls will give prefixes, which other programs decode.

        Raises:
          UserError: A size is less than 1.
        """
        configs, params = zip(*self.models, strict=True)
        longest = min(config.max_length for config in configs)
        for name, size in (("sentences", sentences), ("tokens", tokens)):
            if size < 1:
                raise UserError(f"{name} must be at least 1: got {size}")
        search = self.config.search
        for shape in shapes(sentences, min(tokens, longest), longest, search):
            compile_programs(configs, search, params, shape, prefixes=prefixes)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        prefixes: Sequence[Sequence[int]] | None = None,
        *,
        constraints: Sequence[Constraint] = (),
        first: int = 1,
        report: Callable[[int], None] = lambda finished: None,
    ) -> list[Decoded]:
        """Like :meth:`hypotheses`, from the ids of :meth:`encode` to ids with end-of-sentence.

        Raises:
          UserError: A token id is none of the model's, a source is longer than the model allows,
            or there is not one prefix for each source.
        """
        configs, params = zip(*self.models, strict=True)
        longest = min(config.max_length for config in configs)
        sizes = [min(c.vocab_size for c in configs), min(c.output_size for c in configs)]
        sources = [
            check_tokens(ids, sizes[0], f"sources[{n}]", longest) for n, ids in enumerate(sources)
        ]
        if prefixes is not None:
            check_same_length(prefixes, sources, "prefixes", "sources")
            prefixes = [
                check_tokens(ids, sizes[1], f"prefixes[{n}]") for n, ids in enumerate(prefixes)
            ]
        search = self.config.search
        search = dataclasses.replace(search, constraints=(*search.constraints, *constraints))
        return search_batches(
            configs, search, params, sources, prefixes, first=first, report=report
        )

    def encode(self, text: str, place: str = "sentence") -> list[int]:
        """Token ids with end-of-sentence; empty for a sentence without any visible character.

        Args:
          text: A sentence.
          place: Where it stands, for messages.

        Raises:
          UserError: The sentence is longer than the model allows, or holds half a character.
        """
        return self._checked(text, self.tokenizer.encode, place)

    def encode_target(self, text: str, place: str = "translation") -> list[int]:
        """Like :meth:`encode`, for a translation."""
        return self._checked(text, self.tokenizer.encode_target, place)

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text of token ids, on one line: byte pieces can spell a line break.

        Raises:
          UserError: An id is none of the tokenizer's.
        """
        return re.sub(r"[\r\n]", " ", self.tokenizer.decode(ids))

    def _checked(self, text: str, encode: Callable[[str], list[int]], place: str) -> list[int]:
        check_text(text, place)
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{place}: not UTF-8") from None
        ids = encode(text)
        longest = min(config.max_length for config, _ in self.models)
        if len(ids) >= longest:
            raise UserError(
                f"{place}: expected at most {longest - 1} tokens (model.max_length), got "
                f"{len(ids)}; split it into sentences"
            )
        return [*ids, EOS] if ids else []
