"""Trains encoders of pictures and texts on pairs."""

import dataclasses
import functools
import hashlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int32, PyTree

from jaxformer.config import Config, data_section, model_section
from jaxformer.data.bpe import train_tokenizer
from jaxformer.data.corpus import Corpus
from jaxformer.data.encoded_text import pad_rows
from jaxformer.data.examples import describe_example
from jaxformer.data.image_texts import ImageTextConfig, ImageTexts, read_image_texts
from jaxformer.data.images import Augmentation
from jaxformer.data.loader import round_up
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError, prefix_errors
from jaxformer.inference.text_inputs import encode_texts
from jaxformer.kinds.image_text import IMAGE_TEXT
from jaxformer.models.clip import CLIP, CLIPConfig, Embeddings
from jaxformer.runs import processes
from jaxformer.runs.workdir import Workdir
from jaxformer.tasks.image_text.image_text_matcher import ImageTextMatcher
from jaxformer.tasks.images.image_augmentation import augment
from jaxformer.tasks.initialization import tokenizer_of_run
from jaxformer.tasks.token_task import NetworkLoss, TokenTask
from jaxformer.training.arrays import REAL, epochs, evaluate_arrays, row_numbers
from jaxformer.training.flops import layers_flops
from jaxformer.training.losses import contrastive_sums
from jaxformer.training.placement import BatchShards
from jaxformer.training.task import CheckStop, Randomness, Sums

_LARGEST_LOG_SCALE = math.log(100)  # of the cosines


@dataclasses.dataclass(frozen=True)
class ImageTextLoss(NetworkLoss):
    """Sums the contrastive loss over pairs, whose pictures training changes at random.

    Each picture is compared with all texts of the global batch, and each text with all pictures.
    """

    model: CLIPConfig
    augmentation: Augmentation = dataclasses.field(default_factory=Augmentation)

    @classmethod
    def of(cls, config: Config) -> "ImageTextLoss":
        training = config.training
        if training.label_smoothing:
            raise UserError(
                f"training.label_smoothing is for classes: got {training.label_smoothing}; give "
                "--config.training.label_smoothing=0.0"
            )
        if training.gradient_accumulation > 1:
            raise UserError(
                "training.gradient_accumulation must be 1 for pictures and texts, since each is "
                f"compared with the whole batch: got {training.gradient_accumulation}"
            )

        augmentation = data_section(config, ImageTextConfig)
        return dataclasses.replace(super().of(config), augmentation=augmentation)

    def __call__(
        self,
        params: PyTree,
        batch: PyTree,
        randomness: Randomness | None,
    ) -> Sums:
        images = self.model.scale_pixels(batch["images"])
        if randomness is not None:
            # From the same seed as dropout, but another stream.
            key = jax.random.fold_in(randomness.key, 1)
            images = augment(images, key, randomness.row_ids, settings=self.augmentation)

        def forward(module: CLIP, dropout: dict[str, Any]) -> tuple[Embeddings, Array]:
            return module.embeddings(images, batch["tokens"], **dropout), module.log_scale

        embeddings, log_scale = self.apply(params, randomness, forward)
        return contrastive_sums(
            embeddings.images,
            embeddings.texts,
            jnp.exp(limit_log_scale(log_scale)),
            real=batch[REAL],
        )


@jax.custom_vjp
def limit_log_scale(log_scale: Float[Array, ""]) -> Float[Array, ""]:
    """Returns the smaller of log_scale and log 100 (Radford et al. 2021, section 2.5).

    Beyond the limit, only a gradient whose step makes it smaller passes.
    """
    return jnp.minimum(log_scale, _LARGEST_LOG_SCALE)


def _forward(log_scale: Array) -> tuple[Array, Array]:
    return limit_log_scale(log_scale), log_scale


def _backward(log_scale: Array, gradient: Array) -> tuple[Array]:
    is_within = log_scale < _LARGEST_LOG_SCALE
    return (jnp.where(is_within, gradient, jnp.maximum(gradient, 0)),)


limit_log_scale.defvjp(_forward, _backward)


class _Split(NamedTuple):
    """The pairs of a split, and the tokens of their texts."""

    name: str
    pairs: ImageTexts
    tokens: Int32[np.ndarray, "N T"]

    @property
    def arrays(self) -> dict[str, np.ndarray]:
        return {"images": self.pairs.images, "tokens": self.tokens}


