"""Language modeling: one text."""

from jaxformer.data.stream import StreamConfig, load_stream_tokenizer
from jaxformer.kinds.kind import Kind
from jaxformer.models.gpt2 import GPT2
from jaxformer.models.language_model import LanguageModel
from jaxformer.models.llama import Llama

LANGUAGE_MODELING = Kind(
    description="a language model",
    commands="jaxformer generate",
    use="generate with jaxformer generate --workdir {workdir}",
    corpora=("stream",),
    data=StreamConfig,
    networks=(LanguageModel, GPT2, Llama),
    load_tokenizer=load_stream_tokenizer,
)
