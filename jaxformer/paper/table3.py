"""Table 3: trains and evaluates variations of the model, and compares them with the paper.

Every row runs the usual training and decoding, on the last checkpoint without averaging, as in the
paper. A finished row has a result.json in its folder, DIR/rows/ROW-SEED. The same command resumes
an interrupted row and skips finished ones. To train rows on several machines, collect their folders
in one DIR/rows and run --report.
"""

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import NamedTuple

import jax

from jaxformer.checks import parse_numbers
from jaxformer.config import Config, DataConfig, data_section
from jaxformer.data.corpus import open_corpus
from jaxformer.errors import UserError, exit_code
from jaxformer.evaluation.bleu_report import TranslationReport, translation_report
from jaxformer.experiment import train
from jaxformer.files import local_path, write_file
from jaxformer.inference.translator import Translator
from jaxformer.paper import table_commands
from jaxformer.paper.table3_report import Result, draw, load_results, report
from jaxformer.paper.table3_rows import ROWS, SCALES, describe, row_config
from jaxformer.plots.learning_curve import read_metrics
from jaxformer.progress import ProgressBar
from jaxformer.runs.workdir import Workdir, read_workdir_object
from jaxformer.tasks.dataset import open_dataset

_EXAMPLE = """\
jaxformer data tatoeba
  python -m jaxformer.paper.table3 --scale small --workdir runs/table3 --steps 2000 \\
      --rows base,A1,C1 --seeds 0,1"""


def main(arguments: Sequence[str] | None = None) -> None:
    options = _options(arguments)
    folder = options.workdir / "rows"
    failures = [] if options.report else _run_rows(options, folder)

    results = load_results(folder)
    if results:
        _write_report(options.workdir, results)
    if failures:
        raise FloatingPointError("; ".join(failures))
    if not results:
        raise UserError(f"{folder}: expected finished rows, */result.json: there is none yet")


def _write_report(folder: pathlib.Path, results: Sequence[Result]) -> None:
    """Writes the table, and the plot if there are rows to compare with base."""
    table = folder / "table3.md"
    write_file(table, report(results).encode())
    print(table)

    rows = {result.row for result in results}
    if "base" in rows and len(rows) > 1:
        plot = folder / "table3.png"
        draw(results, plot)
        print(plot)
    else:
        print("no picture yet: it compares other rows with base", file=sys.stderr)


