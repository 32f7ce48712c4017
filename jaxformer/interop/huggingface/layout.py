"""The layout of a foreign model: the fields of its config.json, and its tensors, as tables.

A table serves both directions, so that an export is the inverse of the import, bit for bit.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import flax.traverse_util
import numpy as np
from jaxtyping import Float, PyTree

from jaxformer.data.corpus import DataSection
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.errors import UserError
from jaxformer.interop.arrays import NamedArrays
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.architecture import Architecture
from jaxformer.search import BeamSearch

ACTIVATIONS = {
    "gelu_new": "gelu",  # the approximation with tanh; "gelu" is the exact function
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
}
# Beam search as in ``generate`` of transformers.
SEARCH = BeamSearch(
    penalty="power", length_penalty=1.0, ends_within="N", unfinished="compete", early_stop="likely"
)
_SPECIAL = {name: f"{name}_token_id" for name in ("pad", "eos", "bos")}
# Fields that change no result.
_HARMLESS = re.compile(
    r"_.*|architectures|(torch_)?dtype|initializer_range|transformers_version|use_cache"
    r"|(pad|eos|bos)_token_id|model_type|vocab_size|task_specific_params|tokenizer_class"
)
_UNSET = (None, False, [], {})


class Tensor(NamedTuple):
    """A tensor of a file, and the parameters that it holds.

    Axes are D d_model, F d_ff, M max_length, V the vocabulary, H the heads, Q and K the heads of
    queries, or of keys and values, times their size, C = Q + 2 K, and R the buckets of positions.
    """

    name: str  # "{n}" stands for the number of the layer, in the stack that ``ours`` begin with
    axes: str
    ours: tuple[str, ...]  # paths of parameters, which are joined along the last axis
    is_linear: bool = False  # nn.Linear, whose axes are [out, in]
    is_copy: bool = False  # may be left out, since ``ours`` has been read already


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A foreign model.

    Attributes:
      model_type: Its name in config.json.
      network: Its class in transformers.
      section: The dataclass of our model.
      fields: Fields of config.json, and our fields with the same meaning.
      defaults: Defaults of the fields that transformers does not always write.
      only: Fields, and the only value of each that our model has.
      ignored: Pattern of fields that change nothing.
      read: Returns further fields of ours.
      detect: Returns fields of ours that depend on the tensors, by name.
      write: Returns further fields of config.json, given our section.
      tensors: Returns the tensors, given our section.
      data: Returns the section of data that selects the kind of the model, given our section.
      search: Search with the rules of ``generate`` in transformers.
      special: Fields of config.json with the ids of special tokens, by our names; "bos" begins the
        input of the decoder.
      example: Python code that uses an export.
      prefix: Beginning of the names of tensors, which a file may lack.
      buffers: Pattern of the names of tensors that are no parameters.
      can_express: Returns False for a section that config.json cannot describe.
    """

    model_type: str
    network: str
    section: type[Architecture]
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    ignored: str
    read: Callable[[JsonFields], dict[str, Any]]
    write: Callable[[Any], dict[str, Any]]
    tensors: Callable[[Any], Iterable[Tensor]]
    data: Callable[[Any], DataSection]
    detect: Callable[[Mapping[str, np.ndarray]], dict[str, Any]] = lambda arrays: {}
    search: BeamSearch = SEARCH
    special: Mapping[str, str] = dataclasses.field(default_factory=lambda: _SPECIAL)
    example: str
    prefix: str = ""
    buffers: str = "(?!)"
    can_express: Callable[[Any], bool] = lambda section: True

    def config(
        self,
        fields: JsonFields,
        tokenizer: HuggingFaceTokenizer,
        arrays: Mapping[str, np.ndarray],
    ) -> Any:
        """Returns the section that a config.json describes; refuses other fields by name."""
        for name, only in self.only.items():
            fields.check(name, [only], repr(only), f"{self.section.__name__} has no other")
        known = {*self.fields, *self.only, *self.defaults}
        for name, value in fields.values.items():
            other = name not in known and value not in _UNSET
            if other and not _HARMLESS.fullmatch(name) and not re.fullmatch(self.ignored, name):
                raise UserError(f"{fields.place}: jaxformer does not know {name}={value!r:.80}")
        values = {ours: self._value(fields, name, ours) for name, ours in self.fields.items()}
        values |= self.read(fields) | self.detect(arrays)
        sizes = {"vocab_size": tokenizer.vocab_size, "absent_tokens": tokenizer.absent}
        try:
            return self.section(**sizes, **values)
        except UserError as error:
            raise UserError(f"{fields.place}: {error}") from None

    def _value(self, fields: JsonFields, name: str, ours: str) -> Any:
        if ours == "activation":
            fields.check(name, list(ACTIVATIONS), " or ".join(ACTIVATIONS), "has no other")
            return ACTIVATIONS[fields.values[name]]
        if fields.values.get(name, "") is None:
            return None  # Our dataclass refuses it, unless it has a default.
        hint = typing.get_type_hints(self.section)[ours]
        readers = {bool: fields.boolean, float: fields.number}
        return readers.get(hint, fields.integer)(name)

    def config_json(self, model: Any, tokenizer: HuggingFaceTokenizer) -> dict[str, Any]:
        """Returns the fields of config.json; the inverse of :meth:`config`."""
        values = {name: getattr(model, ours) for name, ours in self.fields.items()}
        for name, ours in self.fields.items():
            if ours == "activation":
                values[name] = next(n for n, own in ACTIVATIONS.items() if own == values[name])
        special = {field: tokenizer.special[name] for name, field in self.special.items()}
        return {
            "architectures": [self.network],
            "model_type": self.model_type,
            "dtype": "float32",
            "vocab_size": len(tokenizer.our_ids),
            **special,
            **self.only,
            **values,
            **self.write(model),
        }

    def params(self, arrays: NamedArrays, model: Any, shapes: PyTree) -> PyTree:
        """Returns our parameters, in these shapes, from the tensors of a file."""
        flat: dict[str, np.ndarray] = {}
        templates = _flatten(shapes)
        for tensor in self.tensors(model):
            if tensor.is_copy:
                _check_copy(arrays, tensor, flat)
                continue
            layers = [arrays.array(name, tensor.axes) for name in _names(tensor, model)]
            joined = np.stack(layers) if "{n}" in tensor.name else layers[0]
            joined = joined.swapaxes(-1, -2) if tensor.is_linear else joined
            sizes = [_width(templates[path].shape, tensor) for path in tensor.ours]
            parts = np.split(joined, np.cumsum(sizes)[:-1], axis=-1)
            for path, part in zip(tensor.ours, parts, strict=True):
                flat[path] = part.reshape(templates[path].shape)
        arrays.check_all_read()
        return flax.traverse_util.unflatten_dict(flat, sep="/")

    def arrays(
        self, params: PyTree, model: Any, tokenizer: HuggingFaceTokenizer
    ) -> dict[str, Float[np.ndarray, "..."]]:
        """Returns the tensors of a file; the inverse of :meth:`params`."""
        flat, found = _flatten(params), {}
        for tensor in self.tensors(model):
            if tensor.is_copy:
                continue
            own = [flat[path] for path in tensor.ours]
            lead = "{n}" in tensor.name
            shaped = [a.reshape(*_rows(a.shape, tensor), _width(a.shape, tensor)) for a in own]
            joined = np.concatenate(shaped, axis=-1)
            joined = joined.swapaxes(-1, -2) if tensor.is_linear else joined
            if tensor.axes[0] == "V":
                joined = joined[tokenizer.our_ids]
            for number, name in enumerate(_names(tensor, model)):
                found[self._add_prefix(name)] = joined[number] if lead else joined
        return found

    def _add_prefix(self, name: str) -> str:
        return name if name.startswith("lm_head.") else self.prefix + name


