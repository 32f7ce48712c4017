"""The encoders that followed BERT, in transformers' layouts: a table of what differs from BERT.

Each field of :class:`~jaxformer.models.bert.BertConfig` that BERT does not need is used by a row.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int

from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import (
    ACTIVATIONS,
    ANY,
    Layout,
    Tensor,
    affine,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.bert import (
    BERT,
    ENCODER_FIELDS,
    LAST_LAYER,
    check_heads,
    classifier_head,
    read_labels,
    regression_fields,
)
from jaxformer.interop.huggingface.layouts.layer_names import BERT_LAYERS, LayerNames
from jaxformer.interop.huggingface.sentence_transformers import read_pooling
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.bert import BertConfig

_FIELDS = {
    **ENCODER_FIELDS,
    "max_position_embeddings": "max_length",
    "type_vocab_size": "num_token_types",
}
_DEFAULTS = {"type_vocab_size": 2, "layer_norm_eps": 1e-12, "pad_token_id": 0}
# The number of the padding is in config.json.
_SPECIAL_TOKENS = {"eos": "[SEP]", "bos": "[CLS]", "unk": "[UNK]"}
_HEAD_AXES = {"pooler": "DD", "masked": "ED", "next": "PD", "replaced": "DD", "spans": "PD"}
# Layers that have the same names in all families.
_SPANS = "qa_outputs"
# Heads whose last layer gives one number.
_NUMBERS = ("score", "choice")
# Fields of ours that tensors express, or that change none.
_CHECKED = ("heads", "num_classes", "num_tags", "pooled_activation", "pooling", "normalized")
_ATTENTION = "encoder/layers/self_attention"
_NETWORK = "encoder/layers/feed_forward"


class ClassifierNames(NamedTuple):
    """Names of the two layers after an encoder, and the activation between them.

    The activation is None if the feed-forward networks have the same one.
    """

    pooler: str = "classifier.dense"
    activation: str | None = "tanh"
    output: str = "classifier.out_proj"


class MaskedNames(NamedTuple):
    """Names of the head for masked tokens."""

    dense: str
    norm: str
    bias: str  # of the logits
    decoder: str  # a layer with copies of the embeddings and maybe of the bias


_ROBERTA_CLASSIFIER = ClassifierNames()
BERT_MASKED = MaskedNames(
    dense="cls.predictions.transform.dense",
    norm="cls.predictions.transform.LayerNorm",
    bias="cls.predictions.bias",
    decoder="cls.predictions.decoder",
)
ROBERTA_MASKED = MaskedNames(
    dense="lm_head.dense",
    norm="lm_head.layer_norm",
    bias="lm_head.bias",
    decoder="lm_head.decoder",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Family:
    """A family of encoders, by what differs from BERT.

    Attributes:
      model_type, fields, defaults, ignored, prefix, buffers, special_tokens: As in
        :class:`~jaxformer.interop.huggingface.foreign_layout.Layout`.
      only: The same, in addition to BERT's.
      classes: Beginning of the names of its classes in transformers.
      layers: Names within a layer.
      final_norm: Name of the norm after the last layer; None for a family without.
      projection: Name of the matrix after the embeddings; None for a family without.
      first_position: Row of the first token in the table of positions.
      pooler: Name of the pooler of a model without classes; None for a family without.
      classifier: Names of the classifier of texts.
      chooser: Names of the layers for multiple choice; None if we lack its class for that.
      masked: Names of the head for masked tokens.
      heads: Names of the layers of the other heads, by our names of these heads.
      pretraining: The head of the class whose name ends with "ForPreTraining"; None for a family
        without such a class.
      has_spans: Whether its class for question answering is a model of ours.
      has_tags: The same of its class for tags of tokens.
      model: Values of our fields that all of its models have.
      expressed: Our fields that :meth:`read` and :meth:`write` convert.
      required: Our fields that must not be None.
    """

    model_type: str
    classes: str
    prefix: str
    fields: Mapping[str, str] = dataclasses.field(default_factory=lambda: _FIELDS)
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=lambda: _DEFAULTS)
    only: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    ignored: str = "(?!)"
    buffers: str = BERT.buffers
    special_tokens: Mapping[str, str] = dataclasses.field(default_factory=lambda: _SPECIAL_TOKENS)
    layers: LayerNames = BERT_LAYERS
    final_norm: str | None = None
    projection: str | None = None
    first_position: int = 0
    pooler: str | None = None
    classifier: ClassifierNames = _ROBERTA_CLASSIFIER
    chooser: ClassifierNames | None = None
    masked: MaskedNames = BERT_MASKED
    heads: Mapping[str, str] = dataclasses.field(default_factory=dict)
    pretraining: str | None = None
    has_spans: bool = True
    has_tags: bool = True
    model: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    expressed: tuple[str, ...] = ()
    required: tuple[str, ...] = ()

    def layout(self) -> Layout:
        """Returns the layout of the family."""
        tasks = ["ForMaskedLM", "ForSequenceClassification"]
        if self.has_spans:
            tasks.append("ForQuestionAnswering")
        if self.has_tags:
            tasks.append("ForTokenClassification")
        if self.chooser is not None:
            tasks.append("ForMultipleChoice")
        if self.pretraining is not None:
            tasks.append("ForPreTraining")

        own = {name: [value] for name, value in self.model.items()}
        checked = dict.fromkeys((*_CHECKED, *self.expressed), ANY)
        return dataclasses.replace(
            BERT,
            model_type=self.model_type,
            network=self.network_of,
            fields=self.fields,
            defaults=self.defaults,
            only={**BERT.only, **self.only},
            ignored=self.ignored,
            read=self.read,
            labels=self.read_labels,
            write=self.write,
            tensors=self.tensors,
            unread=self.unread,
            sizes=self.sizes,
            orders=self.orders,
            special_tokens=self.special_tokens,
            prefix=self.prefix,
            tasks=tuple(tasks),
            heads=self._names_without_prefix(),
            expressed={"architecture": [self.model_type], **own, **checked},
            fits=self.fits,
            buffers=self.buffers,
        )

    def read_labels(self, fields: JsonFields) -> list[str]:
        """Returns the labels of classes or of tags; none for a model without either."""
        layers = {"classes": self.classifier.output, "tags": LAST_LAYER}
        layer = layers.get(classifier_head(fields, self.classifier.output))
        return [] if layer is None else read_labels(fields, layer)

    def read(self, fields: JsonFields) -> dict[str, Any]:
        """Returns our fields that no table has."""
        check_heads(fields)
        last = classifier_head(fields, self.classifier.output)
        labels = self.read_labels(fields)
        num_tags = len(labels) if last == "tags" else 0
        num_classes = len(labels) - num_tags

        top = self._layers_on_top([last])
        if top is not None and f"{top.pooler}.weight" not in fields.tensors:
            raise UserError(
                f"{fields.place}: expected {top.pooler}.weight beside {top.output}.weight, as in a "
                f"{self.classes}ForSequenceClassification or a {self.classes}ForMultipleChoice: "
                "got none"
            )

        heads = []
        for head, layer in self._layers_of_heads(top).items():
            if f"{layer}.weight" in fields.tensors:
                heads.append(head)
        if last in _NUMBERS:
            heads.append(last)

        activation = ACTIVATIONS.get(fields.values.get("hidden_act", ""), "")
        values = {
            **self.model,
            "architecture": self.model_type,
            "heads": " ".join(heads),
            "num_classes": num_classes,
            "num_tags": num_tags,
            "max_length": fields.integer("max_position_embeddings") - self.first_position,
            "pooled_activation": self._pooled_activation(heads, top, activation),
            **read_pooling(fields.place.parent),
        }
        if self.projection is not None:
            values["embedding_size"] = self._embedding_size(fields)
        if "window" in self.required:
            values["window"] = _window(fields)
        if "attention_type" in self.defaults:
            values |= _blocks(fields)
        return values

    def write(self, model: BertConfig) -> dict[str, Any]:
        """Returns the fields of config.json that no table has."""
        values = regression_fields(model)
        values["max_position_embeddings"] = model.max_length + self.first_position
        if self.projection is not None:
            values["embedding_size"] = model.embedding_width
        if model.window is not None:
            values["attention_window"] = [2 * model.window] * model.num_layers
        if "attention_type" in self.defaults:
            is_sparse = model.block_size is not None
            values["attention_type"] = "block_sparse" if is_sparse else "original_full"
            values["block_size"] = model.block_size or self.defaults["block_size"]
            values["num_random_blocks"] = (
                model.random_blocks if is_sparse else self.defaults["num_random_blocks"]
            )
        return values

    def fits(self, model: BertConfig) -> bool:
        """Returns whether a file can have the heads and the embeddings of a model."""
        heads = model.heads.split()
        top = self._top_of(model)
        expected = self._pooled_activation(heads, top, model.activation)
        has_projection = model.embedding_size is not None

        return (
            set(heads) <= {*self._layers_of_heads(top), *_NUMBERS}
            and (self.chooser is not None or "choice" not in heads)
            and (self.has_tags or not model.num_tags)
            and model.pooled_activation == expected
            and (model.num_token_types > 0 or "num_token_types" in self.model)
            and has_projection == self._needs_projection(model.embedding_width, model.d_model)
            and all(getattr(model, name) is not None for name in self.required)
        )

    def network_of(self, model: BertConfig) -> str:
        """Returns the name of the class in transformers."""
        heads = model.heads.split()
        if model.num_classes or "score" in heads:
            return f"{self.classes}ForSequenceClassification"
        if "choice" in heads:
            return f"{self.classes}ForMultipleChoice"
        if model.num_tags:
            return f"{self.classes}ForTokenClassification"
        if "spans" in heads:
            return f"{self.classes}ForQuestionAnswering"
        if self.pretraining in heads:
            return f"{self.classes}ForPreTraining"
        if "masked" in heads:
            return f"{self.classes}ForMaskedLM"
        return f"{self.classes}Model"

    def tensors(self, model: BertConfig) -> Iterator[Tensor]:
        yield from self._embeddings(model)
        yield from self._layer(model)
        if self.final_norm is not None:
            yield from layer_norm(self.final_norm, "encoder/norm")

        top = self._top_of(model)
        layers = self._layers_of_heads(top)
        for head in model.heads.split():
            if head in _NUMBERS:
                assert top is not None, "these heads are on top"
                yield from affine(top.output, "1D", head)
            else:
                yield from affine(layers[head], _HEAD_AXES[head], head)
        if model.num_classes:
            yield from affine(self.classifier.output, "ND", "classes")
        if model.num_tags:
            yield from affine(LAST_LAYER, "ND", "tags")
        if "replaced" in model.heads:
            yield from affine(f"{self.heads['replaced']}_prediction", "1D", "replaced_output")

        if "masked" in model.heads:
            masked = self.masked
            yield from layer_norm(masked.norm, "masked_norm", "E")
            yield Tensor(masked.bias, "V", ("logits_bias",))
            yield Tensor(f"{masked.decoder}.weight", "VE", ("embedding",), is_copy=True)
            if masked.bias != f"{masked.decoder}.bias":
                yield Tensor(f"{masked.decoder}.bias", "V", ("logits_bias",), is_copy=True)

    def unread(self, model: BertConfig) -> Iterator[str]:
        """Yields the names of a pooler that a classifier with another one does not use."""
        top = self._top_of(model)
        if top is not None and self.pooler not in (None, top.pooler):
            yield f"{self.pooler}.weight"
            yield f"{self.pooler}.bias"

    def sizes(self, model: BertConfig) -> dict[str, int]:
        return {
            "M": model.max_length + self.first_position,
            "N": model.num_classes or model.num_tags,
            "q": model.num_heads * model.key_size,
        }

    def orders(self, model: BertConfig) -> dict[str, Int[np.ndarray, " indices"]]:
        positions = self.first_position + np.arange(model.max_length)
        return {"M": positions, "q": _rotary_order(model)}

    def _embeddings(self, model: BertConfig) -> Iterator[Tensor]:
        yield Tensor("embeddings.word_embeddings.weight", "VE", ("embedding",))
        if model.positions == "learned":
            yield Tensor("embeddings.position_embeddings.weight", "ME", ("positions",))
        if model.num_token_types:
            yield Tensor("embeddings.token_type_embeddings.weight", "TE", ("token_types",))
        yield from layer_norm("embeddings.LayerNorm", "norm", "E")

        if model.embedding_size is not None and self.projection is not None:
            yield from affine(self.projection, "DE", "projection")

    def _layer(self, model: BertConfig) -> Iterator[Tensor]:
        names = self.layers
        numbers = range(model.layer_groups or model.num_layers)

        def part(name: str) -> str:
            return f"{names.layer}.{name}"

        found = [
            *affine(part(names.query), "qD", f"{_ATTENTION}/query"),
            *affine(part(names.key), "qD", f"{_ATTENTION}/key"),
            *affine(part(names.value), "QD", f"{_ATTENTION}/value"),
            *affine(part(names.output), "DQ", f"{_ATTENTION}/output"),
            *layer_norm(part(names.attention_norm), f"{_ATTENTION}_residual/norm"),
            *affine(part(names.inner), "FD", f"{_NETWORK}/inner"),
            *affine(part(names.outer), "DF", f"{_NETWORK}/outer"),
            *layer_norm(part(names.network_norm), f"{_NETWORK}_residual/norm"),
        ]
        if model.global_tokens:
            found += affine(part(f"{names.query}_global"), "QD", f"{_ATTENTION}/query_global")
            found += affine(part(f"{names.key}_global"), "QD", f"{_ATTENTION}/key_global")
            found += affine(part(f"{names.value}_global"), "QD", f"{_ATTENTION}/value_global")

        for tensor in found:
            yield tensor._replace(numbers=numbers)

    def _top_of(self, model: BertConfig) -> ClassifierNames | None:
        """Returns the layers on top of a model."""
        classes = ["classes"] if model.num_classes else []
        return self._layers_on_top([*model.heads.split(), *classes])

    def _layers_on_top(self, heads: Collection[str]) -> ClassifierNames | None:
        """Returns the two layers for classes, a number or choices; None without these heads."""
        if "choice" in heads:
            return self.chooser
        if "classes" in heads or "score" in heads:
            return self.classifier
        return None

    def _layers_of_heads(self, top: ClassifierNames | None) -> dict[str, str]:
        """Returns the first layer of each head by its name, in the order of ``model.heads``.

        With layers on top, the pooler is the first of these.
        """
        pooler = self.pooler if top is None else top.pooler
        poolers = {} if pooler is None else {"pooler": pooler}
        spans = {"spans": _SPANS} if self.has_spans else {}
        return {**poolers, "masked": self.masked.dense, **self.heads, **spans}

    def _pooled_activation(
        self,
        heads: Collection[str],
        top: ClassifierNames | None,
        activation: str,
    ) -> str:
        """Returns the activation of the pooler; without one, of a classifier that is added."""
        if "pooler" in heads and top is None:
            return "tanh"
        return (top or self.classifier).activation or activation

    def _needs_projection(self, width: int, d_model: int) -> bool:
        return width != d_model or "embedding_size" in self.required

    def _embedding_size(self, fields: JsonFields) -> int | None:
        d_model = fields.integer("hidden_size")
        if fields.values.get("embedding_size") is None:
            return None
        width = fields.integer("embedding_size")
        return width if self._needs_projection(width, d_model) else None

    def _names_without_prefix(self) -> tuple[str, ...]:
        """Returns the beginnings of the names of heads that are beside the encoder."""
        found = [LAST_LAYER, _SPANS, self.classifier.output, *self.masked, *self.heads.values()]
        for top in (self.classifier, self.chooser):
            if top is not None and top.pooler != self.pooler:
                found.append(top.pooler)
        return tuple(f"{name.partition('.')[0]}." for name in found)


def _window(fields: JsonFields) -> int:
    """Returns the window on one side, of a file that has the sum of both, for each layer or all."""
    found = fields.values["attention_window"]
    windows = found if isinstance(found, list) else [found]
    first = windows[0] if windows else 0

    is_even = isinstance(first, int) and not isinstance(first, bool) and first % 2 == 0
    if not is_even or windows.count(first) < len(windows):
        raise UserError(
            f"{fields.place}: expected attention_window to be one even number for all layers: got "
            f"{found!r:.80}"
        )
    return first // 2


def _blocks(fields: JsonFields) -> dict[str, Any]:
    """Returns our fields of BigBird's pattern, if a file has it."""
    known = ["block_sparse", "original_full"]
    fields.check("attention_type", known, " or ".join(known), "BertConfig has no other")

    is_sparse = fields.values["attention_type"] == "block_sparse"
    return {
        "block_size": fields.integer("block_size") if is_sparse else None,
        "random_blocks": fields.integer("num_random_blocks") if is_sparse else 0,
    }


