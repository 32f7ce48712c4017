"""The data sections, special tokens and example that models of text share."""

from jaxformer.config import DataConfig, StreamConfig
from jaxformer.data.corpus import UNKNOWN_LANGUAGE
from jaxformer.models.architecture import Architecture

# Fields of encoder-decoders.
SPECIAL = {"pad": "pad_token_id", "eos": "eos_token_id", "bos": "decoder_start_token_id"}
TOKEN_NAMES = {"pad": "pad_token", "eos": "eos_token", "unk": "unk_token"}
LOADED = """
from transformers import AutoTokenizer, NETWORK

tokenizer, model = AutoTokenizer.from_pretrained("."), NETWORK.from_pretrained(".")
"""
EXAMPLE = f"""{LOADED}tokens = model.generate(**tokenizer("The house", return_tensors="pt"))
print(tokenizer.decode(tokens[0], skip_special_tokens=True))
"""


def stream_data(model: Architecture) -> StreamConfig:
    """Returns a section of data for a model whose training text is unknown."""
    return StreamConfig(file="unknown", length=min(StreamConfig.length, model.max_length))


def pair_data(model: Architecture) -> DataConfig:
    """Returns a section of data for a model whose training pairs are unknown."""
    return DataConfig(
        corpus="text",
        source_language=UNKNOWN_LANGUAGE,
        target_language=UNKNOWN_LANGUAGE,
        train="unknown",
        valid="unknown",
        max_length=min(DataConfig.max_length, model.max_length),
    )
