"""Marian models with random weights in the Hugging Face format, read by every contestant.

A model with plain random weights repeats one token, whatever the source: its tied output embedding
sees the input token through the residual connections. The weights here are scaled to avoid that.
Attention is sharp, embeddings are small, layers add less the more of them there are, and the last
layer norm is large. Translations then differ between sentences, and beams have alternatives.
"""

import io
import json
import pathlib

import numpy as np
import safetensors.numpy
import sentencepiece

SIZES = {
    "base": {"d_model": 512, "d_ff": 2048, "num_heads": 8, "num_layers": 6, "vocab_size": 8000},
    "small": {"d_model": 256, "d_ff": 1024, "num_heads": 4, "num_layers": 3, "vocab_size": 8000},
    "tiny": {"d_model": 64, "d_ff": 128, "num_heads": 4, "num_layers": 2, "vocab_size": 500},
}
# Marian's ids: 1 is the unknown token, the last id is padding, and the others are words.
EOS = 0
FIRST_WORD = 2
# Logit of padding and end of sentence. No system generates them, so all decode to the limit.
IMPOSSIBLE = -1e9
_EMBEDDING = 0.3  # standard deviation of the inputs of the first layer
_SHARPNESS = 4.0  # standard deviation of the logits
# Standard deviation of the output of each projection for inputs of unit variance.
_GAINS = {"q_proj": 3.0, "k_proj": 3.0, "v_proj": 0.7, "fc1": 2.0}
# The same for the last projection of a sublayer, summed over all layers.
_GAINS_OF_ALL = {"out_proj": 2.1, "fc2": 6.0}


def random_sources(size: str, sentences: int, length: int) -> list[list[int]]:
    """Returns random sentences of ``length`` tokens, including end of sentence, in Marian's ids."""
    rng = np.random.default_rng(1)
    shape = (sentences, length - 1)
    words = rng.integers(FIRST_WORD, SIZES[size]["vocab_size"] - 1, shape)
    return [[*row, EOS] for row in words.tolist()]


def write_model(size: str, folder: pathlib.Path) -> None:
    """Writes a deterministic model of this size: config, weights, vocabulary, tokenizers."""
    folder.mkdir(parents=True)
    sizes = SIZES[size]
    config = _config(sizes)
    (folder / "config.json").write_text(json.dumps(config))
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id", "forced_eos_token_id")
    search = {name: config[name] for name in names}
    (folder / "generation_config.json").write_text(json.dumps(search))
    words = (f"w{number}" for number in range(FIRST_WORD, sizes["vocab_size"] - 1))
    vocabulary = ["</s>", "<unk>", *words, "<pad>"]
    numbers = {word: number for number, word in enumerate(vocabulary)}
    (folder / "vocab.json").write_text(json.dumps(numbers))
    for side in ("source", "target"):  # required but not used, since the benchmark has no text
        (folder / f"{side}.spm").write_bytes(_pieces())
    safetensors.numpy.save_file(
        _weights(sizes), folder / "model.safetensors", metadata={"format": "pt"}
    )


def _config(sizes: dict[str, int]) -> dict:
    config = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "activation_function": "swish",
        "d_model": sizes["d_model"],
        "scale_embedding": True,
        "static_position_embeddings": True,
        "max_position_embeddings": 512,
        "vocab_size": sizes["vocab_size"],
        "eos_token_id": EOS,
        "forced_eos_token_id": None,
        "pad_token_id": sizes["vocab_size"] - 1,
        "decoder_start_token_id": sizes["vocab_size"] - 1,
    }
    for side in ("encoder", "decoder"):
        config |= {
            f"{side}_layers": sizes["num_layers"],
            f"{side}_attention_heads": sizes["num_heads"],
            f"{side}_ffn_dim": sizes["d_ff"],
        }
    return config


def _weights(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    width = sizes["d_model"]
    inner = sizes["d_ff"]
    vocabulary = sizes["vocab_size"]

    def normal(deviation: float, *shape: int) -> np.ndarray:
        return deviation * rng.standard_normal(shape, np.float32)

    embedding = normal(_EMBEDDING * width**-0.5, vocabulary, width)
    embedding[-1] = 0.0  # padding, which starts every translation
    bias = np.zeros((1, vocabulary), np.float32)
    bias[0, [EOS, -1]] = IMPOSSIBLE
    weights = {"model.shared.weight": embedding, "final_logits_bias": bias}

    def linear(name: str, inputs: int, outputs: int) -> None:
        kind = name.split(".")[-1]
        gain = _GAINS.get(kind) or _GAINS_OF_ALL[kind] / sizes["num_layers"]
        weights[f"{name}.weight"] = normal(gain * inputs**-0.5, outputs, inputs)
        weights[f"{name}.bias"] = normal(0.1, outputs)

    def norm(name: str, scale: float) -> None:
        weights[f"{name}.weight"] = np.full(width, scale, np.float32)
        weights[f"{name}.bias"] = np.zeros(width, np.float32)

    for side, attentions in (("encoder", ["self"]), ("decoder", ["self", "encoder"])):
        for layer in range(sizes["num_layers"]):
            name = f"model.{side}.layers.{layer}"
            for attention in attentions:
                for projection in ("q_proj", "k_proj", "v_proj", "out_proj"):
                    linear(f"{name}.{attention}_attn.{projection}", width, width)
                norm(f"{name}.{attention}_attn_layer_norm", 1.0)
            linear(f"{name}.fc1", width, inner)
            linear(f"{name}.fc2", inner, width)
            last = side == "decoder" and layer + 1 == sizes["num_layers"]
            norm(f"{name}.final_layer_norm", _SHARPNESS / _EMBEDDING if last else 1.0)
    return weights


def _pieces() -> bytes:
    """Returns a minimal SentencePiece model."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["w"]),
        model_writer=model,
        vocab_size=8,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return model.getvalue()
