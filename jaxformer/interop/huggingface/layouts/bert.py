"""BERT in transformers' layout, with the heads that a file has."""

import typing
from collections.abc import Iterator
from typing import Any

from jaxformer.config import LabeledConfig
from jaxformer.data.annotated import AnnotatedConfig
from jaxformer.data.corpus import DataSection
from jaxformer.errors import UserError
from jaxformer.interop.huggingface.foreign_layout import (
    ANY,
    Layout,
    Tensor,
    affine,
    label_fields,
    layer_norm,
)
from jaxformer.interop.huggingface.layouts.text_models import LOADED
from jaxformer.interop.huggingface.sentence_transformers import read_pooling
from jaxformer.interop.json_fields import JsonFields
from jaxformer.models.bert import BertConfig, Heads

ENCODER_FIELDS = {
    "hidden_size": "d_model",
    "intermediate_size": "d_ff",
    "num_attention_heads": "num_heads",
    "num_hidden_layers": "num_layers",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout_rate",
    "attention_probs_dropout_prob": "attention_dropout_rate",
    "layer_norm_eps": "norm_epsilon",
}
# Ends of the code that uses an export.
_ONE_TEXT = """print(model(**tokenizer("a house", return_tensors="pt")))
"""
_GLOBAL_TOKEN = """inputs = tokenizer("a house", return_tensors="pt")
is_first = inputs["input_ids"] == tokenizer.cls_token_id
print(model(**inputs, global_attention_mask=is_first.long()))
"""
_TWO_CHOICES = """beginnings, ends = ["a house", "a house"], ["is red", "is old"]
inputs = tokenizer(beginnings, ends, padding=True, return_tensors="pt")
print(model(**{name: rows[None] for name, rows in inputs.items()}))
"""
_ONLY = {"is_decoder": False, "add_cross_attention": False, "tie_word_embeddings": True}
# The layer of the tags of tokens and of choices, in all families of encoders.
LAST_LAYER = "classifier"
# Our heads, in the order of BertConfig, and the layer of each.
_HEADS = {
    "pooler": "pooler.dense",
    "masked": "cls.predictions.transform.dense",
    "next": "cls.seq_relationship",
    "spans": "qa_outputs",
    "score": LAST_LAYER,
    "choice": LAST_LAYER,
}
# The last layer is of several heads; see classifier_head.
_OWN_LAYERS = {head: layer for head, layer in _HEADS.items() if layer != LAST_LAYER}
_SIZES = {"next": "PD", "spans": "PD", "score": "1D", "choice": "1D"}


def classifier_head(fields: JsonFields, classifier: str = "classifier") -> str:
    """Returns our name of the last head of a file; "" for a file without one.

    Args:
      fields: The fields of config.json.
      classifier: Name of the last layer for classes of texts.
    """
    names = fields.architecture_heads()
    if f"{LAST_LAYER}.weight" in fields.tensors:
        if "ForTokenClassification" in names:
            return "tags"
        if "ForMultipleChoice" in names:
            return "choice"

    if f"{classifier}.weight" not in fields.tensors:
        return ""
    if fields.values.get("problem_type") == "regression":
        return "score"
    return "classes"


def read_labels(fields: JsonFields, classifier: str = "classifier") -> list[str]:
    """Returns the labels of a classifier, a layer of this name; none for a file without one.

    Several classes may share a label. ImageNet has two cranes, a bird and a machine.
    """
    if f"{classifier}.weight" not in fields.tensors:
        return []
    one = "single_label_classification"
    advice = (
        "classifier gives the probability of each class; remove problem_type to read the values as "
        "logits: one as of a sigmoid, several as of a softmax"
    )
    fields.check("problem_type", [None, one], one, advice)

    named = fields.values.get("id2label")
    if named is None:
        # transformers has two labels if there is neither field.
        count = fields.integer("num_labels") if "num_labels" in fields.values else 2
        return [f"LABEL_{number}" for number in range(count)]

    labels = []
    if isinstance(named, dict):
        # A line break, which no label has, stands for a missing one.
        labels = [str(named.get(str(number), "\n")) for number in range(len(named))]
    if not labels or not all(map(str.isprintable, labels)):
        raise UserError(f"{fields.place}: expected id2label to name each class: got {named!r:.80}")
    return labels


