"""The layout of a foreign model: the fields of its config.json, and its tensors, as tables.

A table serves both directions, so that an export is the inverse of the import, bit for bit.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import flax.traverse_util
import numpy as np
from jaxtyping import Float, PyTree

from jaxformer.data.corpus import DataSection
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.marian_tokenizer import M2M100Tokenizer
from jaxformer.errors import UserError, prefix_errors
from jaxformer.interop.arrays import NamedArrays
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.architecture import Architecture
from jaxformer.search import BeamSearch

ImportedTokenizer: TypeAlias = HuggingFaceTokenizer | M2M100Tokenizer
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",  # the approximation with tanh
    "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
}
# Fields of ours that every layout expresses, or that change no number of an export.
_ALWAYS_EXPRESSED = ("architecture", "vocab_size", "compute_dtype")
# Beam search as in ``generate`` of transformers.
SEARCH = BeamSearch(
    penalty="power", length_penalty=1.0, ends_within="N", unfinished="compete", early_stop="likely"
)


class _Anything:
    def __contains__(self, value: object) -> bool:
        return True


ANY = _Anything()
_TOKEN_NAMES = {name: f"{name}_token" for name in ("pad", "eos", "bos", "unk")}
_SPECIAL = {name: f"{name}_token_id" for name in ("pad", "eos", "bos")}


class Tensor(NamedTuple):
    """A tensor of a file, and the parameters that it holds.

    Axes are D d_model, F d_ff, M max_length, V the vocabulary, H the heads, Q and K the heads of
    queries, or of keys and values, times their size, C = Q + 2 K, R the buckets of positions, N the
    classes, T the token types, P = 2, S the patches and the class token of a picture, and Y, X and
    Z the height, width and channels of a patch.
    """

    name: str  # "{n}" stands for the number of the layer, in the stack that ``ours`` begin with
    axes: str
    ours: tuple[str, ...]  # paths of parameters, which are joined along the last axis
    is_linear: bool = False  # nn.Linear, whose axes are [out, in], or Conv2d: [out, in, y, x]
    is_copy: bool = False  # may be left out, since ``ours`` has been read already


def label_fields(labels: Iterable[str]) -> dict[str, Any]:
    """Returns the fields of config.json that name classes."""
    names = {str(i): label for i, label in enumerate(labels)}
    return {"id2label": names, "label2id": {label: int(i) for i, label in names.items()}}


def affine(theirs: str, axes: str, ours: str, bias: bool = True) -> Iterator[Tensor]:
    """Yields the weight and the bias of nn.Linear or nn.Conv2d."""
    yield Tensor(f"{theirs}.weight", axes, (ours,), is_linear=True)
    if bias:
        yield Tensor(f"{theirs}.bias", axes[0], (f"{ours}_bias",))


def layer_norm(theirs: str, ours: str) -> Iterator[Tensor]:
    yield Tensor(f"{theirs}.weight", "D", (f"{ours}/scale",))
    yield Tensor(f"{theirs}.bias", "D", (f"{ours}/bias",))


def rms_norm(theirs: str, ours: str) -> Tensor:
    return Tensor(f"{theirs}.weight", "D", (f"{ours}/norm/scale",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A foreign model.

    Attributes:
      model_type: Its name in config.json.
      network: Its class in transformers, which may depend on our section.
      section: The dataclass of our model.
      fields: Fields of config.json, and our fields with the same meaning.
      defaults: Defaults of the fields that transformers does not always write.
      only: Fields, and the only value of each that our model has.
      lacks: Fields with dropout rates that our model lacks, and the part of the model with them.
      ignored: Pattern of further fields that change nothing.
      read: Returns further fields of ours.
      labels: Returns the labels of the classes of an encoder; None for another model.
      write: Returns further fields of config.json, given our section.
      tensors: Returns the tensors, given our section.
      constants: Returns parameters that files lack, given our section and the names of absent
        tokens; an export must not lose other values.
      data: Returns the section of data that selects the kind of the model, given our section.
      search: Search with the rules of ``generate`` in transformers.
      special: Fields of config.json with the ids of special tokens, by our names; "bos" begins the
        input of the decoder.
      token_names: Names in tokenizer_config.json of special tokens, by our names.
      tokenizer_class: Class in transformers that reads an exported tokenizer.json. The default
        takes the file as it is.
      preprocessor: Returns the fields of preprocessor_config.json, given our section, of pictures.
      example: Python code that uses an export; NETWORK stands for the class.
      special_tokens: Special tokens of tokenizer.json that config.json has no ids of.
      prefix: Beginning of the names of tensors, which a file may lack.
      tasks: Ends of the names of its classes in transformers with a head, such as "ForMaskedLM".
      heads: Beginnings of names that have no prefix; all others have one, if there are such names.
      old_names: Ends of the names of tensors in old files, and the ends of their names now.
      buffers: Pattern of the names of tensors that are no parameters.
      has_languages: Source and target begin with the code of a language.
      has_tokenizer: False for a model of pictures.
      expressed: Values of our other fields that config.json or the tensors express, by the names of
        the fields. A field that is neither here nor among ``fields`` must have its default.
      is_exported: False if another layout's file describes the same model.
    """

    model_type: str
    network: str | Callable[[Any], str]
    section: type[Architecture]
    fields: Mapping[str, str]
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: str
    read: Callable[[JsonFields], dict[str, Any]]
    labels: Callable[[JsonFields], list[str] | None] = lambda fields: None
    write: Callable[[Any], dict[str, Any]] = lambda section: {}
    tensors: Callable[[Any], Iterable[Tensor]]
    constants: Callable[[Any, str], dict[str, np.ndarray]] = lambda section, absent: {}
    data: Callable[[Any], DataSection]
    search: BeamSearch = SEARCH
    special: Mapping[str, str] = dataclasses.field(default_factory=lambda: _SPECIAL)
    token_names: Mapping[str, str] = dataclasses.field(default_factory=lambda: _TOKEN_NAMES)
    tokenizer_class: str = "PreTrainedTokenizerFast"
    preprocessor: Callable[[Any], dict[str, Any]] | None = None
    example: str
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    prefix: str = ""
    tasks: tuple[str, ...]
    heads: tuple[str, ...] = ("lm_head.",)
    old_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    buffers: str = "(?!)"
    has_languages: bool = False
    has_tokenizer: bool = True
    expressed: Mapping[str, Container[Any]] = dataclasses.field(default_factory=dict)
    is_exported: bool = True

    def can_express(self, model: Any, tokenizer: HuggingFaceTokenizer | None) -> bool:
        """Returns whether a file can describe a section, with all of its fields."""
        if type(model) is not self.section or not self.is_exported:
            return False
        absent = "" if tokenizer is None else tokenizer.absent
        any_value = dict.fromkeys((*_ALWAYS_EXPRESSED, *self.fields.values()), ANY)
        allowed = {"absent_tokens": [absent], **any_value, **self.expressed}
        return all(
            getattr(model, field.name) in allowed.get(field.name, [field.default])
            for field in dataclasses.fields(model)
        )

    def network_of(self, model: Any) -> str:
        return self.network if isinstance(self.network, str) else self.network(model)

    def check_architectures(self, fields: JsonFields) -> None:
        """Refuses a file of a class whose head we lack; its tensors may have names of ours."""
        found = fields.values.get("architectures")
        for name in found if isinstance(found, list) else [found]:
            task = re.search("For[A-Z].*", str(name))
            if task and task[0] not in self.tasks:
                known = ", ".join(self.tasks) or "a language model"
                raise UserError(
                    f"{fields.place}: expected architectures of a head that jaxformer has, "
                    f"{known}: got {name!s:.80}"
                )

    def name_of(self, name: str) -> str:
        """Returns the name that :attr:`tensors` gives to a tensor of a file."""
        for old, new in self.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name.removeprefix(self.prefix)

    def config(self, fields: JsonFields, tokenizer: ImportedTokenizer | None) -> Any:
        """Returns the section that a config.json describes; refuses other fields by name."""
        for name, only in self.only.items():
            fields.check(name, [only], repr(only), f"{self.section.__name__} has no other")
        fields.check_known({*self.fields, *self.only, *self.defaults}, self.ignored)
        values = {ours: self._value(fields, name, ours) for name, ours in self.fields.items()}
        values |= self.read(fields)
        if tokenizer is not None:
            values["vocab_size"] = tokenizer.vocab_size
            if tokenizer.absent and hasattr(self.section, "absent_tokens"):
                values["absent_tokens"] = tokenizer.absent
        with prefix_errors(str(fields.place)):
            return self.section(**values)

    def dropout(self, fields: JsonFields, model: Any) -> str:
        """Describes the dropout of a run that begins with the model."""
        names = "dropout", "attention_dropout"
        rates = {name: getattr(model, f"{name}_rate", 0) for name in names}
        found = [f"{name.replace('_', ' ')} {rate:g}" for name, rate in rates.items() if rate]
        lacks = [f"{n}={r}{part}" for n, part in self.lacks.items() if (r := fields.values.get(n))]
        text = f"{' and '.join(found) or 'no dropout'} in fine-tuning, as in config.json"
        return f"{text}, but not {' or '.join(lacks)}" if lacks else text

    def _value(self, fields: JsonFields, name: str, ours: str) -> Any:
        if ours == "activation":
            fields.check(name, list(ACTIVATIONS), " or ".join(ACTIVATIONS), "has no other")
            return ACTIVATIONS[fields.values[name]]
        if fields.values.get(name, "") is None:
            return None  # Our dataclass refuses it, unless it has a default.
        hint = typing.get_type_hints(self.section)[ours]
        return {bool: fields.boolean, float: fields.number}.get(hint, fields.integer)(name)

    def config_json(self, model: Any, tokenizer: HuggingFaceTokenizer | None) -> dict[str, Any]:
        """Returns the fields of config.json; the inverse of :meth:`config`."""
        values = {name: getattr(model, ours) for name, ours in self.fields.items()}
        for name, ours in self.fields.items():
            if ours == "activation":
                values[name] = next(n for n, own in ACTIVATIONS.items() if own == values[name])
        special: dict[str, Any] = {}
        if tokenizer is not None:
            special["vocab_size"] = len(tokenizer.our_ids)
            for name in self.special.keys() - self.special_tokens.keys():
                special[self.special[name]] = tokenizer.special[name]
            if labels := tokenizer.symbols:
                special |= label_fields(labels)
        return {
            "architectures": [self.network_of(model)],
            "model_type": self.model_type,
            "dtype": "float32",
            **special,
            **self.only,
            **values,
            **self.write(model),
        }

    def tokenizer_config_json(self, model: Any, tokenizer: HuggingFaceTokenizer) -> dict[str, Any]:
        """Returns the fields of tokenizer_config.json; AutoTokenizer then encodes as we do."""
        inputs = ["input_ids", "attention_mask"]
        if "num_token_types" in self.fields.values():
            inputs.insert(1, "token_type_ids")
        fields: dict[str, Any] = {
            "tokenizer_class": self.tokenizer_class,
            "model_input_names": inputs,
            "clean_up_tokenization_spaces": False,
        }
        if "max_length" in self.fields.values():
            fields["model_max_length"] = model.max_length
        if tokenizer.languages:
            fields["src_lang"], fields["tgt_lang"] = tokenizer.languages
        return fields | tokenizer.special_pieces(self.token_names)

    def params(self, arrays: NamedArrays, model: Any, shapes: PyTree, absent: str) -> PyTree:
        """Returns our parameters, in these shapes, from the tensors of a file."""
        flat = {n: a.astype(np.float32) for n, a in self.constants(model, absent).items()}
        templates = _flatten(shapes)
        for tensor in self.tensors(model):
            if tensor.is_copy:
                _check_copy(arrays, tensor, flat)
                continue
            layers = [arrays.array(name, tensor.axes) for name in _names(tensor, model)]
            layers = [layer.transpose(_order(tensor)) for layer in layers]
            joined = np.stack(layers) if "{n}" in tensor.name else layers[0]
            sizes = [_width(templates[path].shape, tensor) for path in tensor.ours]
            parts = np.split(joined, np.cumsum(sizes)[:-1], axis=-1)
            for path, part in zip(tensor.ours, parts, strict=True):
                flat[path] = part.reshape(templates[path].shape)
        arrays.check_all_read()
        assert flat.keys() == templates.keys(), sorted(flat.keys() ^ templates.keys())
        return flax.traverse_util.unflatten_dict(flat, sep="/")

    def arrays(
        self, params: PyTree, model: Any, tokenizer: HuggingFaceTokenizer | None
    ) -> dict[str, Float[np.ndarray, "..."]]:
        """Returns the tensors of a file; the inverse of :meth:`params`."""
        flat, found = _flatten(params), {}
        has_head = any(tensor.name.startswith(self.heads) for tensor in self.tensors(model))
        prefix = self.prefix if has_head else ""
        ids = np.arange(0) if tokenizer is None else tokenizer.our_ids
        sizes, absent = sizes_of(model, len(ids)), "" if tokenizer is None else tokenizer.absent
        constants = self.constants(model, absent)
        self._check_all_written(flat, model, constants)
        for path, array in constants.items():
            if not np.array_equal(flat[path], array):
                raise UserError(
                    f"{self.model_type}: transformers has no {path}, which training has changed; "
                    f"train with training.freeze={path}"
                )
        for tensor in self.tensors(model):
            if tensor.is_copy:
                continue
            order, kept = _order(tensor), len(tensor.axes) - 1 + ("{n}" in tensor.name)
            own = [flat[path].reshape(*flat[path].shape[:kept], -1) for path in tensor.ours]
            joined = np.concatenate(own, axis=-1) if len(own) > 1 else flat[tensor.ours[0]]
            joined = joined[ids] if tensor.axes[0] == "V" else joined
            names = _names(tensor, model)
            shape = [len(names), *(sizes[tensor.axes[axis]] for axis in order)]
            layers = joined.reshape(shape).transpose(0, *(1 + np.argsort(order)))
            for name, layer in zip(names, layers, strict=True):
                found[name if name.startswith(self.heads) else prefix + name] = layer
        return found

    def _check_all_written(
        self, params: Collection[str], model: Any, constants: Collection[str]
    ) -> None:
        """Refuses parameters that no tensor of a file holds."""
        written = {path for tensor in self.tensors(model) for path in tensor.ours}
        unwritten = sorted(set(params) - written - set(constants))
        if unwritten:
            raise UserError(
                f"{self.model_type}: expected the parameters of a {type(model).__name__}, got also "
                f"{unwritten[0]}, which transformers has no place for; remove it"
            )


