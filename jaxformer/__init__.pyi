# The one list of public names: type checkers read it, and __init__.py imports each from where this
# file does, when it is first used.
from jaxformer.checkpoint import Checkpoints as Checkpoints
from jaxformer.config import Config as Config
from jaxformer.config import DataConfig as DataConfig
from jaxformer.config import MeshConfig as MeshConfig
from jaxformer.config import ModelConfig as ModelConfig
from jaxformer.config import TrainingConfig as TrainingConfig
from jaxformer.data.batch import Batch as Batch
from jaxformer.data.tokenizer import Tokenizer as Tokenizer
from jaxformer.errors import UserError as UserError
from jaxformer.inference.parser import Parser as Parser
from jaxformer.inference.quantization import quantize as quantize
from jaxformer.inference.translator import Hypothesis as Hypothesis
from jaxformer.inference.translator import Translator as Translator
from jaxformer.models.transformer import Transformer as Transformer
from jaxformer.nn.attention import MultiHeadAttention as MultiHeadAttention
from jaxformer.nn.block import Block as Block
from jaxformer.nn.block import Residual as Residual
from jaxformer.nn.cache import KVCache as KVCache
from jaxformer.nn.dropout import Dropout as Dropout
from jaxformer.nn.feed_forward import FeedForward as FeedForward
from jaxformer.nn.kernels import dot_product_attention as dot_product_attention
from jaxformer.nn.masks import causal_mask as causal_mask
from jaxformer.nn.masks import segment_mask as segment_mask
from jaxformer.nn.norm import LayerNorm as LayerNorm
from jaxformer.nn.positions import sinusoidal_positions as sinusoidal_positions
from jaxformer.nn.stack import Stack as Stack
from jaxformer.nn.stack import StackCache as StackCache
from jaxformer.search import BeamResult as BeamResult
from jaxformer.search import BeamSearch as BeamSearch
from jaxformer.search import Sampling as Sampling
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

__version__: str
