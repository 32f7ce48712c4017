"""Table 3 in one command: variations of the model, trained, decoded, and set beside the paper's.

Every row is the ordinary ``train`` and the ordinary ``Translator``, on the last checkpoint, without
averaging as in the paper. A finished row is a ``result.json`` in its folder, DIR/rows/ROW-SEED: the
same command goes on with the others, and inside a row where it was interrupted. Rows may run on
several machines: put their folders into one DIR/rows, then ask for the table with --report.
"""

import argparse
import dataclasses
import pathlib
import sys
import time
from collections.abc import Sequence

import jax
from tqdm import tqdm

from jaxformer.checkpoint import Checkpoints
from jaxformer.config import Config, DataConfig, sentence_pairs
from jaxformer.data.corpus import open_corpus
from jaxformer.data.tokenizer import Tokenizer
from jaxformer.errors import UserError, exit_code
from jaxformer.evaluation.bleu_report import TranslationReport, translation_report
from jaxformer.experiment import train
from jaxformer.files import local_path, write_file
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import abstract_params
from jaxformer.paper import command
from jaxformer.paper.table3_report import Result, draw, load_results, report
from jaxformer.paper.table3_rows import ROWS, SCALES, describe, row_config, settings
from jaxformer.plots.learning_curve import read_metrics
from jaxformer.tasks.dataset import open_dataset
from jaxformer.workdir import Workdir, read_json

_EXAMPLE = """\
python -m jaxformer.paper.table3 --scale small --data ../shared/data/tatoeba-en-de \\
      --workdir runs/table3 --steps 2000 --rows base,A1,C1 --seeds 0,1"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what is missing and writes the table.

    Raises:
      UserError: A row, scale or folder is not as expected, or there is no finished row.
      FloatingPointError: A row did not converge; all others are finished.
    """
    options = _options(arguments)
    folder = options.workdir / "rows"
    failures = [] if options.report else _run_rows(options, folder)
    results = load_results(folder)
    if results:
        _write_table(results, options.output or options.workdir)
    if failures:
        raise FloatingPointError("; ".join(failures))
    if not results:
        raise UserError(f"{folder}: expected finished rows, */result.json: there is none yet")


def _write_table(results: Sequence[Result], output: pathlib.Path) -> None:
    write_file(output / "table3.md", report(results).encode())
    print(output / "table3.md")
    if {"base"} < {result.row for result in results}:
        draw(results, output / "table3.png")
        print(output / "table3.png")
    else:
        print("no picture yet: it compares other rows with base", file=sys.stderr)


