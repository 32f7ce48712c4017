"""The ``jaxformer`` command: arguments in, one call, messages out."""

import argparse
import dataclasses
import io
import os
import pathlib
import sys
from collections.abc import Sequence

from tqdm import tqdm

from jaxformer.config import SearchConfig
from jaxformer.errors import UserError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command.

    Returns:
      Its exit code: 0, 2 for a mistake in the input, 1 if a file cannot be written, 130 if it
      was interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except UserError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="jaxformer",
        description="Uses a Transformer that train.py has trained.",
        epilog="Every command has its own --help, with an example.",
    )
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")

    translate = _command(
        commands,
        "translate",
        _translate,
        "translate lines of text from standard input to standard output",
        "jaxformer translate --workdir runs/multi30k < in.txt > out.txt",
    )
    _add_decoding(translate)

    evaluate = _command(
        commands,
        "evaluate",
        _evaluate,
        "translate a file and compare the translations with a reference",
        "jaxformer evaluate --workdir runs/multi30k --source test.en --reference test.de",
    )
    _add_decoding(evaluate)
    evaluate.add_argument("--source", type=pathlib.Path, required=True, help="text to translate")
    evaluate.add_argument(
        "--reference", type=pathlib.Path, required=True, help="its translation, line by line"
    )
    evaluate.add_argument("--output", type=pathlib.Path, help="keep the translations here")
    evaluate.add_argument("--json", action="store_true", help="print the report as JSON")

    average = _command(
        commands,
        "average",
        _average,
        "average the newest checkpoints, as the paper does; other commands then use the average",
        "jaxformer average --workdir runs/multi30k --last 5",
    )
    average.add_argument("--last", type=int, default=5, help="how many (default: %(default)s)")

    attention = _command(
        commands,
        "attention",
        _attention,
        "translate a sentence and draw where each head looks, as a PNG",
        'jaxformer attention --workdir runs/numerals "two hundred and seven"',
    )
    _add_decoding(attention)
    attention.add_argument("sentence", help="source sentence")
    attention.add_argument(
        "--kind",
        choices=("encoder", "decoder", "cross"),
        default="cross",
        help="encoder or decoder self-attention, or from decoder to encoder (default: %(default)s)",
    )
    attention.add_argument("--layer", type=int, help="layer, from 1 (default: the last)")
    attention.add_argument(
        "--output", type=pathlib.Path, help="PNG to write (default: attention.png in the workdir)"
    )

    plot = _command(
        commands,
        "plot",
        _plot,
        "draw the learning curve of a run, as a PNG",
        "jaxformer plot --workdir runs/numerals",
    )
    plot.add_argument(
        "--output", type=pathlib.Path, help="PNG (default: learning_curve.png in the workdir)"
    )
    return parser


def _command(commands, name: str, run, summary: str, example: str) -> argparse.ArgumentParser:
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog=f"Example: {example}",
    )
    command.add_argument(
        "--workdir", type=pathlib.Path, required=True, help="folder of a run of train.py"
    )
    command.set_defaults(run=run)
    return command


def _add_decoding(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--weights",
        default="auto",
        help="averaged, best (lowest validation loss), latest, or a step (default: averaged if "
        "the newest checkpoint is part of the average, else latest)",
    )
    command.add_argument("--beam-size", type=int, help="1 is greedy (default: the run's config)")
    command.add_argument(
        "--length-penalty", type=float, help="alpha of section 6.1 (default: the run's config)"
    )


def _translate(options: argparse.Namespace) -> None:
    from jaxformer.data.corpus import read_lines

    translator = _load(options)
    if sys.stdin is None:
        raise UserError("expected text on standard input, but it is closed")
    name = "standard input"
    lines = _with_progress(translator, list(read_lines(sys.stdin.buffer, name)), name)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # like the input, whatever the locale says
    for line in lines:
        print(line)


def _evaluate(options: argparse.Namespace) -> None:
    from jaxformer.data.corpus import read_file
    from jaxformer.evaluation.report import translation_report
    from jaxformer.files import write_file

    sources, references = list(read_file(options.source)), list(read_file(options.reference))
    if len(sources) != len(references):
        raise UserError(
            f"expected as many lines in {options.source} as in {options.reference}: got "
            f"{len(sources)} and {len(references)}"
        )
    if options.output in (options.source, options.reference):
        raise UserError(f"--output {options.output} is an input; name another file")
    translator = _load(options)
    translations = _with_progress(translator, sources, str(options.source))
    if options.output is not None:
        write_file(options.output, "".join(f"{t}\n" for t in translations).encode())
    report = translation_report(
        translations, references, target_language=translator.config.data.target_language
    )
    print(report.to_json() if options.json else report.table())


def _average(options: argparse.Namespace) -> None:
    from jaxformer.inference.weights import average
    from jaxformer.workdir import Workdir

    folder = Workdir(options.workdir)
    steps = average(folder, options.last)
    print(f"{folder.averaged}: average of steps {', '.join(map(str, steps))}")


def _attention(options: argparse.Namespace) -> None:
    from jaxformer.inference.attention import look
    from jaxformer.plots.attention import attention_map

    view = look(_load(options), options.sentence)
    queries, keys, weights = view.part(options.kind)
    layer = len(weights) if options.layer is None else options.layer
    if not 1 <= layer <= len(weights):
        raise UserError(f"--layer must be from 1 to {len(weights)}: got {layer}")
    output = options.output or options.workdir / "attention.png"
    title = f"{view.translation}\n{options.kind} attention, layer {layer} of {len(weights)}"
    attention_map(weights[layer - 1], queries, keys, output, title=title)
    print(f"{output}: {view.translation}")


def _plot(options: argparse.Namespace) -> None:
    from jaxformer.plots.learning_curve import learning_curve, read_metrics
    from jaxformer.workdir import Workdir

    folder = Workdir(options.workdir)
    if not folder.metrics.is_file():
        raise UserError(f"{folder.metrics}: no such file; it is made by train.py")
    output = options.output or options.workdir / "learning_curve.png"
    learning_curve(read_metrics(folder.metrics), output)
    print(output)


def _load(options: argparse.Namespace):
    from jaxformer.inference.translator import Translator
    from jaxformer.workdir import use_compilation_cache

    use_compilation_cache()
    translator = Translator.load(options.workdir, weights=options.weights)
    given = {"beam_size": options.beam_size, "length_penalty": options.length_penalty}
    changes = {name: value for name, value in given.items() if value is not None}
    search: SearchConfig = dataclasses.replace(translator.config.search, **changes)
    translator.config = dataclasses.replace(translator.config, search=search)
    print(f"{options.workdir}: {translator.weights}", file=sys.stderr)
    return translator


def _with_progress(translator, sentences: list[str], name: str) -> list[str]:
    """Translates with a bar, if there is a terminal."""
    with tqdm(total=len(sentences), unit="sentence", disable=None) as bar:
        return translator.translate(sentences, name=name, report=bar.update)


if __name__ == "__main__":
    sys.exit(main())
