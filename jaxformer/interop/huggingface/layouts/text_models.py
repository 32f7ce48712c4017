"""The data sections, special tokens and example that models of text share."""

from jaxformer.config import DataConfig, StreamConfig
from jaxformer.data.corpus import UNKNOWN_LANGUAGE
from jaxformer.models.architecture import Architecture

# Fields of encoder-decoders.
SPECIAL = {"pad": "pad_token_id", "eos": "eos_token_id", "bos": "decoder_start_token_id"}
TOKEN_NAMES = {"pad": "pad_token", "eos": "eos_token", "unk": "unk_token"}
LOADED = """
from tokenizers import Tokenizer
from transformers import NETWORK
import torch

tokenizer, model = Tokenizer.from_file("tokenizer.json"), NETWORK.from_pretrained(".")
"""
EXAMPLE = f"""{LOADED}tokens = model.generate(torch.tensor([tokenizer.encode("The house").ids]))
print(tokenizer.decode(tokens[0].tolist()))
"""
# The code of the source begins it, and the search is forced to begin with the target's.
LANGUAGE_EXAMPLE = EXAMPLE.replace(
    'tokens = model.generate(torch.tensor([tokenizer.encode("The house").ids]))',
    "source, target = map(tokenizer.token_to_id, LANGUAGES)\n"
    'ids = [source, *tokenizer.encode("The house", add_special_tokens=False).ids, 2]\n'
    "tokens = model.generate(torch.tensor([ids]), forced_bos_token_id=target)",
)


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