class ImageTextTraining(TokenTask):
    """Trains a :class:`~jaxformer.CLIP`; validates with the loss and with retrieval.

    Retrieval is over the whole validation split: the fraction of the pictures whose most similar
    text is their own, and of the different texts whose most similar picture has this text.
    """

    kind = IMAGE_TEXT
    loss_class: type[NetworkLoss] = ImageTextLoss  # pyright: ignore[reportIncompatibleVariableOverride]
    log_formats = {  # noqa: RUF012
        "accuracy": "",  # in its batch
        "image_to_text": "image to text R@1 {:.4f}",
        "text_to_image": "text to image R@1 {:.4f}",
    }

    def __init__(
        self,
        config: Config,
        tokenizer: Vocabulary,
        train: _Split,
        valid: _Split,
    ) -> None:
        self.config = config
        self.tokenizer = tokenizer
        self._train = train
        self._valid = valid
        self._data = data_section(config, ImageTextConfig)
        self._model = model_section(config, CLIPConfig)

    @classmethod
    def open(
        cls,
        config: Config,
        folder: Workdir,
        corpus: Corpus | None = None,
    ) -> "ImageTextTraining":
        data = data_section(config, ImageTextConfig)
        if corpus is not None:
            raise UserError(
                f"corpus: expected none with data.corpus={data.corpus}; name files in data.train"
            )

        train = read_image_texts(data.corpus, data.train)
        valid = read_image_texts(data.corpus, data.valid)
        learn = functools.partial(train_tokenizer, train.texts, config.model.vocab_size)
        tokenizer = tokenizer_of_run(config, folder, learn)
        return cls(
            config,
            tokenizer,
            train=_encode(config, tokenizer, data.train, train),
            valid=_encode(config, tokenizer, data.valid, valid),
        )

    @classmethod
    def longest_batch(cls, config: Config, shards: BatchShards) -> PyTree:
        model = model_section(config, CLIPConfig)
        return _abstract_batch(config, shards, model.max_length)

    def shapes(self, shards: BatchShards) -> Sequence[PyTree]:
        return [_abstract_batch(self.config, shards, self._train.tokens.shape[1])]

    def batches(self, start: int, shards: BatchShards) -> Iterator[PyTree]:
        """Yields pairs in the order of :meth:`example_ids`, prepared in threads."""
        return epochs(
            self._train.arrays,
            self._data.rows,
            self.config.training.seed,
            start=start,
            shards=shards,
        )

    def example_ids(self, number: int) -> Sequence[int]:
        """Returns the numbers of the pairs of a batch, each once in every epoch."""
        numbers = row_numbers(
            number,
            len(self._train.tokens),
            self._data.rows,
            seed=self.config.training.seed,
        )
        return numbers.tolist()

    def flops(self, batch: PyTree) -> int:
        rows, length = batch["tokens"].shape
        model = self._model
        pictures = layers_flops(model.vision_sizes(), rows, model.num_tokens)
        return pictures + layers_flops(model, rows, length, causal=True)

    def identity(self) -> dict[str, str]:
        return {
            "tokenizer": self.tokenizer.sha256,
            "train": _sha256(self._train.pairs),
            "valid": _sha256(self._valid.pairs),
        }

    def summary(self) -> str:
        train = len(self._train.tokens)
        valid = len(self._valid.tokens)
        epochs = self.config.training.steps * self._data.rows / train
        lines = [f"{train:,} training pairs, {valid:,} for validation; {epochs:.1f} epochs"]

        for split in (self._train, self._valid):
            size = " x ".join(map(str, split.pairs.images.shape[1:]))
            sides = [("picture", size), ("text", split.pairs.texts[0])]
            lines.append(describe_example(split.name, sides))
        return "\n".join(lines)

    def evaluate(
        self,
        params: PyTree,
        mesh: Mesh,
        check_stop: CheckStop,
    ) -> dict[str, float]:
        values = evaluate_arrays(
            self.loss,
            params,
            self._valid.arrays,
            rows=self._data.rows,
            mesh=mesh,
            check_stop=check_stop,
        )

        # Each process embeds all pairs, on one of its devices.
        if mesh.size > 1:
            params = processes.on_this_host(params)
        matcher = ImageTextMatcher(self.config, params, self.tokenizer)
        images, texts = self._valid.pairs
        check_stop()
        return values | retrieval(matcher, images, texts)


def retrieval(
    matcher: ImageTextMatcher,
    images: np.ndarray,
    texts: Sequence[str],
) -> dict[str, float]:
    """Returns the recall at 1 of pairs: of the texts of pictures, and of the pictures of texts."""
    candidates = [*dict.fromkeys(texts)]
    numbers = {text: number for number, text in enumerate(candidates)}
    own = np.array([numbers[text] for text in texts])
    cosines = matcher.similarity(images, candidates)  # [pictures, different texts]

    best_text = cosines.argmax(axis=1)
    best_image = cosines.argmax(axis=0)
    return {
        "image_to_text": float(np.mean(best_text == own)),
        "text_to_image": float(np.mean(own[best_image] == np.arange(len(candidates)))),
    }


def _encode(
    config: Config,
    tokenizer: Vocabulary,
    name: str,
    pairs: ImageTexts,
) -> _Split:
    """Returns the pairs with the tokens of their texts; refuses pictures of another size."""
    model = model_section(config, CLIPConfig)
    shape = pairs.images.shape[1:]
    if shape != model.image_shape:
        raise UserError(
            f"model.height, model.width and model.channels must be {shape}, as in the "
            f"pictures of {name}: got {model.image_shape}"
        )

    with prefix_errors(name):
        encoded = encode_texts(pairs.texts, tokenizer, model)
    longest = max(len(text.tokens) for text in encoded)
    padded = pad_rows(encoded, (len(encoded), longest))
    return _Split(name, pairs, padded.tokens)


def _abstract_batch(config: Config, shards: BatchShards, length: int) -> PyTree:
    """Returns the shapes and dtypes of a batch with texts of this length."""
    model = model_section(config, CLIPConfig)
    data = data_section(config, ImageTextConfig)
    rows = round_up(data.rows, shards.row_multiple)
    return {
        "images": jax.ShapeDtypeStruct((rows, *model.image_shape), jnp.uint8),
        "tokens": jax.ShapeDtypeStruct((rows, length), jnp.int32),
        REAL: jax.ShapeDtypeStruct((rows,), bool),
    }


def _sha256(pairs: ImageTexts) -> str:
    digest = hashlib.sha256(bytes(pairs.images))
    digest.update(repr(pairs.images.shape).encode())
    digest.update("\n".join(pairs.texts).encode())
    return digest.hexdigest()