def _run_rows(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """Trains and decodes the unfinished rows, and returns a message for each diverged row."""
    configs = {}
    for seed in options.seeds:
        for row in options.rows:
            configs[row, seed] = _job_config(options, row, seed)

    # The next row to train is checked before hours of training, or any row if all are finished.
    results = load_results(folder)
    finished = {(result.row, result.seed) for result in results}
    unfinished = [job for job in configs if job not in finished]
    checked = unfinished[0] if unfinished else next(iter(configs))
    _check_row(
        configs[checked],
        folder,
        row=checked[0],
        scale=options.scale,
        finished=results[0] if results else None,
    )

    failures = []
    for number, ((row, seed), config) in enumerate(configs.items(), 1):
        title = f"[{number}/{len(configs)}] {row}: {describe(row, options.scale)}; seed {seed}"
        if (row, seed) in finished:
            print(f"{title}: finished; delete its folder to train it again", file=sys.stderr)
            continue

        print(title, file=sys.stderr)
        workdir = Workdir(folder / f"{row}-{seed}")
        try:
            run_row(config, workdir, row, scale=options.scale)
        except FloatingPointError as error:
            # Continue with the other rows.
            failures.append(f"{row}, seed {seed}: {error}")
            print(failures[-1], file=sys.stderr)

        # Programs of one row are of no use to the next.
        jax.clear_caches()
    return failures


def _job_config(options: argparse.Namespace, row: str, seed: int) -> Config:
    config = row_config(row, options.scale, steps=options.steps, seed=seed)
    if options.data is None:
        return config

    data = dataclasses.replace(
        data_section(config, DataConfig),
        corpus="text",
        train=str(options.data / "train"),
        valid=str(options.data / "valid"),
    )
    return dataclasses.replace(config, data=data)


def _check_row(
    config: Config,
    folder: pathlib.Path,
    row: str,
    scale: str,
    finished: Result | None,
) -> None:
    """Checks that a row has the scale, steps and data of a finished row, and can be scored."""
    steps = config.training.steps // ROWS[row].longer
    seed = config.training.seed
    if finished and (finished.scale, finished.steps) != (scale, steps):
        raise UserError(
            f"{folder}: holds rows of --scale {finished.scale} --steps {finished.steps}, but "
            f"{scale} and {steps} were given; give the same, or another --workdir"
        )

    data = open_dataset(config, Workdir(folder / f"{row}-{seed}"))
    if finished and data.identity != finished.data:
        raise UserError(
            f"{folder}: holds rows of other data than {row}, seed {seed}, would have: expected "
            f"{finished.data}, got {data.identity}; give the same --data, or another --workdir"
        )

    # All pairs of the validation split must be scored.
    split = data_section(config, DataConfig).valid
    pairs = sum(1 for _ in data.corpus.pairs(split))
    kept = set(data.valid.numbers.tolist())
    omitted = [number for number in range(pairs) if number not in kept]
    if omitted:
        raise UserError(
            f"{split}: expected sentences of 1 to {config.model.max_length - 1} tokens "
            f"(model.max_length), but {len(omitted)} pairs are shorter or longer, the first in "
            f"line {omitted[0] + 1}; remove these pairs"
        )


def run_row(config: Config, folder: Workdir, row: str, scale: str) -> Result:
    """Trains and decodes a row, resuming it if it was interrupted, and writes its result.json."""
    state = train(config, folder.path)
    training = _read_training(config, folder, row, step=int(state.step))

    began = time.monotonic()
    scores = _translate(config, folder)
    decoding_seconds = time.monotonic() - began
    assert scores.compound_split_bleu is not None  # The target language is German in every row.

    result = Result(
        row=row,
        scale=scale,
        steps=config.training.steps // ROWS[row].longer,
        seed=config.training.seed,
        corpus=_corpus_name(config),
        perplexity=training.perplexity,
        bleu=scores.sacrebleu.score or 0.0,  # None if no sentence has four words
        bleu_signature=scores.sacrebleu.method,
        compound_split_bleu=scores.compound_split_bleu.score or 0.0,
        parameters=sum(leaf.size for leaf in jax.tree.leaves(state.params)),
        training_seconds=training.seconds,
        decoding_seconds=decoding_seconds,
        machine=table_commands.machine(),
        data=read_workdir_object(folder.identity),
    )
    result.save(folder.path / "result.json")
    print(f"{row}: perplexity {result.perplexity:.3f}, BLEU {result.bleu:.2f}", file=sys.stderr)
    return result


def _corpus_name(config: Config) -> str:
    """Returns the corpus, or the folder of its files, whose name is the same on all machines."""
    data = data_section(config, DataConfig)
    if data.corpus != "text":
        return data.corpus
    return pathlib.Path(data.train).absolute().parent.name


class _Training(NamedTuple):
    """A finished training run."""

    perplexity: float  # after the last step
    seconds: float  # of all steps


def _read_training(config: Config, folder: Workdir, row: str, step: int) -> _Training:
    """Reads the metrics of a run that is at this step."""
    steps = config.training.steps
    records = read_metrics(folder.metrics)

    # A run with fewer steps or more cannot be compared with the other rows.
    valid = [r for r in records if r["kind"] == "valid" and r["step"] == steps]
    if step > steps or not valid:
        raise UserError(
            f"{folder.path}: row {row} is at step {step}, but was to end with step {steps} and a "
            f"validation; give --steps above {step // ROWS[row].longer}, or delete the folder to "
            "train it anew"
        )

    perplexity = valid[-1]["perplexity"]
    if perplexity is None:
        raise FloatingPointError(f"{folder.path}: the validation loss of {row} is not a number")

    # Each record has the mean time of the steps since the one before.
    seconds = 0.0
    last_step = 0
    for record in records:
        if record["kind"] == "train":
            new_steps = record["step"] - last_step
            seconds += record["seconds_per_step"] * new_steps
            last_step = record["step"]
    return _Training(perplexity, seconds)


def _translate(config: Config, folder: Workdir) -> TranslationReport:
    """Translates the validation split, and writes translations and scores to the folder."""
    data = data_section(config, DataConfig)
    sources, references = zip(*open_corpus(data).pairs(data.valid), strict=True)

    translator = Translator.load(folder.path, weights="latest")
    with ProgressBar(total=len(sources), unit="sentence", smoothing=0, disable=None) as bar:
        translations = translator.translate(
            sources,
            name=data.valid,
            report=bar.update,
        )

    language = data.target_language
    text = "".join(f"{translation}\n" for translation in translations)
    write_file(folder.path / f"valid.{language}", text.encode())

    scores = translation_report(
        translations,
        references,
        target_language=language,
    )
    write_file(folder.path / "report.json", scores.to_json().encode())
    return scores


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = table_commands.parser("table3", __doc__, _EXAMPLE)

    parser.add_argument(
        "--workdir",
        type=local_path,
        required=True,
        metavar="DIR",
        help="folder of all rows",
    )

    # Options that all rows share.
    parser.add_argument(
        "--scale",
        choices=SCALES,
        default="paper",
        help=(
            "paper: the paper's sizes on WMT14; small: widths divided by 4 and layers by 2; "
            "smoke: a few steps on number words (default: %(default)s)"
        ),
    )
    parser.add_argument(
        "--data",
        type=local_path,
        metavar="DIR",
        help="folder with train.en, train.de, valid.en, valid.de (default: the scale's data)",
    )
    parser.add_argument(
        "--steps",
        type=int,
        metavar="N",
        help="training steps of every row except big, which takes 3 N (default: the scale's)",
    )

    parser.add_argument(
        "--rows",
        type=lambda text: text.split(","),
        default=ROWS,
        metavar="ROW,ROW,...",
        help=f"rows to train, in this order (default: {','.join(ROWS)})",
    )
    parser.add_argument(
        "--seeds",
        type=parse_numbers,
        default=[0],
        metavar="N,N,...",
        help="random seeds; every row is trained with each (default: 0)",
    )

    parser.add_argument(
        "--report",
        action="store_true",
        help="only write the table of the finished rows",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
