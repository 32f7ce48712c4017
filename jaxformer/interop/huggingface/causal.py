"""Shared parts of language models in transformers' layout."""

from jaxformer.config import StreamConfig
from jaxformer.models.architecture import Architecture

EXAMPLE = """
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM
import torch

tokenizer, model = Tokenizer.from_file("tokenizer.json"), AutoModelForCausalLM.from_pretrained(".")
tokens = model.generate(torch.tensor([tokenizer.encode("The").ids]))
print(tokenizer.decode(tokens[0].tolist()))
"""


def stream_data(model: Architecture) -> StreamConfig:
    """Returns a section of data for a model whose training text is unknown."""
    return StreamConfig(file="unknown", length=min(StreamConfig.length, model.max_length))
