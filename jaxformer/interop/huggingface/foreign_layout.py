"""The layout of a foreign model: the fields of its config.json, and its tensors, as tables.

A table serves both directions, so that an export is the inverse of the import, bit for bit.
"""

import dataclasses
import typing
from collections.abc import (
    Callable,
    Collection,
    Container,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from typing import Any, NamedTuple, TypeAlias

import flax.traverse_util
import numpy as np
from jaxtyping import Float, Int, PyTree

from jaxformer.data.corpus import DataSection
from jaxformer.data.huggingface_tokenizer import HuggingFaceTokenizer
from jaxformer.data.letters_tokenizer import LettersTokenizer
from jaxformer.data.m2m100_tokenizer import M2M100Tokenizer
from jaxformer.errors import UserError, prefix_errors
from jaxformer.fields import expected_type
from jaxformer.interop.json_fields import JsonFields, nest_sections
from jaxformer.interop.named_arrays import NamedArrays
from jaxformer.models.architecture import Architecture

ImportedTokenizer: TypeAlias = HuggingFaceTokenizer | LettersTokenizer | M2M100Tokenizer
ACTIVATIONS = {
    "gelu": "gelu_exact",
    "gelu_new": "gelu",  # the approximation with tanh
    "gelu_pytorch_tanh": "gelu",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "silu": "swish",
    "swish": "swish",
    "tanh": "tanh",
}
# Fields of ours that every layout expresses, or that change no number of an export.
_ALWAYS_EXPRESSED = ("architecture", "vocab_size", "compute_dtype")


class _Anything:
    def __contains__(self, value: object) -> bool:
        return True


ANY = _Anything()
_TOKEN_NAMES = {
    "pad": "pad_token",
    "eos": "eos_token",
    "bos": "bos_token",
    "unk": "unk_token",
}
_SPECIAL = {
    "pad": "pad_token_id",
    "eos": "eos_token_id",
    "bos": "bos_token_id",
}


class Tensor(NamedTuple):
    """A tensor of a file, and the parameters that it holds.

    Axes are D d_model, E the width of embeddings, F d_ff, M max_length, V the vocabulary, H the
    heads, Q and K the heads of queries, or of keys and values, times their size, U the size of a
    head, C = Q + 2 K, R the buckets of positions, N the classes, T the token types, P = 2, S the
    patches and the class token of a picture, and Y, X and Z the height, width and channels of a
    patch. A layout may name others, and other sizes or orders of these; see :attr:`Layout.sizes`
    and :attr:`Layout.orders`.
    """

    name: str  # "{n}" stands for the number of the layer, in the stack that ``ours`` begin with
    axes: str
    ours: tuple[str, ...]  # paths of parameters, which are joined along the last axis
    is_linear: bool = False  # nn.Linear, whose axes are [out, in], or Conv2d: [out, in, y, x]
    is_copy: bool = False  # may be left out, since ``ours`` has been read already
    is_optional: bool = False  # may be left out, for zeros
    # The numbers in the file of the layers of our stack; None for 0, 1, 2, ...
    numbers: Sequence[int] | None = None

    @property
    def is_per_layer(self) -> bool:
        """True if a file has one such tensor for each layer, which our parameters stack."""
        return "{n}" in self.name

    @property
    def num_kept_axes(self) -> int:
        """Number of the first axes of a parameter that are never joined with others."""
        return self.is_per_layer + len(self.axes) - 1


def label_fields(labels: Iterable[str]) -> dict[str, Any]:
    """Returns the fields of config.json that name classes."""
    label_of_number: dict[str, str] = {}
    number_of_label: dict[str, int] = {}
    for number, label in enumerate(labels):
        label_of_number[str(number)] = label
        number_of_label[label] = number
    return {"id2label": label_of_number, "label2id": number_of_label}


def affine(theirs: str, axes: str, ours: str, bias: bool = True) -> Iterator[Tensor]:
    """Yields the weight and the bias of nn.Linear or nn.Conv2d."""
    yield Tensor(f"{theirs}.weight", axes, (ours,), is_linear=True)
    if bias:
        outputs = axes[0]
        yield Tensor(f"{theirs}.bias", outputs, (f"{ours}_bias",))


def layer_norm(theirs: str, ours: str, axis: str = "D") -> Iterator[Tensor]:
    yield Tensor(f"{theirs}.weight", axis, (f"{ours}/scale",))
    yield Tensor(f"{theirs}.bias", axis, (f"{ours}/bias",))


def rms_norm(theirs: str, ours: str) -> Tensor:
    return Tensor(f"{theirs}.weight", "D", (f"{ours}/norm/scale",))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """A foreign model.

    Attributes:
      model_type: Its name in config.json.
      parts: Types of its parts by section of config.json, for a model that consists of others and
        has a layout for each choice of them.
      network: Its class in transformers, which may depend on our section.
      section: The dataclass of our model.
      fields: Fields of config.json, and our fields with the same meaning.
      renamed: Other names of fields, which take precedence, and the names among ``fields``.
      defaults: Defaults of the fields that transformers does not always write.
      only: Fields, and the only value of each that our model has.
      lacks: Fields with dropout rates that our model lacks, and the part of the model with them.
      ignored: Pattern of further fields that change nothing.
      read: Returns further fields of ours.
      labels: Returns the labels of the classes of an encoder; None for another model.
      write: Returns further fields of config.json, given our section.
      sections: Names of the nested sections of config.json. Their fields have names with a dot:
        ``"encoder.hidden_size"``.
      vocab_fields: Fields with the size of the vocabulary.
      tensors: Returns the tensors, given our section.
      continued: Tensors with the last rows of others, by the names of the others, which
        :attr:`tensors` have as a whole.
      additional_vocab: The field, among ``fields``, with the number of these rows. The size of the
        vocabulary does not count them.
      token_fields: Fields of ours with the id of a token, and the token.
      unread: Returns names of further tensors that a file may have, which its own model ignores,
        given our section.
      sizes: Returns the sizes in a file of axes that our section has no size of, or another one.
      orders: Returns the index in a file for each index of ours, by the letters of axes. A file may
        have more, of rows that no token reads; an export has zeros there.
      constants: Returns parameters that files lack, given our section and the names of absent
        tokens; an export must not lose other values.
      data: Returns the section of data that selects the kind of the model, given our section.
      read_tokenizer: Reads the tokenizer of a model that has no tokenizer.json, given config.json;
        its result is None for a file without any.
      finish_tokenizer: Returns the tokenizer with what it keeps of generation_config.json.
      special: Fields of config.json with the ids of special tokens, by our names; "bos" begins the
        input of the decoder.
      token_names: Names in tokenizer_config.json of special tokens, by our names.
      tokenizer_class: Class in transformers that reads an exported tokenizer.json, which may depend
        on our tokenizer. The default takes the file as it is.
      preprocessor: Returns the fields of preprocessor_config.json, given our section, of pictures.
      example: Python code that uses an export, which may depend on our section; NETWORK stands for
        the class.
      special_tokens: Special tokens of tokenizer.json that config.json has no ids of.
      written_ids: Fields with ids of special tokens, by our names, that an export has and that an
        import does not read.
      check_tokenizer: Refuses a tokenizer that does not suit config.json.
      prefix: Beginning of the names of tensors, which a file may lack.
      tasks: Ends of the names of its classes in transformers with a head, such as "ForMaskedLM".
      heads: Beginnings of names that have no prefix; all others have one, if there are such names.
      old_names: Ends of the names of tensors in old files, and the ends of their names now.
      buffers: Pattern of the names of tensors that are no parameters.
      has_languages: Source and target have the code of a language.
      code_follows: Returns whether the code of the source follows its end, and the decoder begins
        with the code of the target, given the class of the tokenizer and tokenizer_config.json.
      has_tokenizer: False for a model of pictures.
      expressed: Values of our other fields that config.json or the tensors express, by the names of
        the fields. A field that is neither here nor among ``fields`` must have its default.
      fits: Returns whether the values of several fields fit together in a file, given our section.
      is_exported: False if another layout's file describes the same model.
    """

    model_type: str
    parts: Mapping[str, str] = dataclasses.field(default_factory=dict)
    network: str | Callable[[Any], str]
    section: type[Architecture]
    fields: Mapping[str, str]
    renamed: Mapping[str, str] = dataclasses.field(default_factory=dict)
    defaults: Mapping[str, Any]
    only: Mapping[str, Any]
    lacks: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: str
    read: Callable[[JsonFields], dict[str, Any]]
    labels: Callable[[JsonFields], list[str] | None] = lambda fields: None
    write: Callable[[Any], dict[str, Any]] = lambda section: {}
    sections: tuple[str, ...] = ()
    vocab_fields: tuple[str, ...] = ("vocab_size",)
    tensors: Callable[[Any], Iterable[Tensor]]
    continued: Mapping[str, str] = dataclasses.field(default_factory=dict)
    additional_vocab: str = ""
    token_fields: Mapping[str, str] = dataclasses.field(default_factory=dict)
    unread: Callable[[Any], Iterable[str]] = lambda section: ()
    sizes: Callable[[Any], dict[str, int]] = lambda section: {}
    orders: Callable[[Any], dict[str, Int[np.ndarray, " indices"]]] = lambda section: {}
    constants: Callable[[Any, str], dict[str, np.ndarray]] = lambda section, absent: {}
    data: Callable[[Any], DataSection]
    read_tokenizer: Callable[[JsonFields], ImportedTokenizer | None] | None = None
    finish_tokenizer: Callable[[HuggingFaceTokenizer, JsonFields], HuggingFaceTokenizer] = (
        lambda tokenizer, generation: tokenizer
    )
    special: Mapping[str, str] = dataclasses.field(default_factory=lambda: _SPECIAL)
    token_names: dict[str, str] = dataclasses.field(default_factory=lambda: _TOKEN_NAMES)
    tokenizer_class: str | Callable[[Any], str] = "PreTrainedTokenizerFast"
    preprocessor: Callable[[Any], dict[str, Any]] | None = None
    example: str | Callable[[Any], str]
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=dict)
    written_ids: Mapping[str, str] = dataclasses.field(default_factory=dict)
    check_tokenizer: Callable[[JsonFields, ImportedTokenizer], None] = lambda fields, own: None
    prefix: str = ""
    tasks: tuple[str, ...]
    heads: tuple[str, ...] = ("lm_head.",)
    old_names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    buffers: str = "(?!)"
    has_languages: bool = False
    code_follows: Callable[[str, JsonFields], bool] = lambda name, settings: False
    has_tokenizer: bool = True
    expressed: Mapping[str, Container[Any]] = dataclasses.field(default_factory=dict)
    fits: Callable[[Any], bool] = lambda section: True
    is_exported: bool = True

    @property
    def has_decoder(self) -> bool:
        """True if the model writes outputs to a source, which begin with a token of their own."""
        return "decoder_start_token_id" in self.special.values()

    def can_express(self, model: Any, tokenizer: ImportedTokenizer | None) -> bool:
        """Returns whether a file can describe a section, with all of its fields."""
        is_of_section = type(model) is self.section
        if not is_of_section or not self.is_exported:
            return False

        allowed: dict[str, Container[Any]] = {"absent_tokens": [_absent_tokens(tokenizer)]}
        allowed |= dict.fromkeys(_ALWAYS_EXPRESSED, ANY)
        allowed |= dict.fromkeys(self.fields.values(), ANY)
        allowed |= self.expressed

        for field in dataclasses.fields(model):
            value = getattr(model, field.name)
            allowed_values = allowed.get(field.name, [field.default])
            if value not in allowed_values:
                return False
        return self.fits(model)

    def network_of(self, model: Any) -> str:
        if isinstance(self.network, str):
            return self.network
        return self.network(model)

    def example_of(self, model: Any) -> str:
        if isinstance(self.example, str):
            example = self.example
        else:
            example = self.example(model)

        network = self.network_of(model)
        return example.replace("NETWORK", network)

    def check_architectures(self, fields: JsonFields) -> None:
        """Refuses a file of a class whose head we lack; its tensors may have names of ours."""
        for head, name in fields.architecture_heads().items():
            if head not in self.tasks:
                known = ", ".join(self.tasks) or "a language model"
                raise UserError(
                    f"{fields.place}: expected architectures of a head that jaxformer has, "
                    f"{known}: got {name:.80}"
                )

    def name_of(self, name: str) -> str:
        """Returns the name that :attr:`tensors` gives to a tensor of a file."""
        for old, new in self.old_names.items():
            if name.endswith(old):
                name = name.removesuffix(old) + new
        return name.removeprefix(self.prefix)

    def config(self, fields: JsonFields, tokenizer: ImportedTokenizer | None) -> Any:
        """Returns the section that a config.json describes; refuses other fields by name."""
        reason = f"{self.section.__name__} has no other"
        for name, only in self.only.items():
            fields.check(name, known=[only], expected=repr(only), reason=reason)
        known = {*self.fields, *self.only, *self.defaults}
        fields.check_known(known, self.ignored)

        values = {}
        for name, ours in self.fields.items():
            values[ours] = self._value(fields, name, ours)
        values |= self.read(fields)
        if tokenizer is not None:
            values |= self._values_of_tokenizer(fields, tokenizer)

        with prefix_errors(str(fields.place)):
            return self.section(**values)

    def _values_of_tokenizer(
        self,
        fields: JsonFields,
        tokenizer: ImportedTokenizer,
    ) -> dict[str, Any]:
        """Returns the fields of ours that depend on the tokenizer, which it checks."""
        self.check_tokenizer(fields, tokenizer)
        values: dict[str, Any] = {"vocab_size": tokenizer.vocab_size}

        has_field = hasattr(self.section, "absent_tokens")
        if has_field and tokenizer.absent:
            values["absent_tokens"] = tokenizer.absent

        for name, token in self.token_fields.items():
            values[name] = _id_of(token, tokenizer, fields)
        return values

    def dropout(self, fields: JsonFields, model: Any) -> str:
        """Describes the dropout of a run that begins with the model."""
        found = []
        for name in ("dropout", "attention_dropout"):
            rate = getattr(model, f"{name}_rate", 0)
            if rate:
                words = name.replace("_", " ")
                found.append(f"{words} {rate:g}")

        lacking = []
        for name, part in self.lacks.items():
            rate = fields.values.get(name)
            if rate:
                lacking.append(f"{name}={rate}{part}")

        rates = " and ".join(found) or "no dropout"
        text = f"{rates} in fine-tuning, as in config.json"
        if lacking:
            text += f", but not {' or '.join(lacking)}"
        return text

    def _value(self, fields: JsonFields, name: str, ours: str) -> Any:
        """Returns the value of a field of config.json, of the type of our field."""
        if ours.endswith("activation"):
            fields.check(
                name,
                known=list(ACTIVATIONS),
                expected=" or ".join(ACTIVATIONS),
                reason="has no other",
            )
            value = fields.values[name]
            return ACTIVATIONS[value]

        if fields.values.get(name, "") is None:
            return None  # Our dataclass refuses it, unless it has a default.

        hints = typing.get_type_hints(self.section)
        expected = expected_type(hints[ours])
        if expected is bool:
            return fields.boolean(name)
        if expected is float:
            return fields.number(name)
        return fields.integer(name)

    def config_json(self, model: Any, tokenizer: ImportedTokenizer | None) -> dict[str, Any]:
        """Returns the fields of config.json; the inverse of :meth:`config`."""
        values = {}
        for name, ours in self.fields.items():
            value = getattr(model, ours)
            is_activation = ours.endswith("activation")
            if is_activation:
                value = activation_name(value)
            values[name] = value

        special: dict[str, Any] = {}
        if tokenizer is not None:
            special = self._tokenizer_fields(model, tokenizer)

        flat = {
            **special,
            **self.only,
            **values,
            **self.write(model),
        }
        return {
            "architectures": [self.network_of(model)],
            "model_type": self.model_type,
            "dtype": "float32",
            **nest_sections(flat, self.sections),
        }

    def _tokenizer_fields(self, model: Any, tokenizer: ImportedTokenizer) -> dict[str, Any]:
        """Returns the fields of config.json with the vocabulary, special tokens and labels."""
        vocab_size = len(tokenizer.our_ids) - self._num_additional(model)
        fields: dict[str, Any] = dict.fromkeys(self.vocab_fields, vocab_size)

        for name, field in self.special.items():
            if name not in self.special_tokens:
                fields[field] = tokenizer.special[name]
        for name, field in self.written_ids.items():
            fields[field] = tokenizer.special[name]
        if tokenizer.forced_start is not None:
            fields["forced_bos_token_id"] = tokenizer.forced_start

        if tokenizer.symbols:
            fields |= label_fields(tokenizer.symbols)
        return fields

    def tokenizer_config_json(self, model: Any, tokenizer: ImportedTokenizer) -> dict[str, Any]:
        """Returns the fields of tokenizer_config.json; AutoTokenizer then encodes as we do."""
        our_fields = self.fields.values()
        inputs = ["input_ids", "attention_mask"]
        if tokenizer.has_types and "num_token_types" in our_fields:
            inputs.insert(1, "token_type_ids")

        fields: dict[str, Any] = {
            "tokenizer_class": tokenizer.their_class or self._tokenizer_class_of(tokenizer),
            "model_input_names": inputs,
            "clean_up_tokenization_spaces": False,
        }

        if "max_length" in our_fields:
            fields["model_max_length"] = model.max_length

        if tokenizer.languages:
            source, target = tokenizer.languages
            fields["src_lang"] = source
            fields["tgt_lang"] = target

        token_names = self.token_names | {"mask": "mask_token"}
        return fields | tokenizer.special_pieces(token_names)

    def _tokenizer_class_of(self, tokenizer: ImportedTokenizer) -> str:
        if isinstance(self.tokenizer_class, str):
            return self.tokenizer_class
        return self.tokenizer_class(tokenizer)

    def params(self, arrays: NamedArrays, model: Any, shapes: PyTree, absent: str) -> PyTree:
        """Returns our parameters, in these shapes, from the tensors of a file."""
        flat = {}
        for path, constant in self.constants(model, absent).items():
            flat[path] = constant.astype(np.float32)

        templates = _flatten(shapes)
        for tensor in self.tensors(model):
            if tensor.is_copy:
                _check_copy(arrays, tensor, flat)
                continue
            if tensor.is_optional and tensor.name not in arrays:
                [path] = tensor.ours
                shape = templates[path].shape
                flat[path] = np.zeros(shape, np.float32)
                continue

            joined = _read(arrays, tensor, model)
            own_shapes = [templates[path].shape for path in tensor.ours]
            parts = _split(joined, tensor, own_shapes)
            flat.update(zip(tensor.ours, parts, strict=True))

        for name in self.unread(model):
            arrays.skip(name)
        arrays.check_all_read()
        assert flat.keys() == templates.keys(), sorted(flat.keys() ^ templates.keys())
        return flax.traverse_util.unflatten_dict(flat, sep="/")

    def arrays(
        self, params: PyTree, model: Any, tokenizer: ImportedTokenizer | None
    ) -> dict[str, Float[np.ndarray, "..."]]:
        """Returns the tensors of a file; the inverse of :meth:`params`."""
        flat = _flatten(params)
        constants = self.constants(model, _absent_tokens(tokenizer))
        self._check_all_written(flat, model, constants)
        self._check_unchanged(flat, constants)

        our_ids = np.arange(0)
        if tokenizer is not None:
            our_ids = tokenizer.our_ids
        axes = _FileAxes(
            sizes=self.file_sizes(model, len(our_ids)),
            orders=self.orders(model),
            our_ids=our_ids,
        )

        tensors = list(self.tensors(model))
        has_head = any(tensor.name.startswith(self.heads) for tensor in tensors)
        prefix = self.prefix if has_head else ""

        found = {}
        for tensor in tensors:
            if tensor.is_copy:
                continue

            parts = [flat[path] for path in tensor.ours]
            joined = _join(parts, tensor)
            names = _names(tensor, model)
            layers = axes.layers(joined, tensor, len(names))
            for name, layer in zip(names, layers, strict=True):
                is_of_head = name.startswith(self.heads)
                full_name = name if is_of_head else prefix + name
                found[full_name] = layer

        num_rows = self._num_additional(model)
        return self._split_continued(found, num_rows)

    def join_continued(self, tensors: dict[str, np.ndarray]) -> None:
        """Joins the last rows of tensors of a file to the others."""
        for name, continuation in self.continued.items():
            if name not in tensors or continuation not in tensors:
                continue

            rows = tensors[name]
            last_rows = tensors.pop(continuation)
            have_one_width = rows.shape[1:] == last_rows.shape[1:]
            if have_one_width:  # Otherwise, the shape of the first is refused.
                tensors[name] = np.concatenate([rows, last_rows])

    def _split_continued(
        self, tensors: dict[str, np.ndarray], num_rows: int
    ) -> dict[str, np.ndarray]:
        """Returns the tensors of a file; the inverse of :meth:`join_continued`."""
        split = dict(tensors)
        for name, continuation in self.continued.items():
            if name in tensors and num_rows:
                rows = tensors[name]
                split[name] = rows[:-num_rows]
                split[continuation] = rows[-num_rows:]
        return split

    def _num_additional(self, model: Any) -> int:
        """Returns the number of tokens that the size of the vocabulary in a file does not count."""
        if not self.additional_vocab:
            return 0
        ours = self.fields[self.additional_vocab]
        return getattr(model, ours)

    def file_sizes(self, model: Any, vocab_size: int) -> dict[str, int]:
        """Returns the size of each axis in a file."""
        return sizes_of(model, vocab_size) | self.sizes(model)

    def _check_all_written(
        self, params: Collection[str], model: Any, constants: Collection[str]
    ) -> None:
        """Refuses parameters that no tensor of a file holds."""
        written: set[str] = set()
        for tensor in self.tensors(model):
            written.update(tensor.ours)

        written.update(constants)
        unwritten = sorted(set(params) - written)
        if unwritten:
            raise UserError(
                f"{self.model_type}: expected the parameters of a {type(model).__name__}, got also "
                f"{unwritten[0]}, which transformers has no place for; remove it"
            )

    def _check_unchanged(
        self, params: Mapping[str, np.ndarray], constants: Mapping[str, np.ndarray]
    ) -> None:
        """Refuses other values of the parameters that files lack."""
        for path, array in constants.items():
            if not np.array_equal(params[path], array):
                raise UserError(
                    f"{self.model_type}: transformers has no {path}, which training has changed; "
                    f"train with training.freeze={path}"
                )