def sizes_of(model: Architecture, vocab_size: int) -> dict[str, int]:
    """Returns the size of each axis of :class:`Tensor`."""
    queries, keys = (heads * model.key_size for heads in (model.num_heads, model.kv_heads))
    sizes = {"D": model.d_model, "F": model.d_ff, "H": model.num_heads, "V": vocab_size}
    sizes |= {"Q": queries, "K": keys, "C": queries + 2 * keys, "P": 2, "1": 1}
    fields = {"M": "max_length", "R": "num_buckets", "N": "num_classes", "T": "num_token_types"}
    fields |= {"S": "num_tokens", "X": "patch_size", "Y": "patch_size", "Z": "channels"}
    return sizes | {axis: getattr(model, field, 0) for axis, field in fields.items()}


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
    layers = model.num_layers if tensor.ours[0].startswith("encoder/") else model.decoder_layers
    return [tensor.name.format(n=number) for number in range(layers)]


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Returns the order of our axes, of a matrix or a convolution: the outputs last."""
    axes = tuple(range(len(tensor.axes)))
    return (*axes[2:], *axes[1::-1]) if tensor.is_linear else axes


def _width(shape: tuple[int, ...], tensor: Tensor) -> int:
    """Returns the size of the axes of a parameter that a file joins, the last ones."""
    return int(np.prod(shape[len(tensor.axes) - 1 + ("{n}" in tensor.name) :]))
