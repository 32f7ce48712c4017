"""Foreign architectures: published sizes, and errors."""

import math

import jax
import pytest

from jaxformer import (
    BartConfig,
    BertConfig,
    GPT2Config,
    ImagesConfig,
    LlamaConfig,
    T5Config,
    ViTConfig,
)
from jaxformer.config import Config, StreamConfig
from jaxformer.errors import UserError
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.kinds.classification import CLASSIFICATION
from jaxformer.kinds.image_classification import IMAGE_CLASSIFICATION
from jaxformer.kinds.language_modeling import LANGUAGE_MODELING
from jaxformer.kinds.translation import TRANSLATION

STREAM = StreamConfig(file="text.txt")
LARGE = {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "num_layers": 24}
OPT_350M = GPT2Config(
    **LARGE, vocab_size=50_272, max_length=2048, norm_position="post", embedding_size=512
)
BLOOM_560M = GPT2Config(**LARGE, vocab_size=250_880, positions="alibi", embedding_norm=True)
GPT_J = GPT2Config(
    vocab_size=50_400,
    d_model=4096,
    d_ff=16_384,
    num_heads=16,
    num_layers=28,
    positions="rotary",
    rotary_size=64,
    is_parallel=True,
    attention_biases="none",
    embeddings="separate",
    output_bias=True,
)
PEGASUS = BartConfig(
    vocab_size=96_103,
    num_layers=16,
    norm_position="pre",
    positions="sinusoidal",
    embedding_norm="none",
)
BLENDERBOT = BartConfig(  # the distilled one
    vocab_size=8008,
    d_model=1280,
    d_ff=5120,
    num_heads=32,
    num_layers=2,
    num_decoder_layers=12,
    norm_position="pre",
    embedding_norm="none",
    max_length=128,
)
GEMMA_2B = LlamaConfig(
    vocab_size=256_000,
    d_model=2048,
    d_ff=16_384,
    num_heads=8,
    num_kv_heads=1,
    d_k=256,
    num_layers=18,
    embeddings="tied",
    norm_unit_offset=True,
)
BEIT_BASE = ViTConfig(
    architecture="beit",
    pooling="patches",
    positions="relative",
    layer_scale=0.1,
    biases="except_key",
)
DINOV2 = {"architecture": "dinov2", "pooling": "token_and_patches", "layer_scale": 1.0}
DINOV2 |= {"num_classes": 0, "patch_size": 14, "position_size": 518}
DINOV2_BASE = ViTConfig(**DINOV2)
DINOV2_GIANT = ViTConfig(
    **DINOV2,
    d_model=1536,
    d_ff=4096,
    num_heads=24,
    num_layers=40,
    gated=True,
    activation="swish",
)
FLAN = {"embeddings": "separate", "scaled_output": False}


@pytest.mark.parametrize(
    ("config", "size"),
    [
        # Of learned positions, two rows that BART and mBART do not read are left out. The bias of
        # the logits counts, which transformers has no gradient of.
        (BartConfig(), 406_291_456 - 4 * 1024 + 50_265),
        (BartConfig(vocab_size=250_027, norm_position="pre"), 610_851_840 - 4 * 1024 + 250_027),
        (PEGASUS, 570_797_056 - 2 * 1024 * 1024 + 96_103),
        (BLENDERBOT, 364_802_560 + 8_008),
        (BertConfig(num_classes=0), 109_482_240),
        (GPT2Config(), 124_439_808),
        (GPT2Config(d_model=1600, d_ff=6400, num_heads=25, num_layers=48), 1_557_611_200),
        # OPT with 125 and 350 million parameters, without two rows of positions.
        (GPT2Config(vocab_size=50_272, max_length=2048), 125_239_296 - 2 * 768),
        (OPT_350M, 331_196_416 - 2 * 1024),
        (GPT_J, 6_050_882_784),
        (BLOOM_560M, 559_214_592),
        (LlamaConfig(), 6_738_415_616),
        # LLaMA 3 with 8 billion parameters.
        (LlamaConfig(vocab_size=128_256, d_ff=14_336, num_kv_heads=8), 8_030_261_248),
        (GEMMA_2B, 2_506_172_416),
        (T5Config(), 60_506_624),
        (T5Config(d_ff=1024, num_heads=6, num_layers=8, gated=True, **FLAN), 76_961_152),
        (ViTConfig(), 86_567_656),  # ViT-B/16
        (ViTConfig(patch_size=32), 88_224_232),
        (ViTConfig(d_model=1024, d_ff=4096, num_heads=16, num_layers=24), 304_326_632),
        (BEIT_BASE, 86_530_984),
        # DINOv2 without the token of its pretraining.
        (DINOV2_BASE, 86_580_480 - 768),
        (DINOV2_GIANT, 1_136_480_768 - 1536),
    ],
)
def test_parameters_are_as_many_as_published(config, size):
    kinds = {
        "bart": TRANSLATION,
        "bert": CLASSIFICATION,
        "t5": TRANSLATION,
        **dict.fromkeys(("vit", "beit", "dinov2"), IMAGE_CLASSIFICATION),
    }
    kind = kinds.get(config.architecture, LANGUAGE_MODELING)

    leaves = jax.tree.leaves(abstract_params(config, kind))

    assert sum(math.prod(leaf.shape) for leaf in leaves) == size


