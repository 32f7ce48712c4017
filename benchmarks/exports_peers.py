"""Runs an export in the system that it is for: text lines in, translated lines out.

    python benchmarks/exports_peers.py marian FOLDER --beam 4 --length 100 < in.en > out.de

``exports.py`` starts it, with an interpreter that has the system. It never imports jaxformer.
"""

import argparse
import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

sys.modules["jaxformer"] = None  # type: ignore[assignment]  # An import of it would fail.

BATCH = 50


# Translates lines.
Run = Callable[[list[str]], list[str]]


def sentencepiece_of(path: pathlib.Path) -> Any:
    """Returns the SentencePiece model in a file."""
    import sentencepiece

    return sentencepiece.SentencePieceProcessor(model_file=str(path))


def stablehlo(folder: pathlib.Path, beam: int, length: int) -> Run:
    """Runs the program, which has its own search, with JAX."""
    import jax
    import jax.export
    import numpy as np

    source = sentencepiece_of(folder / "source.spm")
    target = sentencepiece_of(folder / "target.spm")
    pieces = json.loads((folder / "vocabulary.json").read_text(encoding="utf-8"))
    numbers = {piece: number for number, piece in enumerate(pieces)}

    params = dict(np.load(folder / "parameters.npz"))
    program = bytearray((folder / "translate.jax").read_bytes())
    exported = jax.export.deserialize(program)
    translate = jax.jit(exported.call)
    _, src_length = exported.in_avals[-1].shape

    def ids_of(line: str) -> list[int]:
        ids = [numbers.get(piece, 3) for piece in source.encode(line, out_type=str)]
        return [*ids, 1]

    def text(row: list[int]) -> str:
        return target.decode([pieces[token] for token in row if token > 3])

    def run(lines: list[str]) -> list[str]:
        src = np.zeros((len(lines), src_length), np.int32)
        for row, line in zip(src, lines, strict=True):
            ids = ids_of(line)
            row[: len(ids)] = ids

        tokens, _ = translate(params, src)
        assert tokens.shape[1] == beam
        best = np.asarray(tokens[:, 0])
        return list(map(text, best.tolist()))

    return run


def marian(folder: pathlib.Path, beam: int, length: int) -> Run:
    """Runs ``MarianMTModel.generate``."""
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    tokenizer = transformers.MarianTokenizer.from_pretrained(folder)
    model = transformers.MarianMTModel.from_pretrained(folder).eval()

    @torch.inference_mode()
    def run(lines: list[str]) -> list[str]:
        inputs = tokenizer(lines, return_tensors="pt", padding=True)
        tokens = model.generate(
            **inputs,
            num_beams=beam,
            max_length=length + 1,
            length_penalty=1.0,
        )
        return tokenizer.batch_decode(
            tokens,
            skip_special_tokens=True,
            use_source_tokenizer=False,
        )

    return run


def ctranslate2(folder: pathlib.Path, beam: int, length: int) -> Run:
    """Runs ``Translator.translate_batch``."""
    import ctranslate2

    source = sentencepiece_of(folder / "source.spm")
    target = sentencepiece_of(folder / "target.spm")
    translator = ctranslate2.Translator(str(folder), compute_type="float32")

    def run(lines: list[str]) -> list[str]:
        pieces = [source.encode(line, out_type=str) for line in lines]
        results = translator.translate_batch(
            pieces,
            beam_size=beam,
            max_decoding_length=length,
            length_penalty=1.0,
        )
        return [target.decode(result.hypotheses[0]) for result in results]

    return run


def main() -> None:
    """Translates standard input in batches."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("system", choices=("stablehlo", "marian", "ctranslate2"))
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--beam", type=int, required=True)
    parser.add_argument("--length", type=int, required=True, help="most tokens of a translation")
    options = parser.parse_args()
    make = globals()[options.system]
    run = make(options.folder, options.beam, options.length)
    lines = sys.stdin.read().splitlines()
    for start in range(0, len(lines), BATCH):
        batch = lines[start : start + BATCH]
        for line in run(batch):
            print(line.replace("\n", " ").replace("\r", " "), flush=True)


if __name__ == "__main__":
    main()