def _rotary_order(model: BertConfig) -> Int[np.ndarray, " Q"]:
    """Returns the index in a file of each entry of all heads.

    Our rotary positions turn entries i and i + K/2 of a head; RoFormer's turn neighbors.
    """
    size = model.key_size
    order = np.arange(size)
    if model.positions == "rotary":
        order = np.concatenate([order[::2], order[1::2]])

    starts = size * np.arange(model.num_heads)
    return (starts[:, None] + order).ravel()


# A head for masked tokens that has this activation, whatever the layers have.
_GELU = {"hidden_act": "gelu"}
_GELU_FIELDS = {name: ours for name, ours in _FIELDS.items() if name != "hidden_act"}
_ROBERTA = Family(
    model_type="roberta",
    classes="Roberta",
    prefix="roberta.",
    fields={**_GELU_FIELDS, "classifier_dropout": "pooled_dropout_rate"},
    defaults={
        **_DEFAULTS,
        "classifier_dropout": None,
        "pad_token_id": 1,
        "bos_token_id": 0,
        "eos_token_id": 2,
    },
    only={**_GELU, "pad_token_id": 1},  # positions begin after the id of the padding
    special_tokens={},
    first_position=2,
    pooler="pooler.dense",
    chooser=ClassifierNames("pooler.dense", "tanh", "classifier"),
    masked=ROBERTA_MASKED,
)
ROBERTA = _ROBERTA.layout()
XLM_ROBERTA = dataclasses.replace(
    _ROBERTA,
    model_type="xlm-roberta",
    classes="XLMRoberta",
).layout()
ROBERTA_PRELAYERNORM = dataclasses.replace(
    _ROBERTA,
    model_type="roberta-prelayernorm",
    classes="RobertaPreLayerNorm",
    prefix="roberta_prelayernorm.",
    layers=LayerNames(
        attention_norm="attention.LayerNorm",
        network_norm="intermediate.LayerNorm",
    ),
    final_norm="LayerNorm",
    model={"norm_position": "pre"},
).layout()

