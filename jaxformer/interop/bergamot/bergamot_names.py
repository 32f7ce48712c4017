"""Names of tensors in Bergamot's files, and their paths in the parameters of our layers."""

import re

# Bergamot's name of a tensor in a layer, by its path in the parameters of our layer.
Names = dict[tuple[str, ...], str]


def is_matrix(name: str) -> bool:
    """Returns whether a tensor of a layer is a matrix, and not a bias or of a layer norm."""
    return "_W" in name and "_ln" not in name


def _linear(module: str, projection: str, matrix: str, bias: str) -> Names:
    return {
        (module, projection): matrix,
        (module, f"{projection}_bias"): bias,
    }


def _norm(module: str, name: str) -> Names:
    residual = f"{module}_residual"
    return {
        (residual, "norm", "scale"): f"{name}_ln_scale",
        (residual, "norm", "bias"): f"{name}_ln_bias",
    }


def _attention(module: str, name: str) -> Names:
    names: Names = {}
    for projection in ("query", "key", "value", "output"):
        letter = projection[0]
        matrix = f"{name}_W{letter}"
        bias = f"{name}_b{letter}"
        names |= _linear(module, projection, matrix, bias)

    return names | _norm(module, f"{name}_Wo")


_FEED_FORWARD = {
    **_linear("feed_forward", "inner", "ffn_W1", "ffn_b1"),
    **_linear("feed_forward", "outer", "ffn_W2", "ffn_b2"),
    **_norm("feed_forward", "ffn_ffn"),
}
# Names in layer n of a side, after "encoder_l<n>_" or "decoder_l<n>_".
LAYERS: dict[str, Names] = {
    "encoder": _attention("self_attention", "self") | _FEED_FORWARD,
    "decoder": {
        ("self_attention", "input"): "rnn_W",
        **_linear("self_attention", "forget", "rnn_Wf", "rnn_bf"),
        **_norm("self_attention", "rnn_ffn"),
        **_attention("cross_attention", "context"),
        **_FEED_FORWARD,
    },
}
# Axes of tensors: D features, F inner features. All others have D by D, or 1 by D.
AXES = {
    "ffn_W1": "DF",
    "ffn_b1": "1F",
    "ffn_W2": "FD",
}
# Paths of arrays whose last axis, in the file, is all heads.
PROJECTIONS = ("query", "key", "value")
# Bergamot quantizes the input of each matrix by a fixed scale, its alpha.
ALPHA_SUFFIX = "_QuantMultA"  # after the name of the matrix, in the name of its alpha
ALPHAS_FILE = "alphas.json"  # in a workdir: the alphas of an imported model

# Settings in special:model.yml with a single value that is supported.
SETTINGS = {
    "type": "transformer",
    "dec-cell": "ssru",
    "transformer-decoder-autoreg": "rnn",
    "transformer-preprocess": "",
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-postprocess-top": "",
    "transformer-train-position-embeddings": "false",
    "transformer-no-projection": "false",
    "transformer-tied-layers": "[]",
    "transformer-ffn-depth": "2",
    "transformer-depth-scaling": "false",
    "dec-cell-base-depth": "2",
    "dec-cell-high-depth": "1",
    "output-omit-bias": "false",
    "lemma-dim-emb": "0",
    "input-types": "[]",
    "right-left": "false",
    "skip": "false",
    "ulr": "false",
}
# Settings of sizes, by our fields.
SIZES = {
    "d_model": "dim-emb",
    "d_ff": "transformer-dim-ffn",
    "num_heads": "transformer-heads",
    "num_layers": "enc-depth",
    "num_decoder_layers": "dec-depth",
}
# Further settings that change no translation. Some belong to other architectures, but Marian always
# writes them; some repeat the shapes of tensors; some are for alignments.
IGNORED = re.compile(
    "version|dim-(rnn|vocabs)|enc-(cell|cell-depth|type)|tied-embeddings(-all|-src)?|special-vocab"
    "|transformer-(dim-)?aan.*|transformer-guided-alignment-layer|(bert|char)-.*|factors-combine"
)
# Values by which Marian writes that an option is not used.
UNSET = ("", "~", "null", "false", "0", "[]")

# Ids of special tokens. Bergamot has no ids for padding and the beginning of sentence.
EOS = 0
UNK = 1
