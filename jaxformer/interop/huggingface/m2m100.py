"""M2M-100 and NLLB in transformers' layout: the paper's Transformer with norms first."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from jaxtyping import Float

from jaxformer.config import ModelConfig
from jaxformer.interop.huggingface.layout import Layout, Tensor
from jaxformer.interop.huggingface.seq2seq import SPECIAL, pair_data
from jaxformer.interop.json_fields import JsonFields
from jaxformer.interop.marian.layout import LINEAR, NORMS, OUTPUT, SHARED, SOURCE, TARGET
from jaxformer.models.architecture import absent_bias

_SIZES = {"layers": "num_layers", "ffn_dim": "d_ff", "attention_heads": "num_heads"}
_FIELDS = {f"encoder_{name}": ours for name, ours in _SIZES.items()} | {
    "d_model": "d_model",
    "max_position_embeddings": "max_length",
    "activation_function": "activation",
    "dropout": "dropout_rate",
    "attention_dropout": "attention_dropout_rate",
}
_DEFAULTS = {
    "decoder_start_token_id": 2,
    "max_position_embeddings": 1024,
    "activation_function": "relu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
}
_ONLY = {"is_encoder_decoder": True, "scale_embedding": True, "tie_word_embeddings": True}
# Our fields that have one value in all models.
_FIXED = {"norm_position": "pre", "positions": "fairseq", "biases": True, "norm_epsilon": 1e-5}
_EXAMPLE = """
from tokenizers import Tokenizer
from transformers import NETWORK
import torch

tokenizer, model = Tokenizer.from_file("tokenizer.json"), NETWORK.from_pretrained(".")
source, target = map(tokenizer.token_to_id, LANGUAGES)
ids = [source, *tokenizer.encode("The house", add_special_tokens=False).ids, 2]
tokens = model.generate(torch.tensor([ids]), forced_bos_token_id=target)
print(tokenizer.decode(tokens[0].tolist()))
"""
_AXES = {"output": "DQ", "inner": "FD", "outer": "DF"}


def _read(fields: JsonFields) -> dict[str, Any]:
    for name, ours in _SIZES.items():
        size, known = fields.integer(f"encoder_{name}"), f"ModelConfig has one {ours}"
        fields.check(f"decoder_{name}", [size], f"encoder_{name}={size}", known)
    return dict(_FIXED)


def _write(model: ModelConfig) -> dict[str, Any]:
    return {f"decoder_{name}": getattr(model, ours) for name, ours in _SIZES.items()}


def _tensors(model: ModelConfig) -> Iterator[Tensor]:
    yield Tensor(SHARED, "VD", ("embedding",))
    for name in (SOURCE, TARGET, OUTPUT):
        yield Tensor(name, "VD", ("embedding",), is_copy=True)
    for stack in ("encoder", "decoder"):
        theirs, layer = f"model.{stack}.layers.{{n}}", f"{stack}/layers"
        norms = {f"model.{stack}.layer_norm": stack}
        for module, name in NORMS.items():
            if stack == "decoder" or module != "cross_attention":
                norms[f"{theirs}.{name}"] = f"{layer}/{module}_residual"
        for name, (module, matrix) in LINEAR.items():
            if stack == "decoder" or module != "cross_attention":
                axes, ours = _AXES.get(matrix, "QD"), f"{layer}/{module}/{matrix}"
                yield Tensor(f"{theirs}.{name}.weight", axes, (ours,), is_linear=True)
                yield Tensor(f"{theirs}.{name}.bias", axes[0], (f"{ours}_bias",))
        for name, ours in norms.items():
            yield Tensor(f"{name}.weight", "D", (f"{ours}/norm/scale",))
            yield Tensor(f"{name}.bias", "D", (f"{ours}/norm/bias",))


def _constants(model: ModelConfig, absent: str) -> dict[str, Float[np.ndarray, "..."]]:
    """Returns the bias of the logits: files have none, and absent tokens are never generated."""
    bias = absent_bias(absent, model.vocab_size)
    return {"logits_bias": np.zeros(model.vocab_size, np.float32) + (0 if bias is None else bias)}


def _can_express(model: ModelConfig) -> bool:
    plain = model.embeddings == "tied" and model.window is model.d_k is model.d_v is None
    return plain and all(getattr(model, name) == value for name, value in _FIXED.items())


M2M100 = Layout(
    model_type="m2m_100",
    network="M2M100ForConditionalGeneration",
    section=ModelConfig,
    fields=_FIELDS,
    defaults=_DEFAULTS,
    only=_ONLY | {"activation_dropout": 0.0},
    # Of training, of the search, and another name of encoder_layers.
    ignored="(en|de)coder_(layerdrop|layers|ffn_dim|attention_heads)|init_std|num_hidden_layers"
    "|max_length|num_beams|early_stopping|gradient_checkpointing|forced_bos_token_id",
    read=_read,
    write=_write,
    tensors=_tensors,
    constants=_constants,
    data=pair_data,
    special=SPECIAL,
    example=_EXAMPLE,
    has_languages=True,
    buffers=r"model\.(en|de)coder\.embed_positions\.weights",
    can_express=_can_express,
)