DISTILBERT = Family(
    model_type="distilbert",
    classes="DistilBert",
    prefix="distilbert.",
    fields={
        "dim": "d_model",
        "hidden_dim": "d_ff",
        "n_heads": "num_heads",
        "n_layers": "num_layers",
        "activation": "activation",
        "dropout": "dropout_rate",
        "attention_dropout": "attention_dropout_rate",
        "seq_classif_dropout": "pooled_dropout_rate",
        "max_position_embeddings": "max_length",
    },
    defaults={"seq_classif_dropout": 0.2, "pad_token_id": 0},
    ignored="sinusoidal_pos_embds",  # how the positions were initialized
    layers=LayerNames(
        layer="transformer.layer.{n}",
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        attention_norm="sa_layer_norm",
        inner="ffn.lin1",
        outer="ffn.lin2",
        network_norm="output_layer_norm",
    ),
    classifier=ClassifierNames("pre_classifier", "relu", "classifier"),
    chooser=ClassifierNames("pre_classifier", "relu", "classifier"),
    masked=MaskedNames(
        dense="vocab_transform",
        norm="vocab_layer_norm",
        bias="vocab_projector.bias",
        decoder="vocab_projector",
    ),
    model={"num_token_types": 0, "norm_epsilon": 1e-12},
    required=("pooled_dropout_rate",),
).layout()

