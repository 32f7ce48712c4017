"""Text generation with a trained language model."""

import dataclasses
from collections.abc import Iterator, Sequence

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxformer.checks import check_text, check_texts, check_tokens
from jaxformer.data.tokenizer import EOS, PAD, UNK
from jaxformer.errors import prefix_errors
from jaxformer.inference.autoregressive import AutoregressivePredictor
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.windows import Prompt, Windows, check_context
from jaxformer.kinds.gato import GATO
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.search import Algorithm, Sampling, SearchContext


class Generator(AutoregressivePredictor):
    """Continues texts with a trained language model.

    >>> generator = Generator.load("runs/shakespeare")  # doctest: +SKIP
    >>> generator.generate(["ROMEO:"], max_tokens=200)  # doctest: +SKIP

    A text may be longer than the model's context of ``max_length`` tokens. When the context is
    full, its second half is prefilled into a new cache, and generation continues from there.

    Attributes:
      config: The config of the first model; ``config.search`` is the search of the ensemble.
      params: Parameters of the first model, cast or quantized for decoding.
      models: The model, or each member of an ensemble, with its parameters.
      tokenizer: The tokenizer that the models were trained with.
      weights: Description of the checkpoints, such as "step 2000".
    """

    kinds = (LANGUAGE_MODELING, GATO)

    def generate(self, prompts: Sequence[str], *, max_tokens: int = 500) -> list[str]:
        """Returns one continuation per prompt, without the prompt: the best, or the first sample.

        Takes the arguments of :meth:`continuations` and raises the same errors.
        """
        continuations = self.continuations(prompts, max_tokens=max_tokens)
        return [texts[0] for texts in continuations]

    def continuations(
        self,
        prompts: Sequence[str],
        *,
        max_tokens: int = 500,
        first: int = 0,
    ) -> list[list[str]]:
        """Returns all continuations, without prompts: the beam, best first, or samples as drawn.

        The random numbers of a sample depend only on the seed and the indices of prompt and sample.
        A text ends early if constraints, such as ``no_repeat_ngram``, permit no token. If a sample
        is longer than the model's context, they only see the tokens that are still in it.

        Args:
          prompts: Texts to continue; an empty prompt stands for the beginning of a line.
          max_tokens: Number of tokens of each continuation.
          first: Index of the first prompt, for random numbers.

        Raises:
          UserError: A prompt has characters outside the vocabulary, or beam search would exceed
            the model's context.
        """
        ids_of_prompts = [self.prompt_ids(text) for text in check_texts(prompts, "prompts")]
        search = self.config.search
        num_samples = search.num_samples if isinstance(search, Sampling) else 1
        rows = []
        for prompt, ids in enumerate(ids_of_prompts, first):
            for sample in range(num_samples):
                rows.append(Prompt(ids, prompt, sample))

        found = self._decoder(max_tokens).decode(rows)

        texts = [[] for _ in ids_of_prompts]
        for number, row in enumerate(rows):
            for tokens in found[number]:
                # A beam may have fewer hypotheses than its size; the others are only padding.
                if (tokens == PAD).all():
                    continue
                text = self.tokenizer.decode_after(row.tokens, tokens)
                texts[row.number - first].append(text)
        return texts

    def stream(self, prompt: str, *, max_tokens: int = 500, first: int = 0) -> Iterator[str]:
        """Yields the first sample in pieces as it is generated.

        Takes the arguments of :meth:`continuations`, for one prompt, and raises the same errors.
        Beam search yields the whole continuation at once.
        """
        check_text(prompt, "prompt")
        row = Prompt(self.prompt_ids(prompt), first)
        shown = 0
        ids: Sequence[int] = []

        for _, ids in self.stream_ids([row], max_tokens=max_tokens):
            text = self.tokenizer.decode_settled(row.tokens, ids)
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)

        # The last characters were held back, since a next token could have changed them.
        text = self.tokenizer.decode_after(row.tokens, ids)
        if len(text) > shown:
            yield text[shown:]

    def stream_ids(
        self,
        prompts: Sequence[Prompt],
        *,
        max_tokens: int,
        search: Algorithm | None = None,
    ) -> Iterator[tuple[int, list[int]]]:
        """Yields indices of prompts, and the ids of all tokens so far that continue them.

        Prompts are generated in batches; each chunk of tokens of a batch yields all of its prompts.
        A text that has ended is padded.

        Args:
          prompts: Token ids, from :meth:`prompt_ids`, and the numbers of their random keys.
          max_tokens: Number of tokens of each continuation.
          search: Takes the place of the generator's search.
        """
        decoder = self._decoder(max_tokens, search)
        for number, hypotheses in decoder.stream(prompts):
            yield number, hypotheses[0].tolist()

    def prompt_ids(self, text: str) -> list[int]:
        """Returns the token ids of a prompt; an empty one begins a document, or else a line."""
        if not text and self._ends_texts and self.tokenizer.keeps_lines:
            return [EOS]
        return self.tokenizer.encode_prompt(text)

    def text_ids(self, text: str, place: str) -> list[int]:
        """Returns the token ids of a text to score, at most ``max_length``, or raises an error."""
        with prefix_errors(place):
            ids = self.tokenizer.encode(text)
        return check_tokens(
            ids,
            self.tokenizer.vocab_size,
            place,
            longest=self.max_length,
        )

    def check(self, prompt: str, *, max_tokens: int) -> None:
        """Raises the errors of :meth:`continuations` for a prompt, without generating anything."""
        check_context(
            self.config.search,
            len(self.prompt_ids(prompt)),
            max_tokens,
            longest=self.max_length,
        )

    def _decoder(
        self,
        max_tokens: int,
        search: Algorithm | None = None,
    ) -> Decoder[Prompt, int, Int[np.ndarray, "N n"]]:
        """Returns the decoder of texts of at most so many tokens."""
        search = self._search_of_row(search or self.config.search)
        return Decoder(self.models, search, Windows(max_tokens))

    @property
    def _ends_texts(self) -> bool:
        separator = getattr(self.config.data, "separator", "")
        return self.tokenizer.ends_texts or bool(separator)

    def _search_of_row(self, search: Algorithm) -> Algorithm:
        """Returns the search of one row, whose tokens are text."""
        only_text = _OnlyText(may_end=self._ends_texts, num_tokens=self.tokenizer.vocab_size)
        constraints = (*search.constraints, only_text)

        search = dataclasses.replace(
            search,
            constraints=constraints,
            other_ends=self.tokenizer.other_ends,
        )
        if isinstance(search, Sampling):
            return dataclasses.replace(search, num_samples=1)
        # Texts may end at their maximum length, without EOS.
        return dataclasses.replace(search, unfinished="compete")


@dataclasses.dataclass(frozen=True)
class _OnlyText:
    """Forbids special tokens, such as padding, and tokens that are not text, such as actions.

    EOS may end a text, or does so only where all other tokens are forbidden.
    """

    may_end: bool
    num_tokens: int  # of texts

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        text = logits.at[:, :, : UNK + 1].set(-jnp.inf)
        if logits.shape[2] > self.num_tokens:
            text = text.at[:, :, self.num_tokens :].set(-jnp.inf)
        if self.may_end:
            end = logits[:, :, context.eos_id]
            return text.at[:, :, context.eos_id].set(end)

        end = context.logits[:, :, context.eos_id]
        is_forbidden = text == -jnp.inf
        no_text_is_left = is_forbidden.all(axis=2)  # [B, N]
        end = jnp.where(no_text_is_left, end, -jnp.inf)
        return text.at[:, :, context.eos_id].set(end)
