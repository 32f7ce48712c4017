"""Text generation with a trained language model."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key, PyTree

from jaxformer.checks import check_text, check_texts, check_tokens
from jaxformer.data.tokenizer import EOS, PAD, UNK
from jaxformer.errors import UserError, prefix_errors
from jaxformer.inference.decoder import Decoder
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.layout import global_mesh
from jaxformer.models.architecture import Architecture
from jaxformer.models.stepwise import step_fn
from jaxformer.search import Algorithm, BeamSearch, Sampling, SearchContext
from jaxformer.search.algorithm import Numbers
from jaxformer.search.sampling import sentence_keys

# Batches are padded to one of these sizes, so that few programs serve all calls.
_BATCH_SIZES = (1, 4, 16, 64)
_CHUNK = 8  # number of tokens generated between two updates of a stream
_SMALLEST_CAPACITY = 64


class Generator(Decoder):
    """Continues texts with a trained language model.

    >>> generator = Generator.load("runs/shakespeare")  # doctest: +SKIP
    >>> generator.generate(["ROMEO:"], max_tokens=200)  # doctest: +SKIP

    A text may be longer than the model's context of ``max_length`` tokens. When the context is
    full, its second half is prefilled into a new cache, and generation continues from there.

    Attributes:
      config: The architecture and the search.
      params: Parameters, cast or quantized for decoding.
      tokenizer: The tokenizer that the model was trained with.
      weights: Description of the checkpoint, such as "step 2000".
    """

    kinds = (LANGUAGE_MODELING,)

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
                rows.append(_Row(prompt, sample, ids))

        texts = [[] for _ in ids_of_prompts]
        longest = self.config.model.max_length - max(1, max_tokens - 1)
        for batch in _batches(rows, longest):
            *_, tokens = self._generate(batch, max_tokens)
            for row, hypotheses in zip(batch, tokens, strict=False):
                for hypothesis in hypotheses:
                    # A beam may have fewer hypotheses than its size; the others are only padding.
                    if (hypothesis == PAD).all():
                        continue
                    text = self.tokenizer.decode_after(row.tokens, hypothesis)
                    texts[row.prompt - first].append(text)
        return texts

    def stream(self, prompt: str, *, max_tokens: int = 500, first: int = 0) -> Iterator[str]:
        """Yields the first sample in pieces as it is generated.

        Takes the arguments of :meth:`continuations`, for one prompt, and raises the same errors.
        Beam search yields the whole continuation at once.
        """
        check_text(prompt, "prompt")
        row = _Row(first, 0, self.prompt_ids(prompt))
        shown = 0
        ids: Sequence[int] = []

        for tokens in self._generate([row], max_tokens):
            ids = tokens[0][0].tolist()
            text = self.tokenizer.decode_settled(row.tokens, ids)
            if len(text) > shown:
                yield text[shown:]
                shown = len(text)

        # The last characters were held back, since a next token could have changed them.
        text = self.tokenizer.decode_after(row.tokens, ids)
        if len(text) > shown:
            yield text[shown:]

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
            longest=self.config.model.max_length,
        )

    def check(self, prompt: str, *, max_tokens: int) -> None:
        """Raises the errors of :meth:`continuations` for a prompt, without generating anything."""
        self._check_context(len(self.prompt_ids(prompt)), max_tokens)

    def _check_context(self, length: int, max_tokens: int) -> None:
        if not isinstance(self.config.search, BeamSearch):
            return

        # The last token is generated, but never fed to the model.
        longest = self.config.model.max_length
        most = longest + 1 - length
        if max_tokens > most:
            raise UserError(
                f"beam search keeps to the model's context of {longest} tokens: expected at "
                f"most {max(0, most)} tokens after this prompt, got "
                f"{max_tokens}; sample, or ask for fewer"
            )

    def _generate(self, rows: list["_Row"], max_tokens: int) -> Iterator[Any]:
        """Yields all tokens generated so far [rows, hypotheses, tokens], after each chunk."""
        if max_tokens < 1:
            raise UserError(f"max_tokens must be at least 1: got {max_tokens}")
        search = self.config.search
        if search.max_length:
            max_tokens = min(max_tokens, search.max_length)

        context, starts = _pad_prompts(rows)
        self._check_context(context.shape[1], max_tokens)

        if isinstance(search, BeamSearch):
            yield from self._generate_window(
                context,
                starts,
                keys=None,
                count=max_tokens,
                chunk=max_tokens,
            )
        else:
            yield from self._sample(
                rows,
                context,
                starts,
                seed=search.seed,
                max_tokens=max_tokens,
            )

    def _sample(
        self,
        rows: list["_Row"],
        context: Int[np.ndarray, "B T"],
        starts: Int[np.ndarray, " B"] | None,
        *,
        seed: int,
        max_tokens: int,
    ) -> Iterator[Int[np.ndarray, "B 1 n"]]:
        """Generates window after window, and yields all tokens so far after each chunk."""
        batch_size = len(context)
        longest = self.config.model.max_length
        done = np.zeros((batch_size, 1, 0), np.int32)  # tokens of earlier windows

        for window in itertools.count():
            num_done = done.shape[2]
            ended = (done == EOS).any(axis=2, keepdims=True)
            if num_done >= max_tokens or ended.all():
                return

            # A full context continues from its second half, in a new cache.
            if context.shape[1] >= longest:
                half = max(1, longest // 2)
                context = context[:, -half:]
            capacity = longest + 1 - context.shape[1]

            # Texts that have ended are padded until all have.
            new = done[:, :, :0]
            chunks = self._generate_window(
                context,
                starts,
                keys=_keys(seed, rows, size=batch_size, window=window),
                count=min(max_tokens - num_done, capacity),
                chunk=_CHUNK,
            )
            for new in chunks:
                new = np.where(ended, PAD, new)
                yield np.concatenate([done, new], axis=2)

            done = np.concatenate([done, new], axis=2)
            context = np.concatenate([context, new[:, 0]], axis=1)

    def _generate_window(
        self,
        context: Int[np.ndarray, "B T"],
        starts: Int[np.ndarray, " B"] | None,
        *,
        keys: Key[Array, " B"] | None,
        count: int,
        chunk: int,
    ) -> Iterator[Int[np.ndarray, "B N n"]]:
        """Generates ``count`` tokens after a context and yields all tokens after each chunk."""
        config = self.config.model
        batch_size, length = context.shape

        # The last token is generated, but not fed, so that it needs no capacity.
        capacity = _capacity(length - 1 + count, config.max_length)
        search, numbers = self._search.split_numbers(capacity + 1)

        padded = np.zeros((batch_size, _capacity(length, config.max_length)), np.int32)
        padded[:, :length] = context
        prompts = (padded, length, starts)
        state = _prefill(
            config,
            search,
            capacity,
            self.params,
            numbers,
            prompts,
            count,
            keys,
        )

        for until in (*range(chunk, count, chunk), count):
            state, tokens = _advance(
                config,
                search,
                self.params,
                numbers,
                state,
                until,
            )
            yield np.asarray(tokens)[:, :, :until]

    @property
    def _ends_texts(self) -> bool:
        separator = getattr(self.config.data, "separator", "")
        return self.tokenizer.ends_texts or bool(separator)

    @property
    def _search(self) -> Algorithm:
        """Returns the search of one row, whose tokens are text."""
        search = self.config.search
        only_text = _only_text_or_end if self._ends_texts else _forbid_special
        constraints = (*search.constraints, only_text)

        if isinstance(search, Sampling):
            return dataclasses.replace(
                search,
                constraints=constraints,
                num_samples=1,
            )
        # Texts may end at their maximum length, without EOS.
        return dataclasses.replace(
            search,
            constraints=constraints,
            unfinished="compete",
        )


def _forbid_special(logits: Float[Array, "B N V"], context: SearchContext) -> Float[Array, "B N V"]:
    """Forbids special tokens, such as padding; if all others are forbidden, the text ends."""
    text = logits.at[:, :, : UNK + 1].set(-jnp.inf)

    end = context.logits[:, :, context.eos_id]
    is_forbidden = text == -jnp.inf
    no_text_is_left = is_forbidden.all(axis=2)  # [B, N]
    end = jnp.where(no_text_is_left, end, -jnp.inf)
    return text.at[:, :, context.eos_id].set(end)


def _only_text_or_end(
    logits: Float[Array, "B N V"],
    context: SearchContext,
) -> Float[Array, "B N V"]:
    """Forbids special tokens except EOS."""
    end = logits[:, :, context.eos_id]
    text = logits.at[:, :, : UNK + 1].set(-jnp.inf)
    return text.at[:, :, context.eos_id].set(end)


@global_mesh(None)
@functools.partial(jax.jit, static_argnums=(0, 1, 2))
def _prefill(
    config: Architecture,
    search: Algorithm,
    capacity: int,
    params: PyTree,
    numbers: Numbers,
    prompts: tuple[Int[Array, "B T"], Int[Array, ""], Int[Array, " B"] | None],
    count: Int[Array, ""],
    keys: Key[Array, " B"] | None,
) -> Any:
    """Prefills contexts, their length and starts; returns the state before the first new token."""
    context, length, starts = prompts
    variables: Any = {"params": params}
    model: Any = LANGUAGE_MODELING.build(config)
    cache = model.apply(
        variables,
        context,
        num_beams=search.num_hypotheses,
        capacity=capacity,
        method="start",
    )
    # The last token is not prefilled, since the first step feeds it.
    _, cache = model.apply(
        variables,
        context,
        cache,
        length - 1,
        starts,
        method="prefill",
    )

    search = search.join_numbers(numbers)
    max_lengths = jnp.broadcast_to(count, context.shape[:1])
    last_tokens = context[:, length - 1]
    return search.start(
        cache,
        max_lengths,
        capacity + 1,
        keys=keys,
        first_tokens=last_tokens,
    )


@global_mesh(None)
@functools.partial(jax.jit, static_argnums=(0, 1), donate_argnums=4)
def _advance(
    config: Architecture,
    search: Algorithm,
    params: PyTree,
    numbers: Numbers,
    state: Any,
    until: Int[Array, ""],
) -> tuple[Any, Int[Array, "B N T"]]:
    """Generates until hypotheses have ``until`` tokens; returns the state and the tokens."""
    search = search.join_numbers(numbers)
    model: Any = LANGUAGE_MODELING.build(config)

    state = search.advance(step_fn(model, params), state, until)
    result = search.finalize(state)
    return state, result.tokens


@global_mesh(None)
def _keys(seed: int, rows: Sequence["_Row"], size: int, window: int) -> Key[Array, " B"]:
    """Returns the random keys of the rows, padded to ``size`` keys."""
    # The keys depend neither on the batch nor on the order of its rows.
    indices = [(row.prompt, row.sample) for row in rows]
    padded = np.resize(indices, (size, 2))
    prompts, samples = map(jnp.asarray, padded.T)

    fold_in = jax.vmap(jax.random.fold_in)
    keys_of_prompts = sentence_keys(seed, prompts)
    keys_of_samples = fold_in(keys_of_prompts, samples)
    windows = jnp.full(size, window)
    return fold_in(keys_of_samples, windows)


def _capacity(tokens: int, max_capacity: int) -> int:
    """Rounds a number of tokens up to one of few capacities, to compile few programs."""
    power_of_two = 1 << (tokens - 1).bit_length()
    return min(max_capacity, max(_SMALLEST_CAPACITY, power_of_two))


class _Row(NamedTuple):
    """A continuation to generate: the indices of prompt and sample, and the prompt's tokens."""

    prompt: int
    sample: int
    tokens: list[int]


