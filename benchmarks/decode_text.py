"""Speed of a trained model on real text: ours and CTranslate2's, from text to text.

``decode.py --text FILE`` calls it. Each system is a process of its own, which reads the same model
and translates all lines of FILE when its turn comes. CTranslate2 gets the export of the model, int8
or float32, its backend for integers with and without MKL, and batches of 4,096 tokens one after
the other, as its documentation advises, or batches of 1,024 tokens, one on each core. All have the
settings of malloc of ``jaxformer translate``.
"""

import argparse
import functools
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import sacrebleu

SYSTEMS: dict[str, dict[str, str]] = {
    "ours int8": {},
    "ours bfloat16": {},
    "ours float32": {},
    "ctranslate2 int8": {"CT2_USE_MKL": "0"},
    "ctranslate2 int8 MKL": {"CT2_USE_MKL": "1"},
    "ctranslate2 int8 MKL parallel": {"CT2_USE_MKL": "1"},
    "ctranslate2 int8 parallel": {"CT2_USE_MKL": "0"},
    "ctranslate2 float32 MKL": {"CT2_USE_MKL": "1"},
}


def measure_text(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Measures each beam size in rounds; yields the results of each system."""
    from jaxformer import pretrained
    from jaxformer.interop.export import export_model

    workdir = options.workdir or pretrained.WORKDIR
    lines = options.text.read_text(encoding="utf-8").splitlines()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name, "model")
        export_model("ctranslate2", workdir, folder)
        # The model that comes with jaxformer is stored in int8, and computes in nothing else.
        known = SYSTEMS if options.workdir else SYSTEMS.keys() - {"ours bfloat16", "ours float32"}
        names = [name for name in options.systems or SYSTEMS if name in known]
        systems = {name: Worker(name, workdir, folder) for name in names}
        for beam in options.beam:
            seconds: dict[str, list[float]] = {name: [] for name in systems}
            translations: dict[str, list[str]] = {}
            for round_ in range(1 + options.rounds):
                for name, system in systems.items():
                    taken, translations[name] = system.translate(lines, beam)
                    if round_ > 0:  # The first round compiles and warms up.
                        seconds[name].append(taken)
            median = {name: statistics.median(taken) for name, taken in seconds.items()}
            theirs = [taken for name, taken in median.items() if name.startswith("ctranslate2")]
            for name, taken in seconds.items():
                yield {
                    "benchmark": "decode text",
                    "system": name,
                    "beam": beam,
                    "sentences": len(lines),
                    "seconds": {"median": median[name], "min": min(taken), "max": max(taken)},
                    "ratio": min(theirs) / median[name] if theirs else None,  # to the best peer
                    **bleu(options.reference, translations[name]),
                }


def bleu(reference: pathlib.Path | None, translations: list[str]) -> dict[str, float]:
    """Returns sacreBLEU of translations if there is a reference."""
    if reference is None:
        return {}
    references = reference.read_text(encoding="utf-8").splitlines()
    return {"bleu": round(sacrebleu.corpus_bleu(translations, [references]).score, 2)}


class Worker:
    """A process that translates with one system."""

    def __init__(self, name: str, workdir: pathlib.Path, export: pathlib.Path) -> None:
        model = workdir if name.startswith("ours") else export
        self._process = subprocess.Popen(
            [sys.executable, __file__, name, str(model)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | SYSTEMS[name],
        )

    def translate(self, lines: list[str], beam: int) -> tuple[float, list[str]]:
        """Returns the seconds of all lines, and their translations."""
        print(json.dumps([beam, lines]), file=self._process.stdin, flush=True)
        if not (answer := self._process.stdout.readline()):
            raise SystemExit("the process of a system has ended; its output is above")
        seconds, translations = json.loads(answer)
        return seconds, translations


def ours(workdir: str, dtype: str) -> Callable[[list[str], int], list[str]]:
    """Returns a function that translates with jaxformer."""
    from jaxformer import BeamSearch, Translator

    @functools.cache
    def load(beam: int) -> Translator:
        search = BeamSearch(beam_size=beam)
        return Translator.load(workdir, search=search, compute_dtype=dtype)

    return lambda lines, beam: load(beam).translate(lines)


def ctranslate2(
    folder: str, dtype: str, calls: int = 1, tokens: int = 4096
) -> Callable[[list[str], int], list[str]]:
    """Returns a function that translates with CTranslate2, in batches of so many tokens.

    So many ``calls``, or batches of a call, at the same time share the cores.
    """
    import ctranslate2
    import sentencepiece

    threads = max(1, len(os.sched_getaffinity(0)) // calls)
    translator = ctranslate2.Translator(
        folder, compute_type=dtype, intra_threads=threads, inter_threads=calls
    )
    source = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/source.spm")
    target = sentencepiece.SentencePieceProcessor(model_file=f"{folder}/target.spm")

    def translate(lines: list[str], beam: int) -> list[str]:
        pieces = source.encode(lines, out_type=str)
        results = translator.translate_batch(
            pieces, beam_size=beam, max_batch_size=tokens, batch_type="tokens"
        )
        return target.decode([result.hypotheses[0] for result in results])

    return translate


def main() -> None:
    """Answers requests on standard input; runs in the process of a system."""
    from jaxformer.runs.allocator import keep_freed_memory

    keep_freed_memory(training=False)  # before the libraries start their threads
    name, source = sys.argv[1:]
    system, dtype, *options = name.split()
    if system == "ours":
        translate = ours(source, dtype)
    elif "parallel" in options:
        translate = ctranslate2(source, dtype, len(os.sched_getaffinity(0)), tokens=1024)
    else:
        translate = ctranslate2(source, dtype)
    for line in sys.stdin:
        beam, lines = json.loads(line)
        began = time.perf_counter()
        translations = translate(lines, beam)
        print(json.dumps([time.perf_counter() - began, translations]), flush=True)


if __name__ == "__main__":
    main()