def _run_rows(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """Trains and decodes the rows that are not finished; says which did not converge."""
    configs = {
        (row, seed): _configure(options, row, seed)
        for seed in options.seeds
        for row in options.rows
    }
    # Before any is trained: a mistake in the last row should not show after the others' hours.
    finished = _check(configs, folder, options.scale)
    failures = []
    for number, ((row, seed), config) in enumerate(configs.items(), 1):
        title = f"[{number}/{len(configs)}] {row}: {describe(row, options.scale)}; seed {seed}"
        print(title + (": finished" if (row, seed) in finished else ""), file=sys.stderr)
        if (row, seed) in finished:
            continue
        try:
            run_row(config, _place(folder, row, seed), row, options.scale)
        except FloatingPointError as error:  # the others should not wait for it
            failures.append(f"{row}, seed {seed}: {error}")
            print(failures[-1], file=sys.stderr)
        jax.clear_caches()
    return failures


def _check(
    configs: dict[tuple[str, int], Config], folder: pathlib.Path, scale: str
) -> set[tuple[str, int]]:
    """Checks that the rows can be run, and belong to those that are finished.

    Returns:
      The finished ones, which need not be run again.

    Raises:
      UserError: A row has other settings or data than a finished one, or could not be finished.
    """
    results = load_results(folder)
    (row, _), config = next(iter(configs.items()))
    steps = config.training.steps // ROWS[row].longer
    if results and (results[0].scale, results[0].steps) != (scale, steps):
        raise UserError(
            f"{folder}: holds rows of --scale {results[0].scale} --steps {results[0].steps}, but "
            f"{scale} and {steps} were given; give the same, or another --workdir"
        )
    finished = {(result.row, result.seed) for result in results}
    waiting = [job for job in configs if job not in finished]
    for row, seed in waiting:
        _check_progress(configs[row, seed], _place(folder, row, seed), row)
    expected = results[0].data if results else None
    for row, seed in waiting or list(configs)[:1]:
        data = open_dataset(configs[row, seed], _place(folder, row, seed))
        expected = expected or data.identity
        if data.identity != expected:
            raise UserError(
                f"{folder}: holds rows of other data than {row}, seed {seed}, would have: expected "
                f"{expected}, got {data.identity}; give the same --data, or another --workdir"
            )
        _check_sentences(configs[row, seed], data.tokenizer)
    return finished


def _check_progress(config: Config, folder: Workdir, row: str) -> None:
    """Checks that a row which takes no more steps ended with a validation, or will get it."""
    steps = config.training.steps
    with Checkpoints(folder.checkpoints) as checkpoints:
        step = max(checkpoints.steps(), default=0)
        ended = step > steps or (step == steps and checkpoints.is_scored(step))
    if ended:
        _training(config, folder, row, step)


def _check_sentences(config: Config, tokenizer: Tokenizer) -> None:
    """Checks that all of the validation part counts: for the perplexity as for BLEU."""
    data = sentence_pairs(config)
    part, most = data.valid, config.model.max_length - 1
    others = []
    for number, (source, target) in enumerate(open_corpus(data).pairs(part), 1):
        lengths = len(tokenizer.encode(source)), len(tokenizer.encode_target(target))
        if not all(1 <= length <= most for length in lengths):
            others.append(number)
    if others:
        raise UserError(
            f"{part}: expected sentences of 1 to {most} tokens (model.max_length), but those of "
            f"{len(others)} pairs are others, the first in line {others[0]}; take these pairs out"
        )


def _place(folder: pathlib.Path, row: str, seed: int) -> Workdir:
    return Workdir(folder / f"{row}-{seed}")


def run_row(config: Config, folder: Workdir, row: str, scale: str) -> Result:
    """Trains and decodes a row, or goes on with it where it was interrupted.

    Args:
      config: The row's.
      folder: Its own; the result is written there, too.
      row: Its name.
      scale: The scale of ``config``.

    Raises:
      UserError: The folder holds another experiment or a longer one, or data is missing or
        malformed.
      FloatingPointError: It does not converge.
    """
    state = train(config, folder.path)
    perplexity, training_seconds = _training(config, folder, row, int(state.step))
    began = time.monotonic()
    scores = _translate(config, folder)
    assert scores.compound_split_bleu is not None  # every row of the table is into German
    result = Result(
        row=row,
        scale=scale,
        steps=config.training.steps // ROWS[row].longer,
        seed=config.training.seed,
        corpus=_corpus_name(sentence_pairs(config)),
        perplexity=perplexity,
        bleu=scores.sacrebleu.score,
        bleu_signature=scores.sacrebleu.method,
        compound_split_bleu=scores.compound_split_bleu.score,
        parameters=count_parameters(config),
        training_seconds=training_seconds,
        decoding_seconds=time.monotonic() - began,
        machine=command.machine(),
        data=read_json(folder.identity),
        settings=settings(config),
    )
    result.save(folder.path / "result.json")
    print(f"{row}: perplexity {perplexity:.3f}, BLEU {result.bleu:.2f}", file=sys.stderr)
    return result


def count_parameters(config: Config) -> int:
    """Numbers that a model learns; counted from shapes alone."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config.model)))


def _training(config: Config, folder: Workdir, row: str, step: int) -> tuple[float, float]:
    """Perplexity after the last step, and the seconds that all steps took.

    Raises:
      UserError: The row, which is at ``step``, went on after its last step, or was not validated.
      FloatingPointError: It did not converge.
    """
    steps, records = config.training.steps, read_metrics(folder.metrics)
    valid = [r for r in records if r["kind"] == "valid" and r["step"] == steps]
    if step > steps or not valid:
        raise UserError(
            f"{folder.path}: row {row} is at step {step}, but was to end with step {steps} and a "
            f"validation; give --steps above {step // ROWS[row].longer}, or delete the folder to "
            "train it anew"
        )
    if (perplexity := valid[-1]["perplexity"]) is None:
        raise FloatingPointError(f"{folder.path}: the validation loss of {row} is not a number")
    seconds, done = 0.0, 0
    for record in records:
        if record["kind"] == "train":
            seconds += record["seconds_per_step"] * (record["step"] - done)
            done = record["step"]
    return perplexity, seconds


def _corpus_name(data: DataConfig) -> str:
    """What the data is called: of files, their folder, since the table may travel."""
    if data.corpus == "text":
        return pathlib.Path(data.train).absolute().parent.name
    return data.builder if data.corpus == "tfds" else data.corpus


def _translate(config: Config, folder: Workdir) -> TranslationReport:
    """Translates the validation part and scores it; the folder keeps translations and scores."""
    data = sentence_pairs(config)
    pairs = open_corpus(data).pairs(data.valid)
    sources, references = zip(*pairs, strict=True)
    translator = Translator.load(folder.path, weights="latest")
    with tqdm(total=len(sources), unit="sentence", smoothing=0, disable=None) as bar:

        def report_progress(finished: int) -> None:
            bar.update(finished)

        translations = translator.translate(sources, name=data.valid, report=report_progress)
    language = data.target_language
    text = "".join(f"{translation}\n" for translation in translations)
    write_file(folder.path / f"valid.{language}", text.encode())
    scores = translation_report(translations, references, target_language=language)
    write_file(folder.path / "report.json", scores.to_json().encode())
    return scores


def _configure(options: argparse.Namespace, row: str, seed: int) -> Config:
    config = row_config(row, options.scale, steps=options.steps, seed=seed)
    if options.data is None:
        return config
    data = dataclasses.replace(
        sentence_pairs(config),
        corpus="text",
        train=str(options.data / "train"),
        valid=str(options.data / "valid"),
    )
    return dataclasses.replace(config, data=data)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("table3", __doc__, _EXAMPLE)
    add = parser.add_argument
    add("--workdir", type=local_path, required=True, metavar="DIR", help="folder of all rows")
    add(
        "--scale",
        choices=SCALES,
        default="paper",
        help="paper, WMT14; small, widths divided by 4 and layers by 2; smoke, a few steps of "
        "number words (default: %(default)s)",
    )
    add(
        "--data",
        type=local_path,
        metavar="DIR",
        help="train.en, train.de, valid.en, valid.de (default: what the scale has)",
    )
    add("--steps", type=int, metavar="N", help="of every row but big, which takes three times N")
    add(
        "--rows",
        type=lambda text: text.split(","),
        default=list(ROWS),
        metavar="ROW,ROW,...",
        help=f"which rows, in this order (default: {','.join(ROWS)})",
    )
    add(
        "--seeds",
        type=command.numbers,
        default=[0],
        metavar="N,N,...",
        help="train every row with each of these (default: 0)",
    )
    add("--report", action="store_true", help="train nothing: write the table of what is finished")
    add(
        "--output",
        type=local_path,
        metavar="DIR",
        help="folder for table3.md and table3.png (default: the workdir)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
