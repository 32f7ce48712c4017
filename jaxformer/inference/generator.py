"""Text generation with a trained language model."""

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Key

from jaxformer.checks import check_text, check_texts, check_tokens
from jaxformer.data.tokenizer import EOS, PAD, UNK
from jaxformer.errors import UserError, prefix_errors
from jaxformer.inference.bound_models import program_of
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.kept_programs import KeptProgram
from jaxformer.inference.members import Contrast, Models
from jaxformer.inference.threads import decode_batches
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.layout import global_mesh
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
      config: The config of the first model; ``config.search`` is the search of the ensemble.
      params: Parameters of the first model, cast or quantized for decoding.
      models: The model, or each member of an ensemble, with its parameters.
      tokenizer: The tokenizer that the models were trained with.
      weights: Description of the checkpoints, such as "step 2000".
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

        def decode(batch: list[_Row]) -> tuple[list[_Row], Int[np.ndarray, "B N n"]]:
            *_, tokens = self._generate(batch, max_tokens)
            return batch, tokens

        def store(decoded: tuple[list[_Row], Int[np.ndarray, "B N n"]]) -> None:
            for row, hypotheses in zip(*decoded, strict=False):
                for hypothesis in hypotheses:
                    # A beam may have fewer hypotheses than its size; the others are only padding.
                    if (hypothesis == PAD).all():
                        continue
                    text = self.tokenizer.decode_after(row.tokens, hypothesis)
                    texts[row.prompt - first].append(text)

        longest = self.max_length - max(1, max_tokens - 1)
        batches = list(_batches(rows, longest))
        decode_batches(decode, batches, self.models, store)
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
            longest=self.max_length,
        )

    def check(self, prompt: str, *, max_tokens: int) -> None:
        """Raises the errors of :meth:`continuations` for a prompt, without generating anything."""
        self._check_context(len(self.prompt_ids(prompt)), max_tokens)

    def _check_context(self, length: int, max_tokens: int) -> None:
        if not isinstance(self.config.search, BeamSearch):
            return

        # The last token is generated, but never fed to the model.
        longest = self.max_length
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
        longest = self.max_length
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
        batch_size, length = context.shape

        # The last token is generated, but not fed, so that it needs no capacity.
        shape = _WindowShape(
            rows=batch_size,
            prompt=_capacity(length, self.max_length),
            capacity=_capacity(length - 1 + count, self.max_length),
            has_starts=starts is not None,
        )
        search, numbers = self._search.split_numbers(shape.capacity + 1)

        window = _empty_window(shape, keys)
        window.context[:, :length] = context
        window = window._replace(
            length=np.int32(length),
            starts=starts,
            count=np.int32(count),
        )
        num_hypotheses = batch_size * search.num_hypotheses
        start_window = program_of(_start_window, self.models, num_hypotheses)
        advance_window = program_of(_advance_window, self.models, num_hypotheses)
        with global_mesh(None):
            leaves = start_window(search, shape, numbers, window)

        for until in (*range(chunk, count, chunk), count):
            with global_mesh(None):
                results = advance_window(
                    search,
                    shape,
                    numbers,
                    leaves,
                    np.int32(until),
                )
            # The state, and then the tokens.
            leaves = results[:-1]
            yield np.asarray(results[-1])[:, :, :until]

    @property
    def _ends_texts(self) -> bool:
        separator = getattr(self.config.data, "separator", "")
        return self.tokenizer.ends_texts or bool(separator)

    @property
    def _search(self) -> Algorithm:
        """Returns the search of one row, whose tokens are text."""
        search = self.config.search
        constraints = (*search.constraints, _OnlyText(may_end=self._ends_texts))

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


@dataclasses.dataclass(frozen=True)
class _OnlyText:
    """Forbids special tokens, such as padding.

    EOS may end a text, or does so only where all other tokens are forbidden.
    """

    may_end: bool

    def __call__(self, logits: Float[Array, "B N V"], context: SearchContext) -> Array:
        text = logits.at[:, :, : UNK + 1].set(-jnp.inf)
        if self.may_end:
            end = logits[:, :, context.eos_id]
            return text.at[:, :, context.eos_id].set(end)

        end = context.logits[:, :, context.eos_id]
        is_forbidden = text == -jnp.inf
        no_text_is_left = is_forbidden.all(axis=2)  # [B, N]
        end = jnp.where(no_text_is_left, end, -jnp.inf)
        return text.at[:, :, context.eos_id].set(end)


class _WindowShape(NamedTuple):
    """Static shape of a window, for which its programs are compiled."""

    rows: int  # hypotheses of a beam share a row
    prompt: int  # tokens of the context, padding included
    capacity: int  # tokens of the context and of the text, except the last
    has_starts: bool  # whether prompts of several lengths are padded on the left


class _Window(NamedTuple):
    """The context that a window of a text continues."""

    context: Int[np.ndarray, "B T"]
    length: Int[np.ndarray, ""] | np.int32  # tokens of the context
    starts: Int[np.ndarray, " B"] | None  # indices of the first tokens
    count: Int[np.ndarray, ""] | np.int32  # tokens to generate
    keys: Key[Array, " B"] | None  # for samples


def _empty_window(shape: _WindowShape, keys: Key[Array, " B"] | None) -> _Window:
    """Returns a window of padding, whose arrays have the shapes of all windows of a shape."""
    return _Window(
        context=np.zeros((shape.rows, shape.prompt), np.int32),
        length=np.int32(0),
        starts=np.zeros(shape.rows, np.int32) if shape.has_starts else None,
        count=np.int32(0),
        keys=keys,
    )


@functools.partial(KeptProgram, static_argnums=(1, 2))
def _start_window(
    models: Models,
    search: Algorithm,
    shape: _WindowShape,
    numbers: Numbers,
    window: _Window,
) -> Any:
    """Prefills contexts, and returns the state before the first new token."""
    context, length, starts, count, keys = jax.tree.map(jnp.asarray, tuple(window))
    caches = models.start(
        context,
        num_beams=search.num_hypotheses,
        capacity=shape.capacity,
    )
    # The last token is not prefilled, since the first step feeds it.
    _, caches = models.prefill(context, caches, length - 1, starts)

    search = search.join_numbers(numbers)
    max_lengths = jnp.broadcast_to(count, context.shape[:1])
    last_tokens = context[:, length - 1]
    return search.start(
        caches,
        max_lengths,
        shape.capacity + 1,
        keys=keys,
        first_tokens=last_tokens,
        contrast=isinstance(models, Contrast),
    )


@functools.partial(KeptProgram, static_argnums=(1, 2), donate_argnums=(4,))
def _advance_window(
    models: Models,
    search: Algorithm,
    shape: _WindowShape,
    numbers: Numbers,
    leaves: list[Array],
    until: Int[Array, ""],
) -> tuple[Any, Int[Array, "B N T"]]:
    """Generates until hypotheses have ``until`` tokens; returns the state and the tokens."""
    keys = None
    if isinstance(search, Sampling):
        keys = jax.eval_shape(lambda: sentence_keys(0, jnp.arange(shape.rows)))
    structure = _start_window.structure(
        models,
        search,
        shape,
        numbers,
        _empty_window(shape, keys),
    )
    state = jax.tree.unflatten(structure, leaves)

    search = search.join_numbers(numbers)
    state = search.advance(models.step_fn(), state, until)
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
