"""Names of arrays in Marian's files and in our Transformer."""

# Embeddings: of the source, of the target, of both, and the output projection.
SOURCE = "model.encoder.embed_tokens.weight"
TARGET = "model.decoder.embed_tokens.weight"
SHARED = "model.shared.weight"
OUTPUT = "lm_head.weight"
# The linear layers of a layer: our module and our matrix.
LINEAR = {
    "self_attn.q_proj": ("self_attention", "query"),
    "self_attn.k_proj": ("self_attention", "key"),
    "self_attn.v_proj": ("self_attention", "value"),
    "self_attn.out_proj": ("self_attention", "output"),
    "encoder_attn.q_proj": ("cross_attention", "query"),
    "encoder_attn.k_proj": ("cross_attention", "key"),
    "encoder_attn.v_proj": ("cross_attention", "value"),
    "encoder_attn.out_proj": ("cross_attention", "output"),
    "fc1": ("feed_forward", "inner"),
    "fc2": ("feed_forward", "outer"),
}
# The layer norm after each of our modules.
NORMS = {
    "self_attention": "self_attn_layer_norm",
    "cross_attention": "encoder_attn_layer_norm",
    "feed_forward": "final_layer_norm",
}
