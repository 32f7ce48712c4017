"""Compares translations of a model with references: their lengths and their probabilities.

    python benchmarks/calibration.py --workdir runs/multi30k --weights average-of-10 \
        --source data/multi30k/val.en --reference data/multi30k/val.de

Lengths are in tokens with end-of-sentence, relative to the references. Samples from a calibrated
model are as long as the references. If beam search finds translations that are shorter, while
samples are not, the search causes it; if samples are shorter, too, the model does. Prints one JSON
line.
"""

import argparse
import json
import pathlib

from machine import machine

from jaxformer import BeamSearch, Sampling, Translator, score_pairs
from jaxformer.data.text_files import read_file
from jaxformer.data.tokenizer import EOS

SEARCHES = {
    "greedy": BeamSearch(beam_size=1),
    "beam 5, log p / n": BeamSearch(beam_size=5, penalty="power", length_penalty=1.0),
    "samples": Sampling(num_samples=1),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workdir", required=True)
    parser.add_argument("--source", required=True, type=pathlib.Path)
    parser.add_argument("--reference", required=True, type=pathlib.Path)
    parser.add_argument("--weights", default="auto")
    options = parser.parse_args()
    sources, references = (list(read_file(path)) for path in (options.source, options.reference))
    results = {}
    for name, search in SEARCHES.items():
        translator = Translator.load(options.workdir, weights=options.weights, search=search)
        best = [hypotheses[0] for hypotheses in translator.hypotheses(sources)]
        tokens = [[*ids, EOS] for ids in translator.tokenizer.encode_target_batch(references)]
        source_ids = map(translator.source_ids, sources)
        scores = score_pairs(translator, list(zip(source_ids, tokens, strict=True)))
        above = sum(
            theirs.log_prob > ours.log_prob for theirs, ours in zip(scores, best, strict=True)
        )
        results[name] = {
            "length_ratio": round(sum(len(b.tokens) for b in best) / sum(map(len, tokens)), 4),
            "references_more_probable": round(above / len(best), 4),
        }
    print(json.dumps({"workdir": options.workdir, **results, "machine": machine()}))


if __name__ == "__main__":
    main()