ELECTRA = Family(
    model_type="electra",
    classes="Electra",
    prefix="electra.",
    fields={**_GELU_FIELDS, "classifier_dropout": "pooled_dropout_rate"},
    defaults={**_DEFAULTS, "classifier_dropout": None, "embedding_size": 128},
    only={
        **_GELU,
        # Settings of the layers before the choices.
        "summary_type": "first",
        "summary_use_proj": True,
        "summary_activation": "gelu",
    },
    projection="embeddings_project",
    classifier=ClassifierNames(activation="gelu_exact"),
    chooser=ClassifierNames("sequence_summary.summary", "gelu_exact", "classifier"),
    masked=MaskedNames(
        dense="generator_predictions.dense",
        norm="generator_predictions.LayerNorm",
        bias="generator_lm_head.bias",
        decoder="generator_lm_head",
    ),
    heads={"replaced": "discriminator_predictions.dense"},
    pretraining="replaced",
    expressed=("embedding_size",),
).layout()

ALBERT = Family(
    model_type="albert",
    classes="Albert",
    prefix="albert.",
    fields={
        **_FIELDS,
        "num_hidden_groups": "layer_groups",
        "classifier_dropout_prob": "pooled_dropout_rate",
    },
    defaults={
        **_DEFAULTS,
        "embedding_size": 128,
        "num_hidden_groups": 1,
        "classifier_dropout_prob": 0.1,
        "bos_token_id": 2,
        "eos_token_id": 3,
    },
    only={"inner_group_num": 1},
    special_tokens={},
    layers=LayerNames(
        layer="encoder.albert_layer_groups.{n}.albert_layers.0",
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.dense",
        attention_norm="attention.LayerNorm",
        inner="ffn",
        outer="ffn_output",
        network_norm="full_layer_layer_norm",
    ),
    projection="encoder.embedding_hidden_mapping_in",
    pooler="pooler",
    classifier=ClassifierNames("pooler", "tanh", "classifier"),
    chooser=ClassifierNames("pooler", "tanh", "classifier"),
    masked=MaskedNames(
        dense="predictions.dense",
        norm="predictions.LayerNorm",
        bias="predictions.bias",
        decoder="predictions.decoder",
    ),
    heads={"next": "sop_classifier.classifier"},
    pretraining="next",
    expressed=("embedding_size",),
    required=("embedding_size", "layer_groups", "pooled_dropout_rate"),
).layout()

