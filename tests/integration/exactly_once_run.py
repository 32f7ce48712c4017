"""A run in a separate process that logs the pairs of each step once the step is done.

python exactly_once_run.py WORKDIR LOG ATTEMPT [COORDINATOR PROCESS]
"""

import functools
import hashlib
import os
import pathlib
import sys

import numpy as np

COUNT = 25_000
STEPS = 160


class Numbers:
    """Pairs with the numbers from 0; every thousandth target is empty."""

    target_symbols = False

    def pairs(self, split):
        for n in range(COUNT if split == "train" else 50):
            yield f"{n}", "" if n % 1000 == 999 else f"{n % 7}"

    def fingerprint(self, split):
        return hashlib.sha256(f"{split} {COUNT}".encode()).hexdigest()


def numbers_of(batch, tokenizer):
    """Returns the numbers in the sources of a batch, decoded from its tokens."""
    rows = zip(batch.src, batch.src_segments, strict=True)
    return [
        number_of(tokenizer, row[segments == segment].tobytes())
        for row, segments in rows
        for segment in range(1, int(segments.max(initial=0)) + 1)
    ]


@functools.cache
def number_of(tokenizer, ids):
    return int(tokenizer.decode(np.frombuffer(ids, np.int32).tolist()))


def config():
    from jaxformer import Config, DataConfig, ModelConfig, TrainingConfig

    return Config(
        model=ModelConfig(
            vocab_size=300, d_model=8, d_ff=8, num_heads=1, num_layers=1, max_length=16
        ),
        data=DataConfig(
            corpus="text",
            train="train",
            valid="valid",
            batching="packing",
            tokens_per_batch=2048,
            max_length=16,
        ),
        training=TrainingConfig(
            steps=STEPS, log_every=7, checkpoint_every=5, eval_every=STEPS, eval_sentences=0
        ),
    )


def main(workdir, log, attempt, coordinator="", process="0"):
    import jax

    if coordinator:
        jax.distributed.initialize(coordinator, 2, int(process))
    from jaxformer import fit, make_optimizer
    from jaxformer.tasks.dataset import open_dataset
    from jaxformer.tasks.translation import Translation
    from jaxformer.training import hosts
    from jaxformer.training.run_directory import begin
    from jaxformer.workdir import Workdir

    class Logged(Translation):
        """Keeps the batch of the current step for the hook."""

        def batches(self, start, shards):
            for batch in super().batches(start, shards):
                self.batch = batch
                yield batch

    def hook(step, state, sums):
        assert int(state.step) == step
        found = " ".join(map(str, numbers_of(task.batch, data.tokenizer)))
        os.write(file, f"{attempt} {process} {step} {found}\n".encode())

    whole, folder = config(), Workdir(pathlib.Path(workdir))
    begin(folder, whole)
    with hosts.first_before_others("data"):
        data = open_dataset(whole, folder, Numbers())
    task = Logged(whole, data)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    optimizer = make_optimizer(whole)
    fit(task, optimizer, workdir, whole.training, config=whole, hooks=[hook])


if __name__ == "__main__":
    main(*sys.argv[1:])