def sizes_of(model: Architecture, vocab_size: int) -> dict[str, int]:
    """Returns the size of each axis of :class:`Tensor`."""
    queries = model.num_heads * model.key_size
    keys = model.kv_heads * model.key_size
    return {
        "1": 1,
        "C": queries + 2 * keys,
        "D": model.d_model,
        "E": model.embedding_width,
        "F": model.d_ff,
        "H": model.num_heads,
        "K": keys,
        "M": getattr(model, "max_length", 0),
        "N": getattr(model, "num_classes", 0),
        "P": 2,
        "Q": queries,
        "R": getattr(model, "num_buckets", 0),
        "S": getattr(model, "num_tokens", 0),
        "T": getattr(model, "num_token_types", 0),
        "U": model.key_size,
        "V": vocab_size,
        "X": getattr(model, "patch_size", 0),
        "Y": getattr(model, "patch_size", 0),
        "Z": getattr(model, "channels", 0),
    }


class _FileAxes(NamedTuple):
    """The axes of the tensors of a file, for an export.

    Attributes:
      sizes: Size of each axis in a file.
      orders: As in :attr:`Layout.orders`.
      our_ids: Our id of each of theirs.
    """

    sizes: Mapping[str, int]
    orders: Mapping[str, Int[np.ndarray, " indices"]]
    our_ids: Int[np.ndarray, " V"]

    def layers(
        self,
        joined: Float[np.ndarray, "..."],
        tensor: Tensor,
        num_layers: int,
    ) -> Float[np.ndarray, "L ..."]:
        """Returns a tensor of each layer, with the axes of a file, from our joined parameters."""
        order = _order(tensor)
        own_axes = [tensor.axes[axis] for axis in order]
        if "V" in own_axes:
            # Our parameters lack the axes of size 1.
            present = [axis for axis in own_axes if axis != "1"]
            joined = joined.take(self.our_ids, axis=present.index("V"))

        shape = [self._own_size(axis) for axis in own_axes]
        layers = joined.reshape(num_layers, *shape)
        in_order_of_file = 1 + np.argsort(order)
        layers = layers.transpose(0, *in_order_of_file)

        for number, axis in enumerate(tensor.axes, start=1):
            if axis in self.orders:
                layers = _scatter(layers, number, self.orders[axis], size=self.sizes[axis])
        return layers

    def _own_size(self, axis: str) -> int:
        """Returns the size of an axis of our parameters; a file may have more."""
        if axis in self.orders:
            return len(self.orders[axis])
        return self.sizes[axis]


