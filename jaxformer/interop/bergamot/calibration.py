"""Scales of int8 activations, from float32 translations of a few sentences.

An engine multiplies the input of each matrix by a fixed number, alpha, and rounds to int8. Larger
inputs than 127 / alpha are clipped. As for Bergamot's models, this limit is the mean of the largest
absolute inputs of each sentence, plus 1.1 standard deviations.
"""

import collections
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from jaxtyping import Float

from jaxformer.interop.bergamot.layout import ALPHA
from jaxformer.models.student import StudentConfig
from jaxformer.nn.positions import tensor2tensor_positions

_DEVIATIONS = 1.1
_Array = Float[np.ndarray, "T D"]


def find_alphas(
    tensors: Mapping[str, np.ndarray],
    config: StudentConfig,
    pairs: Iterable[tuple[Sequence[int], Sequence[int]]],
) -> dict[str, np.ndarray]:
    """Returns the scale of each matrix's input, from sources and translations in Bergamot's ids."""
    model = _Model(tensors, config)
    for source, target in pairs:
        model.translate(source, target)
    alphas = {}
    for name, maxima in model.maxima.items():
        limit = np.mean(maxima) + _DEVIATIONS * np.std(maxima)
        alphas[f"{name}{ALPHA}"] = np.array([[127 / max(limit, 1e-6)]], np.float32)
    # The scale of the logits' input has two names.
    return alphas | {f"none{ALPHA}": alphas[f"Wemb{ALPHA}"]}


class _Model:
    """A student in NumPy, which records the inputs of its matrices."""

    def __init__(self, tensors: Mapping[str, np.ndarray], config: StudentConfig) -> None:
        self.tensors, self.config = tensors, config
        self.maxima: dict[str, list[float]] = collections.defaultdict(list)

    def translate(self, source: Sequence[int], target: Sequence[int]) -> None:
        """Encodes a sentence, and decodes a given translation of it."""
        table, layers = self.tensors["Wemb"], range(1, self.config.num_layers + 1)
        memory = self._add_positions(table[np.asarray(source)])
        for name in (f"encoder_l{n}" for n in layers):
            memory = self._attend(memory, memory, f"{name}_self")
            memory = self._feed_forward(memory, f"{name}_ffn")
        x = table[np.asarray(target[:-1], int)]
        x = self._add_positions(np.concatenate([np.zeros_like(table[:1]), x]))
        for name in (f"decoder_l{n + 1}" for n in range(self.config.num_decoder_layers)):
            x = self._recur(x, f"{name}_rnn")
            x = self._attend(x, memory, f"{name}_context")
            x = self._feed_forward(x, f"{name}_ffn")
        self.maxima["Wemb"].append(np.abs(x).max())

    def _multiply(self, x: _Array, prefix: str, letter: str) -> _Array:
        self.maxima[f"{prefix}_W{letter}"].append(np.abs(x).max())
        bias = self.tensors.get(f"{prefix}_b{letter}", 0)
        return x @ self.tensors[f"{prefix}_W{letter}"] + bias

    def _add_positions(self, x: _Array) -> _Array:
        length, size = x.shape
        return x * math.sqrt(size) + np.asarray(tensor2tensor_positions(length, size))

    def _norm(self, x: _Array, name: str) -> _Array:
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=1, keepdims=True) + self.config.norm_epsilon)
        return x * self.tensors[f"{name}_ln_scale"] + self.tensors[f"{name}_ln_bias"]

    def _attend(self, x: _Array, memory: _Array, name: str) -> _Array:
        heads = self.config.num_heads
        q, k, v = (
            self._multiply(inputs, name, letter).reshape(len(inputs), heads, -1)
            for inputs, letter in ((x, "q"), (memory, "k"), (memory, "v"))
        )
        scores = np.einsum("thk,shk->hts", q, k) / math.sqrt(q.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        y = np.einsum("hts,shk->thk", weights, v).reshape(len(x), -1)
        return self._norm(x + self._multiply(y, name, "o"), f"{name}_Wo")

    def _feed_forward(self, x: _Array, name: str) -> _Array:
        y = self._multiply(x, name, "1")
        y = np.maximum(y, 0) if self.config.activation == "relu" else y / (1 + np.exp(-y))
        return self._norm(x + self._multiply(y, name, "2"), f"{name}_ffn")

    def _recur(self, x: _Array, name: str) -> _Array:
        kept = 1 / (1 + np.exp(-self._multiply(x, name, "f")))
        new = (1 - kept) * self._multiply(x, name, "")
        state = np.zeros_like(new[0])
        states = []
        for t in range(len(x)):
            state = kept[t] * state + new[t]
            states.append(state)
        return self._norm(x + np.maximum(states, 0), f"{name}_ffn")
