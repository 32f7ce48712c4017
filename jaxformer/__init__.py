"""jaxformer: the system of "Attention Is All You Need", whole and exact, in JAX and Flax linen.

Names are imported when they are first used, so that ``import jaxformer`` costs nothing and needs
none of the libraries for text, files and pictures.

Config       Config, ModelConfig, DataConfig, TrainingConfig, MeshConfig, SearchConfig, UserError
Model        Transformer, Cache, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward,
             dot_product_attention, sinusoidal_positions, segment_mask, causal_mask
Search       beam_search, sample, ensemble, Rules, SamplingRules, BeamResult, gnmt_penalty
Training     train, make_optimizer, inverse_sqrt_schedule, muon, cross_entropy
Tasks        Task, fit, FitConfig, every, Writer, BatchShards, Randomness, prefetch, evaluate_loss,
             make_mesh, init_state, make_train_step, TrainState
Use          Translator, Hypothesis, Parser, quantize, Tokenizer, Batch, Checkpoints
"""

import ast
import importlib
import pkgutil
from typing import Any

from jaxformer.version import __version__ as __version__


def _modules() -> dict[str, str]:
    """The module that each public name is imported from, as ``__init__.pyi`` says."""
    stub = pkgutil.get_data(__name__, "__init__.pyi")
    assert stub is not None  # it is package data
    imports = [node for node in ast.parse(stub).body if isinstance(node, ast.ImportFrom)]
    return {alias.name: str(node.module) for node in imports for alias in node.names}


_MODULES = _modules()
__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    """Imports a public name from its module."""
    if name not in _MODULES:
        raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """The public names, for completion in notebooks."""
    return [*__all__, "__version__"]
