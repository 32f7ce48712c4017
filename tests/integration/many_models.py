"""Translates with many models of the same sizes, one after another, in threads; prints mistakes.

    python many_models.py MODELS THREADS [--shared]

Memory of a model that has been freed is soon the memory of the next. With ``--shared``, the models
share their programs, which is what bound programs must never do.
"""

import gc
import sys
import threading

import jax
import numpy as np

from jaxformer.config import ModelConfig
from jaxformer.inference import bound_models
from jaxformer.inference.members import Ensemble, Member
from jaxformer.inference.parameter_arrays import prepare_params
from jaxformer.kinds.translation import TRANSLATION
from jaxformer.models.transformer import Transformer
from jaxformer.nn import use_backend
from jaxformer.nn.backend import Backend
from jaxformer.runs.workdir import use_compilation_cache
from jaxformer.search import BeamSearch
from tests.searches import search_batches

CONFIG = ModelConfig(
    vocab_size=60,
    d_model=64,
    d_ff=128,
    num_heads=2,
    num_layers=1,
    max_length=16,
    biases=True,
    compute_dtype="int8",
)
MODEL = Transformer(CONFIG)
DIFFERENT = 4
SEARCH = BeamSearch(beam_size=2)
SOURCES = [[5, 6, 7, 8, 2]]
PLAIN = Backend(unroll_layers=True)
BOUND = Backend(unroll_layers=True, packed_int8=32, keeps_programs=True)


def main(num_models, num_threads, shared):
    use_compilation_cache()
    if shared:
        programs = {}
        make = bound_models._BoundModels
        bound_models._BoundModels = lambda *arguments: make(*arguments, programs)

    tokens = np.ones((1, 1), np.int32)
    init = jax.jit(lambda key: MODEL.init(key, tokens, tokens)["params"])
    params = [init(jax.random.key(seed)) for seed in range(DIFFERENT)]

    def translate(number):
        """Returns the translation by a new model, which is freed at the end, and the second."""
        new = prepare_params(CONFIG, jax.tree.map(np.array, params[number]), TRANSLATION)
        models = Ensemble((Member(MODEL, new),))
        first = search_batches(models, SEARCH, SOURCES)
        second = search_batches(models, SEARCH, SOURCES)
        return str(first), str(second)

    with use_backend(PLAIN):
        expected = [translate(number) for number in range(DIFFERENT)]
    assert len(set(expected)) == DIFFERENT
    assert not bound_models._bound

    mistakes = []

    def work(thread):
        with use_backend(BOUND):
            for count in range(num_models):
                number = (count + thread) % DIFFERENT
                if translate(number) != expected[number]:
                    mistakes.append((thread, count))

    threads = [threading.Thread(target=work, args=(thread,)) for thread in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    gc.collect()
    print(f"{len(mistakes)} mistakes, {len(bound_models._bound)} models left")


if __name__ == "__main__":
    models, threads = map(int, sys.argv[1:3])
    main(models, threads, sys.argv[3:] == ["--shared"])