def sizes_of(model: Architecture, vocab_size: int) -> dict[str, int]:
    """Returns the size of each axis of :class:`Tensor`."""
    queries, keys = (heads * model.key_size for heads in (model.num_heads, model.kv_heads))
    sizes = {"D": model.d_model, "F": model.d_ff, "M": model.max_length, "V": vocab_size}
    sizes |= {"H": model.num_heads, "R": getattr(model, "num_buckets", 0)}
    return sizes | {"Q": queries, "K": keys, "C": queries + 2 * keys}


def _check_copy(arrays: NamedArrays, tensor: Tensor, read: Mapping[str, np.ndarray]) -> None:
    if tensor.name not in arrays:
        return
    if not np.array_equal(arrays.array(tensor.name, tensor.axes), read[tensor.ours[0]]):
        raise UserError(
            f"{arrays.place}: expected {tensor.name} to be the same as the embeddings, as "
            "config.json says"
        )


def _flatten(tree: PyTree) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(tree, sep="/")


def _names(tensor: Tensor, model: Architecture) -> list[str]:
    if "{n}" not in tensor.name:
        return [tensor.name]
    is_encoder = tensor.ours[0].startswith("encoder/")
    layers = model.num_layers if is_encoder else model.decoder_layers
    return [tensor.name.format(n=number) for number in range(layers)]


def _rows(shape: tuple[int, ...], tensor: Tensor) -> tuple[int, ...]:
    """Returns the axes of a parameter before those that a file joins: of layers, and of inputs."""
    return shape[: len(tensor.axes) - 1 + ("{n}" in tensor.name)]


def _width(shape: tuple[int, ...], tensor: Tensor) -> int:
    return int(np.prod(shape[len(_rows(shape, tensor)) :]))
