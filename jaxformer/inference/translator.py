"""Translation with a trained model: text in, text out (section 6.1)."""

import dataclasses
import functools
import pathlib
import re
from collections.abc import Callable, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, PyTree

from jaxformer.config import Config, ModelConfig, SearchConfig
from jaxformer.data.tokenizer import BOS, EOS, PAD, Tokenizer
from jaxformer.errors import UserError
from jaxformer.inference.weights import load_params
from jaxformer.nn.transformer import Transformer
from jaxformer.search import BeamResult, beam_search
from jaxformer.workdir import Workdir

# Every batch has one of these numbers of rows and one of a dozen source lengths, so that the
# programs to compile are few, whatever the input. The longer the sentences, the fewer the rows.
_ROWS = (64, 8, 1)
_TOKENS_PER_BATCH = 64 * 64
_SHORTEST = 16


class Translator:
    """Translates sentences with a trained Transformer.

    ``translator = Translator.load("runs/numerals")``, then
    ``translator.translate(["two hundred and forty-seven"])`` gives
    ``["zweihundertsiebenundvierzig"]``.

    Attributes:
      config: The model's architecture and the search's settings; other parts are not used.
      params: Parameters of the model.
      tokenizer: The tokenizer that the model was trained with.
      weights: Which checkpoint the parameters are from, in words.
    """

    def __init__(
        self, config: Config, params: PyTree, tokenizer: Tokenizer, weights: str = "given"
    ) -> None:
        """Keeps the parts together; :meth:`load` reads them from a workdir.

        Raises:
          UserError: The tokenizer has another vocabulary than the model.
        """
        if tokenizer.vocab_size != config.model.vocab_size:
            raise UserError(
                f"expected a tokenizer of model.vocab_size={config.model.vocab_size} tokens: got "
                f"one of {tokenizer.vocab_size}"
            )
        self.config = config
        self.params = params
        self.tokenizer = tokenizer
        self.weights = weights

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str = "auto",
        search: SearchConfig | None = None,
    ) -> "Translator":
        """Reads config, tokenizer and parameters from the workdir of a training run.

        Args:
          workdir: The folder given to train.py.
          weights: "averaged", "best" (lowest validation loss), "latest", a step, or "auto":
            averaged if the newest checkpoint is part of the average, else latest.
          search: Replaces the search settings of the run.

        Raises:
          UserError: Something is missing or damaged.
        """
        folder = Workdir(pathlib.Path(workdir))
        config = folder.load_config()
        folder.check_tokenizer()
        tokenizer = Tokenizer.load(folder.tokenizer)
        params, name = load_params(folder, config.model, weights)
        if search is not None:
            config = dataclasses.replace(config, search=search)
        return cls(config, params, tokenizer, name)

    def translate(
        self,
        sentences: Sequence[str],
        *,
        name: str = "sentences",
        report: Callable[[int], None] = lambda finished: None,
    ) -> list[str]:
        """The best translation of every sentence, in the order given.

        Sentences are sorted by length and decoded in batches of a few fixed shapes. An empty
        sentence gives an empty translation.

        Args:
          sentences: Source sentences.
          name: What to call them in messages: a file, say.
          report: Called with the number of sentences of each finished batch.

        Raises:
          UserError: A sentence is longer than the model allows; nothing has been translated then.
        """
        sources = [self.encode(text, f"{name}:{n}") for n, text in enumerate(sentences, start=1)]
        return [self.decode(ids) for ids in self.translate_ids(sources, report=report)]

    def translate_ids(
        self,
        sources: Sequence[Sequence[int]],
        *,
        report: Callable[[int], None] = lambda finished: None,
    ) -> list[list[int]]:
        """Like :meth:`translate`, from the ids of :meth:`encode` to ids with end-of-sentence."""
        translations: list[list[int]] = [[] for _ in sources]
        for numbers, shape in _batches(sources, self.config.model.max_length):
            src = np.full(shape, PAD, np.int32)
            for row, number in enumerate(numbers):
                src[row, : len(sources[number])] = sources[number]
            result = search(self.config.model, self.config.search, self.params, src)
            tokens, lengths = jax.device_get((result.tokens[:, 0], result.lengths[:, 0]))
            for row, number in enumerate(numbers):
                translations[number] = tokens[row, : lengths[row]].tolist()
            report(len(numbers))
        report(sum(not source for source in sources))
        return translations

    def encode(self, text: str, place: str = "sentence") -> list[int]:
        """Token ids with end-of-sentence; empty for a sentence without any visible character.

        Args:
          text: A sentence.
          place: Where it stands, for messages.

        Raises:
          UserError: The sentence is longer than the model allows, or holds half a character.
        """
        try:
            text.encode("utf-8")
        except UnicodeEncodeError:
            raise UserError(f"{place}: not UTF-8") from None
        ids = self.tokenizer.encode(text)
        if len(ids) >= self.config.model.max_length:
            raise UserError(
                f"{place}: expected at most {self.config.model.max_length - 1} tokens "
                f"(model.max_length), got {len(ids)}; split it into sentences"
            )
        return [*ids, EOS] if ids else []

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token ids, on one line: byte pieces can spell a line break."""
        return re.sub(r"[\r\n]", " ", self.tokenizer.decode(ids))


def _batches(
    sources: Sequence[Sequence[int]], max_length: int
) -> Iterator[tuple[list[int], tuple[int, int]]]:
    """Numbers of the sentences to decode together, and the shape to put them in.

    Longest first, so that too little memory shows at once and not after an hour.
    """
    numbers = sorted(
        (n for n, source in enumerate(sources) if source), key=lambda n: (-len(sources[n]), n)
    )
    while numbers:
        length = min(max_length, max(_SHORTEST, _power_of_two(len(sources[numbers[0]]))))
        allowed = [rows for rows in _ROWS if rows * length <= _TOKENS_PER_BATCH] or [1]
        rows = min((r for r in allowed if r >= len(numbers)), default=max(allowed))
        yield numbers[:rows], (rows, length)
        numbers = numbers[rows:]


def _power_of_two(n: int) -> int:
    return 1 << (n - 1).bit_length()


@functools.partial(jax.jit, static_argnums=(0, 1))
def search(
    model_config: ModelConfig, settings: SearchConfig, params: PyTree, src: Int[Array, "B S"]
) -> BeamResult:
    """Encodes a batch and searches its translations, as one compiled program.

    A row of padding alone costs no step. Translations have at most as many tokens as their
    source plus ``settings.max_extra_length``, and at most ``model_config.max_length``.
    """
    model = Transformer(model_config)
    max_length = min(src.shape[1] + settings.max_extra_length, model_config.max_length)
    segments = (src != PAD).astype(jnp.int32)
    encoded = model.apply({"params": params}, src, segments, method="encode")
    cache = model.apply(
        {"params": params},
        encoded,
        segments,
        num_beams=settings.beam_size,
        max_length=max_length,
        method="init_cache",
    )
    source_lengths = segments.sum(axis=1)
    limits = jnp.where(source_lengths > 0, source_lengths + settings.max_extra_length, 0)
    return beam_search(
        lambda tokens, cache: model.apply({"params": params}, tokens, cache, method="decode_step"),
        cache,
        batch_size=src.shape[0],
        beam_size=settings.beam_size,
        max_length=max_length,
        limits=limits,
        length_penalty=settings.length_penalty,
        bos_id=BOS,
        eos_id=EOS,
        pad_id=PAD,
    )
