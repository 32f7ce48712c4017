"""jaxformer: the system of "Attention Is All You Need", whole and exact, in JAX and Flax linen.

Names are imported when they are first used, so that ``import jaxformer`` costs nothing and needs
none of the libraries for text, files and pictures.

Config       Config, ModelConfig, DataConfig, StreamConfig, TrainingConfig, MeshConfig, UserError
Models       Transformer, LanguageModel
Parts        MultiHeadAttention, FeedForward, Block, Stack, Residual, LayerNorm, Dropout, KVCache,
             StackCache, dot_product_attention, sinusoidal_positions, rotary_positions,
             segment_mask, causal_mask
Search       BeamSearch, Sampling, beam_search, sample, ensemble, BeamResult, gnmt_penalty
Training     train, make_optimizer, inverse_sqrt_schedule, muon, cross_entropy
Tasks        Task, fit, FitConfig, every, Writer, BatchShards, Randomness, prefetch, evaluate_loss,
             make_mesh, init_state, make_train_step, TrainState
Use          Translator, Hypothesis, Parser, Generator, Tokenizer, Batch, Corpus, score_pairs,
             Score, record_attention, AttentionView, load_model, quantize, Checkpoints
"""

from jaxformer.lazy import attach
from jaxformer.version import __version__ as __version__

__getattr__, __dir__, __all__ = attach(__name__, "__version__")  # pyright: ignore[reportUnsupportedDunderAll]