def _absent_tokens(tokenizer: ImportedTokenizer | None) -> str:
    if tokenizer is None:
        return ""
    return tokenizer.absent


def _id_of(token: str, tokenizer: ImportedTokenizer, fields: JsonFields) -> int:
    """Returns our id of a token, which a model needs."""
    for number in range(tokenizer.vocab_size):
        if tokenizer.piece(number) == token:
            return number
    raise UserError(f"{fields.place}: expected a tokenizer with the token {token}, got one without")


def activation_name(activation: str) -> str:
    """Returns the first name in transformers of one of our activations."""
    return next(theirs for theirs, ours in ACTIVATIONS.items() if ours == activation)


def _check_copy(arrays: NamedArrays, tensor: Tensor, read: Mapping[str, np.ndarray]) -> None:
    if tensor.name not in arrays:
        return

    copied = arrays.array(tensor.name, tensor.axes)
    original = read[tensor.ours[0]]
    if not np.array_equal(copied, original):
        raise UserError(
            f"{arrays.place}: expected {tensor.name} to be the same as the embeddings, as "
            "config.json says"
        )


def _read(arrays: NamedArrays, tensor: Tensor, model: Architecture) -> Float[np.ndarray, "..."]:
    """Returns a tensor of a file with the order of our axes, stacked over the layers."""
    order = _order(tensor)
    layers = []
    for name in _names(tensor, model):
        layer = arrays.array(name, tensor.axes)
        layers.append(layer.transpose(order))

    if not tensor.is_per_layer:
        [layer] = layers
        return layer
    return np.stack(layers)