def _labels(fields: JsonFields) -> list[str]:
    """Returns the labels of classes or tags; none for a head of numbers or choices."""
    return read_labels(fields) if classifier_head(fields) in ("classes", "tags") else []


def _read(fields: JsonFields) -> dict[str, Any]:
    heads = [head for head, layer in _OWN_LAYERS.items() if f"{layer}.weight" in fields.tensors]
    check_heads(fields)

    labels = _labels(fields)
    head = classifier_head(fields)
    is_tagger = head == "tags"
    if head in ("score", "choice"):
        heads.append(head)
    if head and not is_tagger and "pooler" not in heads:
        raise UserError(
            f"{fields.place}: expected bert.pooler.dense.weight beside classifier.weight, as in a "
            "BertForSequenceClassification: got none; add architectures, such as "
            "BertForTokenClassification, if the file is of another class"
        )
    return {
        "heads": " ".join(heads),
        "num_classes": 0 if is_tagger else len(labels),
        "num_tags": len(labels) if is_tagger else 0,
        **read_pooling(fields.place.parent),
    }


def check_heads(fields: JsonFields) -> None:
    """Refuses a file without the head that its class has."""
    for name, layer in (
        ("ForQuestionAnswering", "qa_outputs"),
        ("ForTokenClassification", "classifier"),
        ("ForMultipleChoice", "classifier"),
    ):
        if name in fields.architecture_heads() and f"{layer}.weight" not in fields.tensors:
            raise UserError(f"{fields.place}: expected {layer}.weight, the head {name}, got none")


def _network(model: BertConfig) -> str:
    if model.num_classes:
        return "BertForSequenceClassification"
    if model.num_tags:
        return "BertForTokenClassification"

    networks = {
        "masked": "BertForMaskedLM",
        "spans": "BertForQuestionAnswering",
        "pooler spans": "BertForQuestionAnswering",
        "pooler score": "BertForSequenceClassification",
        "pooler choice": "BertForMultipleChoice",
        "pooler next": "BertForNextSentencePrediction",
        "pooler masked next": "BertForPreTraining",
        "pooler masked": "BertForPreTraining",
    }
    return networks.get(model.heads, "BertModel")


def _layer_tensors() -> Iterator[Tensor]:
    """Yields the tensors of all layers."""
    theirs = "encoder.layer.{n}"
    ours = "encoder/layers/self_attention"
    for name in ("query", "key", "value"):
        yield from affine(f"{theirs}.attention.self.{name}", "QD", f"{ours}/{name}")
    yield from affine(f"{theirs}.attention.output.dense", "DQ", f"{ours}/output")
    yield from layer_norm(f"{theirs}.attention.output.LayerNorm", f"{ours}_residual/norm")

    network = "encoder/layers/feed_forward"
    yield from affine(f"{theirs}.intermediate.dense", "FD", f"{network}/inner")
    yield from affine(f"{theirs}.output.dense", "DF", f"{network}/outer")
    yield from layer_norm(f"{theirs}.output.LayerNorm", f"{network}_residual/norm")


