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

from jaxformer.config import Config
from jaxformer.data.corpus import open_corpus
from jaxformer.errors import UserError, exit_code
from jaxformer.evaluation.report import Metric, translation_report
from jaxformer.files import write_file
from jaxformer.inference.translator import Translator
from jaxformer.inference.weights import abstract_params
from jaxformer.paper import command
from jaxformer.paper.table3_report import Result, draw, load_results, report
from jaxformer.paper.table3_rows import ROWS, SCALES, describe, row_config, settings
from jaxformer.plots.learning_curve import read_metrics
from jaxformer.training.loop import train
from jaxformer.workdir import Workdir, read_json

_EXAMPLE = """\
python -m jaxformer.paper.table3 --scale small --data ../shared/data/tatoeba-en-de \\
      --workdir runs/table3 --steps 2000 --rows base,A1,C1 --seeds 0,1"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Trains what is missing and writes the table.

    Raises:
      UserError: A row, scale or folder is not as expected.
      FloatingPointError: A row did not converge; all others are finished.
    """
    options = _options(arguments)
    folder = options.workdir / "rows"
    failures = [] if options.report else _run_rows(options, folder)
    output = options.output or options.workdir
    results = load_results(folder)
    write_file(output / "table3.md", report(results).encode())
    print(output / "table3.md")
    if any(result.row == "base" for result in results):
        draw(results, output / "table3.png")
        print(output / "table3.png")
    else:
        print("no picture yet: it compares rows with base", file=sys.stderr)
    if failures:
        raise FloatingPointError("; ".join(failures))


def _run_rows(options: argparse.Namespace, folder: pathlib.Path) -> list[str]:
    """Trains and decodes the rows that are not finished; says which did not converge."""
    failures = []
    jobs = [(row, seed) for seed in options.seeds for row in options.rows]
    # All configs first: a mistake in the last row should not show after the others' hours.
    configs = [_configure(options, row, seed) for row, seed in jobs]
    for number, ((row, seed), config) in enumerate(zip(jobs, configs, strict=True), 1):
        print(
            f"[{number}/{len(jobs)}] {row}: {describe(row, options.scale)}; seed {seed}",
            file=sys.stderr,
        )
        place = Workdir(folder / f"{row}-{seed}")
        try:
            if not _is_finished(place, options.scale, config.training.steps // ROWS[row].longer):
                run_row(config, place, row, options.scale)
        except FloatingPointError as error:  # the others should not wait for it
            failures.append(f"{row}, seed {seed}: {error}")
            print(failures[-1], file=sys.stderr)
        jax.clear_caches()
    return failures


def _is_finished(folder: Workdir, scale: str, steps: int) -> bool:
    """Whether the row need not be run again.

    Raises:
      UserError: It was run with other settings.
    """
    path = _result(folder)
    if not path.exists():
        return False
    result = Result.load(path)
    if (result.scale, result.steps) != (scale, steps):
        raise UserError(
            f"{path}: holds a row of --scale {result.scale} --steps {result.steps}, but {scale} "
            f"and {steps} were given; give the same, or another --workdir"
        )
    print(f"{path}: finished", file=sys.stderr)
    return True


def _result(folder: Workdir) -> pathlib.Path:
    return folder.path / "result.json"


def run_row(config: Config, folder: Workdir, row: str, scale: str) -> Result:
    """Trains and decodes a row, or goes on with it where it was interrupted.

    Args:
      config: The row's.
      folder: Its own; the result is written there, too.
      row: Its name.
      scale: The scale of ``config``.

    Raises:
      UserError: The folder holds another experiment, or data is missing or malformed.
      FloatingPointError: It does not converge.
    """
    train(config, folder.path)
    perplexity, training_seconds = _training(folder, config.training.steps)
    began = time.monotonic()
    bleu = _translate(config, folder)
    result = Result(
        row=row,
        scale=scale,
        steps=config.training.steps // ROWS[row].longer,
        seed=config.training.seed,
        perplexity=perplexity,
        bleu=bleu.score,
        bleu_signature=bleu.method,
        parameters=count_parameters(config),
        training_seconds=training_seconds,
        decoding_seconds=time.monotonic() - began,
        machine=command.machine(),
        data=read_json(folder.identity),
        settings=settings(config),
    )
    result.save(_result(folder))
    print(f"{row}: perplexity {perplexity:.3f}, BLEU {bleu.score:.2f}", file=sys.stderr)
    return result


def count_parameters(config: Config) -> int:
    """Numbers that a model learns; counted from shapes alone."""
    return sum(leaf.size for leaf in jax.tree.leaves(abstract_params(config.model)))


def _training(folder: Workdir, steps: int) -> tuple[float, float]:
    """Perplexity after the last step, and the seconds that all steps took."""
    records = read_metrics(folder.metrics)
    perplexity = next(
        r["perplexity"] for r in reversed(records) if r["kind"] == "valid" and r["step"] == steps
    )
    seconds, done = 0.0, 0
    for record in records:
        if record["kind"] == "train":
            seconds += record["seconds_per_step"] * (record["step"] - done)
            done = record["step"]
    return perplexity, seconds


def _translate(config: Config, folder: Workdir) -> Metric:
    """Translates the validation part and scores it; the folder keeps translations and scores."""
    pairs = open_corpus(config.data).pairs(config.data.valid)
    sources, references = zip(*pairs, strict=True)
    translator = Translator.load(folder.path, weights="latest")
    with tqdm(total=len(sources), unit="sentence", smoothing=0, disable=None) as bar:

        def report_progress(finished: int) -> None:
            bar.update(finished)

        translations = translator.translate(sources, name=config.data.valid, report=report_progress)
    language = config.data.target_language
    text = "".join(f"{translation}\n" for translation in translations)
    write_file(folder.path / f"valid.{language}", text.encode())
    scores = translation_report(translations, references, target_language=language)
    write_file(folder.path / "report.json", scores.to_json().encode())
    return scores.sacrebleu


def _configure(options: argparse.Namespace, row: str, seed: int) -> Config:
    config = row_config(row, options.scale, steps=options.steps, seed=seed)
    if options.data is None:
        return config
    data = dataclasses.replace(
        config.data,
        corpus="text",
        train=str(options.data / "train"),
        valid=str(options.data / "valid"),
    )
    return dataclasses.replace(config, data=data)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command.parser("table3", __doc__, _EXAMPLE)
    add = parser.add_argument
    add("--workdir", type=pathlib.Path, required=True, metavar="DIR", help="folder of all rows")
    add(
        "--scale",
        choices=SCALES,
        default="paper",
        help="paper, WMT14; small, widths divided by 4 and layers by 2; smoke, a few steps of "
        "number words (default: %(default)s)",
    )
    add(
        "--data",
        type=pathlib.Path,
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
        type=pathlib.Path,
        metavar="DIR",
        help="folder for table3.md and table3.png (default: the workdir)",
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(exit_code(main))