def _pad_prompts(
    rows: Sequence[_Row],
) -> tuple[Int[np.ndarray, "B T"], Int[np.ndarray, " B"] | None]:
    """Pads prompts on the left to one length, and repeats rows up to one of the batch sizes.

    Returns:
      The prompts, and the indices of their first tokens; None if all are 0.
    """
    width = max(len(row.tokens) for row in rows)
    context = np.full((len(rows), width), PAD, np.int32)
    starts = np.zeros(len(rows), np.int32)
    for number, row in enumerate(rows):
        start = width - len(row.tokens)
        starts[number] = start
        context[number, start:] = row.tokens

    size = next(size for size in _BATCH_SIZES if size >= len(rows))
    context = np.resize(context, (size, width))
    if not starts.any():
        return context, None
    return context, np.resize(starts, size)


def _batches(rows: Sequence[_Row], longest: int) -> Iterator[list[_Row]]:
    """Yields batches of rows with prompts of similar lengths.

    Prompts of more than ``longest`` tokens, whose context will be full, have the same length.
    """
    by_length = sorted(rows, key=lambda row: len(row.tokens))
    largest = _BATCH_SIZES[-1]

    def group_of(row: _Row) -> int:
        return max(longest, len(row.tokens))

    for _, group in itertools.groupby(by_length, group_of):
        while batch := list(itertools.islice(group, largest)):
            yield batch
