"""jaxformer: "Attention Is All You Need" in pure-functional JAX and Flax linen.

Names are imported on first use: ``import jaxformer`` is instant and loads none of the libraries for
text, checkpoints and plots.

Config       Config, load_config, ModelConfig, EncoderConfig, BartConfig, BertConfig, CLIPConfig,
             CNNConfig, ConViTConfig, EncoderDecoderConfig, FlamingoConfig, GatoConfig, GPT2Config,
             LlamaConfig, LongT5Config, RecurrentConfig, SpeechEncoderDecoderConfig, StudentConfig,
             SwinConfig, T5Config, ViTConfig, VisionEncoderDecoderConfig,
             VisionTextDualEncoderConfig, Wav2Vec2Config, WhisperConfig,
             DataConfig, StreamConfig, LabeledConfig, AnnotatedConfig, ImagesConfig,
             ImageTextConfig, CaptionsConfig, InterleavedConfig, SpeechConfig,
             TranscriptsConfig, TrainingConfig, MeshConfig
Models       Transformer, LanguageModel, Encoder, Bart, Bert, CLIP, CNN, ConViT, EncoderDecoder,
             Flamingo, Gato, GPT2, Llama, LongT5, T5, Recurrent, SpeechEncoderDecoder, Student,
             Swin, ViT, VisionEncoderDecoder, VisionTextDualEncoder, Wav2Vec2, Whisper
Layers       MultiHeadAttention, FeedForward, Block, Stack, Residual, LayerNorm, RMSNorm, Dropout,
             Keys, Memory, StackCache, dot_product_attention, sinusoidal_positions,
             rotary_positions, segment_mask, causal_mask, padding_mask
Search       BeamSearch, Sampling, beam_search, sample, ensemble, BeamResult, gnmt_penalty
Training     train, make_optimizer, inverse_sqrt_schedule, muon, per_layer, with_lora, with_ema,
             ema_params, cross_entropy, contrastive_sums
Tasks        Task, fit, FitConfig, every, Writer, BatchShards, Randomness, dropout_of, class_sums,
             epochs, evaluate_arrays, prefetch, evaluate_loss, make_mesh, init_state,
             make_train_step, TrainState
Data         Tokenizer, train_tokenizer, Batch, Corpus
Inference    Translator, Hypothesis, Decoded, Parser, Generator, Classifier, ImageClassifier,
             ImageTextMatcher, Captioner, PictureReader, Reader, Answer, Tagger, TaggedWord,
             Entity, Regressor, Chooser, Embedder, SpeechRecognizer, SpeechTranscriber, Agent,
             score_pairs, Score, record_attention, record_text, AttentionView
Runs         load_model, load_params, quantize, Checkpoints
Errors       UserError
"""

import ast
import importlib
import pathlib
import pkgutil
from typing import Any

from jaxformer.addresses import FETCHERS as _FETCHERS
from jaxformer.version import __version__ as __version__

_STUB = ast.parse(pkgutil.get_data(__name__, "__init__.pyi") or "")
_IMPORTS = [statement for statement in _STUB.body if isinstance(statement, ast.ImportFrom)]
_MODULES = {alias.name: str(node.module) for node in _IMPORTS for alias in node.names}
__all__ = [*_MODULES]  # pyright: ignore[reportUnsupportedDunderAll]


def _fetch_from_hub(address: str) -> pathlib.Path:
    from jaxformer.interop.hub_models import fetch_model

    return fetch_model(address)


_FETCHERS["hf"] = _fetch_from_hub


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return [*_MODULES, "__version__"]