def _split(
    joined: Float[np.ndarray, "..."],
    tensor: Tensor,
    shapes: Sequence[tuple[int, ...]],
) -> list[Float[np.ndarray, "..."]]:
    """Returns the parameters that a tensor holds, in their shapes; the inverse of _join."""
    if len(shapes) == 1:
        [shape] = shapes
        return [joined.reshape(shape)]

    # A file may join several of our parameters along the last axis.
    widths = [_width(shape, tensor) for shape in shapes]
    ends = np.cumsum(widths)
    parts = np.split(joined, ends[:-1], axis=-1)
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


def _flatten(tree: PyTree) -> dict[str, Any]:
    return flax.traverse_util.flatten_dict(tree, sep="/")


def _names(tensor: Tensor, model: Architecture) -> list[str]:
    """Returns the names of a tensor in a file, one for each layer."""
    if not tensor.is_per_layer:
        return [tensor.name]

    numbers = tensor.numbers
    if numbers is None:
        is_of_encoder = tensor.ours[0].startswith("encoder/")
        num_layers = model.num_layers if is_of_encoder else model.decoder_layers
        numbers = range(num_layers)
    return [tensor.name.format(n=number) for number in numbers]


def _scatter(
    array: np.ndarray,
    axis: int,
    order: Int[np.ndarray, " indices"],
    size: int,
) -> np.ndarray:
    """Returns the array with its indices at their places in a file, and zeros elsewhere."""
    shape = list(array.shape)
    shape[axis] = size
    result = np.zeros(shape, array.dtype)

    axis_first = np.moveaxis(result, axis, 0)  # a view
    axis_first[order] = np.moveaxis(array, axis, 0)
    return result


def _order(tensor: Tensor) -> tuple[int, ...]:
    """Returns the order of our axes, of a matrix or a convolution: the outputs last."""
    axes = tuple(range(len(tensor.axes)))
    if not tensor.is_linear:
        return axes

    outputs, inputs, *space = axes
    return (*space, inputs, outputs)


def _width(shape: tuple[int, ...], tensor: Tensor) -> int:
    """Returns the size of the axes of a parameter that a file joins, the last ones."""
    joined = shape[tensor.num_kept_axes :]
    return int(np.prod(joined))


def _join(params: Sequence[np.ndarray], tensor: Tensor) -> Float[np.ndarray, "..."]:
    """Returns the parameters of a tensor, joined along the axes that a file joins."""
    if len(params) == 1:
        return params[0]

    flat = []
    for array in params:
        kept = array.shape[: tensor.num_kept_axes]
        flattened = array.reshape(*kept, -1)
        flat.append(flattened)
    return np.concatenate(flat, axis=-1)
