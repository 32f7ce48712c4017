"""jaxformer: the system of "Attention Is All You Need", whole and exact, in JAX and Flax linen.

Names are imported when they are first used, so that ``import jaxformer`` costs nothing and needs
none of the libraries for text, files and pictures.

Config       Config, ModelConfig, DataConfig, TrainingConfig, MeshConfig, SearchConfig, UserError
Model        Transformer, Cache, EncoderLayer, DecoderLayer, MultiHeadAttention, FeedForward,
             dot_product_attention, sinusoidal_positions, segment_mask, causal_mask
Search       beam_search, sample, ensemble, Rules, SamplingRules, BeamResult, gnmt_penalty
Training     train, TrainState, make_train_step, make_mesh, make_optimizer, inverse_sqrt_schedule,
             cross_entropy
Use          Translator, Hypothesis, Parser, quantize, Tokenizer, Batch, Checkpoints
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxformer.checkpoint import Checkpoints as Checkpoints
    from jaxformer.config import Config as Config
    from jaxformer.config import DataConfig as DataConfig
    from jaxformer.config import MeshConfig as MeshConfig
    from jaxformer.config import ModelConfig as ModelConfig
    from jaxformer.config import SearchConfig as SearchConfig
    from jaxformer.config import TrainingConfig as TrainingConfig
    from jaxformer.data.batch import Batch as Batch
    from jaxformer.data.tokenizer import Tokenizer as Tokenizer
    from jaxformer.errors import UserError as UserError
    from jaxformer.inference.parser import Parser as Parser
    from jaxformer.inference.quantization import quantize as quantize
    from jaxformer.inference.translator import Hypothesis as Hypothesis
    from jaxformer.inference.translator import Translator as Translator
    from jaxformer.nn.attention import MultiHeadAttention as MultiHeadAttention
    from jaxformer.nn.attention import dot_product_attention as dot_product_attention
    from jaxformer.nn.layers import DecoderLayer as DecoderLayer
    from jaxformer.nn.layers import EncoderLayer as EncoderLayer
    from jaxformer.nn.layers import FeedForward as FeedForward
    from jaxformer.nn.masks import causal_mask as causal_mask
    from jaxformer.nn.masks import segment_mask as segment_mask
    from jaxformer.nn.positions import sinusoidal_positions as sinusoidal_positions
    from jaxformer.nn.transformer import Cache as Cache
    from jaxformer.nn.transformer import Transformer as Transformer
    from jaxformer.search import BeamResult as BeamResult
    from jaxformer.search import Rules as Rules
    from jaxformer.search import SamplingRules as SamplingRules
    from jaxformer.search import beam_search as beam_search
    from jaxformer.search import ensemble as ensemble
    from jaxformer.search import gnmt_penalty as gnmt_penalty
    from jaxformer.search import sample as sample
    from jaxformer.training.loop import train as train
    from jaxformer.training.losses import cross_entropy as cross_entropy
    from jaxformer.training.mesh import make_mesh as make_mesh
    from jaxformer.training.optimizer import inverse_sqrt_schedule as inverse_sqrt_schedule
    from jaxformer.training.optimizer import make_optimizer as make_optimizer
    from jaxformer.training.step import TrainState as TrainState
    from jaxformer.training.step import make_train_step as make_train_step

_ROOMS = {
    "checkpoint": ["Checkpoints"],
    "config": [
        "Config",
        "ModelConfig",
        "DataConfig",
        "TrainingConfig",
        "MeshConfig",
        "SearchConfig",
    ],
    "data.batch": ["Batch"],
    "data.tokenizer": ["Tokenizer"],
    "errors": ["UserError"],
    "inference.quantization": ["quantize"],
    "inference.parser": ["Parser"],
    "inference.translator": ["Hypothesis", "Translator"],
    "nn.attention": ["MultiHeadAttention", "dot_product_attention"],
    "nn.layers": ["DecoderLayer", "EncoderLayer", "FeedForward"],
    "nn.masks": ["causal_mask", "segment_mask"],
    "nn.positions": ["sinusoidal_positions"],
    "nn.transformer": ["Cache", "Transformer"],
    "search": [
        "BeamResult",
        "Rules",
        "SamplingRules",
        "beam_search",
        "ensemble",
        "gnmt_penalty",
        "sample",
    ],
    "training.loop": ["train"],
    "training.losses": ["cross_entropy"],
    "training.mesh": ["make_mesh"],
    "training.optimizer": ["inverse_sqrt_schedule", "make_optimizer"],
    "training.step": ["TrainState", "make_train_step"],
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Imports a public name from its room."""
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'jaxformer' has no attribute {name!r}")
    return getattr(importlib.import_module(f"jaxformer.{_ROOM_OF[name]}"), name)


def __dir__() -> list[str]:
    """The public names, for completion in notebooks."""
    return [*_ROOM_OF, "__version__"]
