"""The data section, special tokens and example shared by all encoder-decoders of transformers."""

from jaxformer.config import DataConfig
from jaxformer.models.architecture import Architecture

SPECIAL = {"pad": "pad_token_id", "eos": "eos_token_id", "bos": "decoder_start_token_id"}
EXAMPLE = """
from tokenizers import Tokenizer
from transformers import AutoModelForSeq2SeqLM
import torch

tokenizer, model = Tokenizer.from_file("tokenizer.json"), AutoModelForSeq2SeqLM.from_pretrained(".")
tokens = model.generate(torch.tensor([tokenizer.encode("The house").ids]))
print(tokenizer.decode(tokens[0].tolist()))
"""


def pair_data(model: Architecture) -> DataConfig:
    """Returns a section of data for a model whose training pairs are unknown."""
    return DataConfig(
        corpus="text",
        source_language="unknown",
        target_language="unknown",
        train="unknown",
        valid="unknown",
        max_length=min(DataConfig.max_length, model.max_length),
    )
