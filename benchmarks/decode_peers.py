"""Peers of ``decode.py``: a process with its own interpreter that decodes on request.

It reads a Marian model in the Hugging Face format, converts it for CTranslate2, and answers
requests, one JSON line each, with the token ids and the seconds taken. ``decode.py`` starts it. The
interpreter needs torch, transformers and ctranslate2.
"""

import argparse
import json
import os
import pathlib
import sys
import time
import types
from collections.abc import Callable

import ctranslate2
import torch
import transformers
from ctranslate2.converters import TransformersConverter
from train_peers import DEVICE

# Maps source ids, beam size and number of tokens to the ids of the best hypotheses.
Decoder = Callable[[list[list[int]], int, int], list[list[int]]]


def main() -> None:
    """Prepares the models, then answers requests until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=pathlib.Path, help="folder in the Hugging Face layout")
    parser.add_argument("converted", type=pathlib.Path, help="where to put CTranslate2's model")
    parser.add_argument("--threads", type=int, required=True)
    options = parser.parse_args()
    # Output of the libraries must not mix with the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    torch.set_num_threads(options.threads)
    transformers.utils.logging.disable_progress_bar()
    Converter(str(options.model)).convert(str(options.converted))
    modules = (torch, transformers, ctranslate2)
    print(json.dumps({module.__name__: module.__version__ for module in modules}), file=answers)
    decoders: dict[str, Decoder] = {}
    for line in sys.stdin:
        request = json.loads(line)
        name = request["system"]
        if name not in decoders:
            decoders[name] = load(name, options)
        print(json.dumps(answer(decoders[name], request)), file=answers)


def answer(decode: Decoder, request: dict) -> dict:
    """Decodes the batches of a request in sequence."""
    began = time.perf_counter()
    tokens = [
        row
        for sources in request["batches"]
        for row in decode(sources, request["beam"], request["length"])
    ]
    return {"seconds": time.perf_counter() - began, "tokens": tokens}


def load(name: str, options: argparse.Namespace) -> Decoder:
    """Returns the decoder for a name such as ``ctranslate2 int8``."""
    system, dtype = name.split()
    if system == "ctranslate2":
        return load_ctranslate2(options.converted, dtype, options.threads)
    return load_huggingface(options.model, dtype)


def load_huggingface(folder: pathlib.Path, dtype: str) -> Decoder:
    """Returns ``MarianMTModel.generate`` with the weights in ``dtype``."""
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=getattr(torch, dtype))
    model = model.to(DEVICE).eval()

    @torch.inference_mode()
    def decode(sources: list[list[int]], beam: int, length: int) -> list[list[int]]:
        ids = torch.tensor(sources, device=DEVICE)
        generated = model.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            num_beams=beam,
            do_sample=False,
            min_new_tokens=length,
            max_new_tokens=length,
        )
        return generated[:, 1:].tolist()  # without the token that starts the decoder

    return decode


def load_ctranslate2(folder: pathlib.Path, dtype: str, threads: int) -> Decoder:
    """Returns ``Translator.translate_batch``; int8 weights are quantized at loading."""
    translator = ctranslate2.Translator(
        str(folder),
        device=DEVICE,
        compute_type=dtype,
        inter_threads=1,
        intra_threads=threads,
    )
    vocabulary = json.loads((folder / "shared_vocabulary.json").read_text())
    numbers = {word: number for number, word in enumerate(vocabulary)}

    def words_of(source: list[int]) -> list[str]:
        return [vocabulary[number] for number in source]

    def numbers_of(words: list[str]) -> list[int]:
        return [numbers[word] for word in words]

    def decode(sources: list[list[int]], beam: int, length: int) -> list[list[int]]:
        results = translator.translate_batch(
            list(map(words_of, sources)),
            beam_size=beam,
            min_decoding_length=length,
            max_decoding_length=length,
        )
        return [numbers_of(result.hypotheses[0]) for result in results]

    return decode


class Converter(TransformersConverter):
    """CTranslate2's converter without the tokenizer, since only the vocabulary is needed."""

    def load_tokenizer(
        self, tokenizer_class: type, model_name_or_path: str, **kwargs: object
    ) -> types.SimpleNamespace:
        """Returns a stand-in for a tokenizer with the attributes that the converter uses."""
        vocabulary = json.loads((pathlib.Path(model_name_or_path) / "vocab.json").read_text())
        return types.SimpleNamespace(
            get_vocab=lambda: vocabulary, bos_token=None, eos_token="</s>", unk_token="<unk>"
        )


if __name__ == "__main__":
    main()