ROFORMER = Family(
    model_type="roformer",
    classes="RoFormer",
    prefix="roformer.",
    defaults={**_DEFAULTS, "embedding_size": None},
    only={"rotary_value": False},
    buffers=rf"({BERT.buffers}|encoder\.embed_positions\.weight)",
    projection="embeddings_project",
    classifier=ClassifierNames(activation=None),
    model={"positions": "rotary"},
    expressed=("embedding_size",),
).layout()

LONGFORMER = dataclasses.replace(
    _ROBERTA,
    model_type="longformer",
    classes="Longformer",
    prefix="longformer.",
    fields=_GELU_FIELDS,
    defaults={**_ROBERTA.defaults, "attention_window": 512},
    ignored="attention_mode|onnx_export",  # transformers reads neither
    has_spans=False,  # All tokens of a question would be global.
    has_tags=False,  # No token would be global.
    chooser=None,  # All tokens of a question would be global.
    model={"global_tokens": 1},
    expressed=("window",),
    required=("window",),
).layout()

BIG_BIRD = Family(
    model_type="big_bird",
    classes="BigBird",
    prefix="bert.",
    fields={**_FIELDS, "classifier_dropout": "pooled_dropout_rate"},
    defaults={
        **_DEFAULTS,
        "classifier_dropout": None,
        "attention_type": "block_sparse",
        "block_size": 64,
        "num_random_blocks": 3,
    },
    only={"use_bias": True, "rescale_embeddings": False},
    special_tokens={**_SPECIAL_TOKENS, "unk": "<unk>"},
    pooler="pooler",
    classifier=ClassifierNames(activation=None),
    chooser=ClassifierNames("pooler", "tanh", "classifier"),
    heads={"next": "cls.seq_relationship"},
    pretraining="next",
    has_spans=False,  # Its head has two more layers.
    expressed=("block_size", "random_blocks"),
).layout()