def _tensors(model: BertConfig) -> Iterator[Tensor]:
    yield Tensor("embeddings.word_embeddings.weight", "VD", ("embedding",))
    yield Tensor("embeddings.position_embeddings.weight", "MD", ("positions",))
    yield Tensor("embeddings.token_type_embeddings.weight", "TD", ("token_types",))
    yield from layer_norm("embeddings.LayerNorm", "norm")
    yield from _layer_tensors()

    for head in model.heads.split():
        yield from affine(_HEADS[head], _SIZES.get(head, "DD"), head)
    if model.num_classes:
        yield from affine("classifier", "ND", "classes")
    if model.num_tags:
        yield from affine("classifier", "ND", "tags")

    if "masked" in model.heads:
        yield from layer_norm("cls.predictions.transform.LayerNorm", "masked_norm")
        yield Tensor("cls.predictions.bias", "V", ("logits_bias",))

        yield Tensor("cls.predictions.decoder.bias", "V", ("logits_bias",), is_copy=True)
        yield Tensor("cls.predictions.decoder.weight", "VD", ("embedding",), is_copy=True)


def regression_fields(model: BertConfig) -> dict[str, Any]:
    """Returns the fields of config.json of a model that gives a number; none for another."""
    if "score" not in model.heads:
        return {}
    return {"problem_type": "regression", **label_fields(["LABEL_0"])}


def _data(model: BertConfig) -> DataSection:
    """Returns a section of data for a model whose training text is unknown."""
    if "spans" in model.heads:
        return _describe_data(model, "squad")
    if model.num_tags:
        return _describe_data(model, "tagged")
    if "score" in model.heads:
        return _describe_data(model, "scored")
    if "choice" in model.heads:
        return _describe_data(model, "choices")

    has_classes = model.num_classes > 0
    return LabeledConfig(
        corpus="labeled" if has_classes else "masked",
        train="unknown",
        valid="unknown",
        mask_rate=0.0 if has_classes else 0.15,
        max_length=min(LabeledConfig.max_length, model.max_length),
    )


def _describe_data(model: BertConfig, corpus: Any) -> AnnotatedConfig:
    return AnnotatedConfig(
        corpus=corpus,
        train="unknown",
        valid="unknown",
        max_length=min(AnnotatedConfig.max_length, model.max_length),
    )


def _example(model: BertConfig) -> str:
    """Returns code that uses an export: for one text, or for two ends of a text."""
    if "choice" in model.heads:
        return f"{LOADED}{_TWO_CHOICES}"

    # The classifier in transformers has its global token by itself.
    needs_global_token = model.global_tokens > 0 and model.num_classes == 0
    return f"{LOADED}{_GLOBAL_TOKEN if needs_global_token else _ONE_TEXT}"


BERT = Layout(
    model_type="bert",
    network=_network,
    section=BertConfig,
    fields=ENCODER_FIELDS
    | {
        "max_position_embeddings": "max_length",
        "type_vocab_size": "num_token_types",
        "classifier_dropout": "pooled_dropout_rate",
    },
    defaults={"type_vocab_size": 2, "layer_norm_eps": 1e-12, "classifier_dropout": None},
    only=_ONLY | {"position_embedding_type": "absolute"},
    ignored="pooler_.*",  # of the code that saved old files
    read=_read,
    labels=_labels,
    write=regression_fields,
    tensors=_tensors,
    sizes=lambda model: {"N": model.num_classes or model.num_tags},
    data=_data,
    example=_example,
    special_tokens={"pad": "[PAD]", "eos": "[SEP]", "bos": "[CLS]", "unk": "[UNK]"},
    token_names={
        "pad": "pad_token",
        "eos": "sep_token",
        "bos": "cls_token",
        "unk": "unk_token",
    },
    prefix="bert.",
    tasks=(
        "ForMaskedLM",
        "ForMultipleChoice",
        "ForPreTraining",
        "ForNextSentencePrediction",
        "ForQuestionAnswering",
        "ForSequenceClassification",
        "ForTokenClassification",
    ),
    heads=("cls.", "classifier.", "qa_outputs."),
    old_names={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    expressed={
        "architecture": ["bert"],
        "heads": [head for head in typing.get_args(Heads) if head != "replaced"],
        "num_classes": ANY,
        "num_tags": ANY,
        "pooling": ANY,
        "normalized": ANY,
    },
    fits=lambda model: model.num_token_types > 0,
    buffers=r"embeddings\.(position|token_type)_ids",
)
