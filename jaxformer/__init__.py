"""jaxformer: "Attention Is All You Need" in pure-functional JAX and Flax linen.

Names are imported on first use: ``import jaxformer`` is instant and loads none of the libraries for
text, checkpoints and plots.

Config       Config, load_config, ModelConfig, EncoderConfig, DataConfig, StreamConfig,
             LabeledConfig, TrainingConfig, MeshConfig
Models       Transformer, LanguageModel, Encoder
Layers       MultiHeadAttention, FeedForward, Block, Stack, Residual, LayerNorm, Dropout,
             Keys, Memory, StackCache, dot_product_attention, sinusoidal_positions,
             rotary_positions, segment_mask, causal_mask
Search       BeamSearch, Sampling, beam_search, sample, ensemble, BeamResult, gnmt_penalty
Training     train, make_optimizer, inverse_sqrt_schedule, muon, per_layer, cross_entropy
Tasks        Task, fit, FitConfig, every, Writer, BatchShards, Randomness, prefetch, evaluate_loss,
             make_mesh, init_state, make_train_step, TrainState
Data         Tokenizer, Batch, Corpus
Inference    Translator, Hypothesis, Decoded, Parser, Generator, Classifier, score_pairs, Score,
             record_attention, AttentionView
Runs         load_model, quantize, Checkpoints
Errors       UserError
"""

from jaxformer.lazy import attach
from jaxformer.version import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__, "__version__")  # pyright: ignore[reportUnsupportedDunderAll]