NO_BERT = {"model": {"architecture": "bert"}, "data": {"corpus": "stream"}}
ERRORS = [
    (lambda: BertConfig(heads="masked"), "num_classes must be 0, or above 0 with pooler among"),
    (lambda: BertConfig(num_classes=-1), "num_classes must be 0, or above 0 with .*: got -1 with"),
    (lambda: BertConfig(heads="next"), "model.heads must be one of '', 'pooler', 'masked', "),
    (lambda: GPT2Config(d_model=10, num_heads=4), "model.num_heads must divide model.d_model=10"),
    (lambda: GPT2Config(absent_tokens="eos"), "model.absent_tokens must be some of bos, pad, unk"),
    (lambda: GPT2Config(architecture="llama"), "model.architecture must be one of 'gpt2'"),
    (
        lambda: GPT2Config(is_parallel=True, norm_position="post"),
        "is_parallel needs model.norm_p",
    ),
    (lambda: GPT2Config(window_every=2), "window_every=2 needs model.window, of those layers"),
    (lambda: GPT2Config(rotary_size=4), "rotary_size=4 needs model.positions=rotary: got learned"),
    (lambda: GPT2Config(positions="rotary", rotary_size=66), "and at most the size of a head, 64"),
    (
        lambda: GPT2Config(positions="fairseq", d_model=15, num_heads=1),
        "d_model must be even, since",
    ),
    (lambda: GPT2Config(positions="rotary", d_model=9, num_heads=3), "the size of a head, model.d"),
    (lambda: GPT2Config(vocab_size=2**21), "model.vocab_size must be at most 1048576"),
    (lambda: LlamaConfig(num_kv_heads=3), "model.num_kv_heads must divide model.num_heads=32"),
    (lambda: LlamaConfig(d_k=3), "the size of a head, model.d_k, must be even"),
    (lambda: LlamaConfig(rotary_factor=2), "rotary_factor needs model.rotary_scaling=linear or ll"),
    (lambda: LlamaConfig(rotary_low_turns=4), "rotary_low_turns must be less than .*: got 4 and 4"),
    (lambda: Config(model=GPT2Config()), "class ModelConfig or T5Config or .*: got GPT2Con"),
    (lambda: T5Config(num_buckets=3), "model.num_buckets must be at least 4, .*: got 3 and 128"),
    (lambda: T5Config(max_distance=16), "model.max_distance more than half of it: got 32 and 16"),
    (lambda: T5Config(num_decoder_layers=0), "model.num_decoder_layers must be greater than 0"),
    (lambda: T5Config(d_k=2**21), "model.d_k must be at most 1048576"),
    (lambda: Config(model=T5Config(), data=STREAM), "model must be of class ModelConfig or GPT2C"),
    (lambda: ViTConfig(width=30), "model.patch_size must divide model.width=30: got 16"),
    (lambda: ViTConfig(position_size=100), "model.patch_size must divide model.position_size=100"),
    (
        lambda: ViTConfig(position_size=224, positions="relative"),
        "model.position_size needs model.positions=learned, which are .*: got relative",
    ),
    (lambda: ViTConfig(num_heads=5), "model.num_heads must divide model.d_model=768"),
    (lambda: ViTConfig(channels=0), "model.channels must be greater than 0: got 0"),
    (lambda: Config(data=ImagesConfig()), "model must be of class ViTConfig or .* with data.corp"),
    (lambda: ImagesConfig(tokenizer="a"), "data.tokenizer: pictures have none, got a"),
    (lambda: Config.from_dict(NO_BERT), "must be one of transformer, gpt2, llama for a language "),
]


@pytest.mark.parametrize(("call", "message"), ERRORS)
def test_errors(call, message):
    with pytest.raises(UserError, match=message):
        call()
