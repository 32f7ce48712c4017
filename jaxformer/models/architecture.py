"""The base of all sections ``model`` of a config, and special tokens that a model lacks."""

from typing import TYPE_CHECKING, Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxformer.data.tokenizer import BOS, EOS, PAD, UNK
from jaxformer.errors import UserError
from jaxformer.fields import check_values
from jaxformer.nn.precision import ComputeDtype

_SPECIAL = {"pad": PAD, "eos": EOS, "bos": BOS, "unk": UNK}
# Such a logit has probability 0, even beside GPT-2's logits of -100; -inf has gradients of NaN.
_NEVER_GENERATED = -1e4


class Architecture:
    """The base of the frozen dataclasses that describe models; each model has its own.

    ``ModelConfig`` describes the paper's. A dataclass of another model has a field ``architecture``
    with its name, which selects it when a config is read. Values that are out of range, or that do
    not fit together, raise a ``UserError``.
    """

    if TYPE_CHECKING:  # Only subclasses are dataclasses, in their own order of fields.
        __dataclass_fields__: ClassVar[dict[str, Any]]

    architecture = "transformer"
    feed_forward_matrices = 2  # to count operations
    target_vocab_size: int | None = None
    window: int | None = None
    # Other models have fields for some of these. Positions are None if layers encode them.
    norm_position = "pre"
    positions = "learned"
    biases = True
    embeddings = "tied"
    has_scaled_embeddings = False
    d_v = None
    d_k: int | None = None
    num_kv_heads: int | None = None
    num_decoder_layers: int | None = None
    vocab_size: int
    d_model: int
    d_ff: int
    num_heads: int
    num_layers: int
    norm_epsilon: float
    max_length: int
    compute_dtype: ComputeDtype

    def __post_init__(self) -> None:
        check_values(self, "model")

        if "d_k" not in self.__dataclass_fields__:  # A head has no size of its own.
            check_divides(self, "num_heads", "d_model")

        self._check_absent_tokens()

    def _check_absent_tokens(self) -> None:
        absent = getattr(self, "absent_tokens", "")
        known = _SPECIAL.keys() - {"eos"}  # Without an end, generation would not stop.

        if not known.issuperset(absent.split()):
            choices = ", ".join(sorted(known))
            raise UserError(
                f"model.absent_tokens must be some of {choices}, separated by spaces: got "
                f"{absent!r:.80}"
            )

    @property
    def key_size(self) -> int:
        """Size of the queries and keys of a head, with the default applied."""
        return self.d_model // self.num_heads if self.d_k is None else self.d_k

    @property
    def value_size(self) -> int:
        """Size of the values of a head."""
        return self.key_size

    @property
    def kv_heads(self) -> int:
        """Number of heads of keys and values."""
        return self.num_heads if self.num_kv_heads is None else self.num_kv_heads

    @property
    def embedding_names(self) -> tuple[str, str, str]:
        """Names of the parameters of the source, target and output matrices."""
        if self.embeddings == "tied":
            return "embedding", "embedding", "embedding"
        return "embedding", "embedding", "output_embedding"

    @property
    def output_size(self) -> int:
        """Number of logits, and of rows of the target and output matrices."""
        return self.vocab_size if self.target_vocab_size is None else self.target_vocab_size

    @property
    def decoder_layers(self) -> int:
        """Number of layers of the decoder, or of the only stack."""
        return self.num_layers if self.num_decoder_layers is None else self.num_decoder_layers


def check_divides(
    model: Architecture,
    part: str,
    whole: str,
    advice: str = "",
) -> None:
    """Checks that one field of a model divides another."""
    given = getattr(model, part)
    size = getattr(model, whole)
    if size % given == 0:
        return

    divisors = [n for n in range(1, size + 1) if size % n == 0]
    nearest = min(divisors, key=lambda n: abs(n - given))
    raise UserError(
        f"model.{part} must divide model.{whole}={size}: got {given}; use {nearest}{advice}"
    )


def check_even_heads(model: Architecture) -> None:
    """Checks that rotary positions can rotate pairs of the entries of a head."""
    if model.key_size % 2:
        raise UserError(
            "the size of a head, model.d_k, must be even, since rotary positions turn pairs: got "
            f"{model.key_size}"
        )


def absent_bias(names: str, vocab_size: int) -> Float[Array, " V"] | None:
    """Returns the bias of the logits of a model whose vocabulary lacks special tokens.

    jaxformer's vocabularies have four. A foreign model's may lack some, such as "pad bos unk" in
    GPT-2's. They have rows in our tables, and must not be generated.

    >>> absent_bias("pad", 5).tolist()
    [-10000.0, 0.0, 0.0, 0.0, 0.0]
    """
    if not names:
        return None

    absent_ids = [_SPECIAL[name] for name in names.split()]
    absent = np.isin(np.arange(vocab_size), absent_ids)  # [V]
    return jnp.where(absent, jnp.float32(_NEVER_GENERATED), 0.0)
