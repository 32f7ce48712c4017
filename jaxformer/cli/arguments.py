"""What can be said on the command line: every command, its options, their help.

Nothing heavy is imported here, so that ``--help`` and mistakes are answered at once.
"""

import argparse
import difflib
import re
from collections.abc import Sequence
from typing import NoReturn

from jaxformer.cli import decoding_options
from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.version import __version__


class CommandParser(argparse.ArgumentParser):
    """A parser that says a mistake in one line, without the whole usage."""

    def error(self, message: str) -> NoReturn:
        """Refuses the arguments.

        Raises:
          UserError: Always.
        """
        raise UserError(f"{message}; see {self.prog} --help")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command; ``run`` names what carries it out: a module and its function.

    Raises:
      UserError: There is no such command or option, or a value is missing or of the wrong type.
    """
    options, unknown = _parser().parse_known_args(arguments)
    if "overrides" in options:
        options.overrides = [word for word in unknown if word.startswith("--config.")]
        unknown = [word for word in unknown if word not in options.overrides]
    if unknown:
        known = re.findall(r"--[a-z][a-z-]*", options.parser.format_help())
        close = difflib.get_close_matches(unknown[0].partition("=")[0], known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"see {options.parser.prog} --help"
        raise UserError(f"unknown argument {unknown[0]}; {hint}")
    return options


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="jaxformer",
        description="Uses a Transformer that train.py has trained.",
        epilog="Every command has its own --help, with an example.",
    )
    parser.add_argument("--version", action="version", version=f"jaxformer {__version__}")
    commands = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    for add in (
        _add_translate,
        _add_score,
        _add_evaluate,
        _add_compare,
        _add_generate,
        _add_parse,
        _add_evalb,
        _add_doctor,
        _add_average,
        _add_quantize,
        _add_attention,
        _add_plot,
        _add_import,
    ):
        add(commands)
    return parser


def _add_translate(commands) -> None:
    command = _command(
        commands,
        "translate",
        "translate.translate",
        "translate lines of text, from standard input or a file",
        """
        jaxformer translate --workdir runs/multi30k --input in.txt --output out.txt

        echo "A dog runs." | jaxformer translate --workdir runs/multi30k --n-best 2
        0 ||| Ein Hund rennt. ||| -0.412345
        0 ||| Ein Hund läuft. ||| -0.523456

        jaxformer translate --workdir runs/multi30k     # type a line, press Enter; Ctrl-D ends
        """,
    )
    files = command.add_argument_group(
        "text",
        "One line of output for each line of input, blank lines included. --output is written as "
        "OUTPUT.<process id>.partial and renamed when all is done: what an interrupted run has "
        "finished stays there.",
    )
    files.add_argument("--input", type=local_path, metavar="FILE", help="default: standard input")
    files.add_argument("--output", type=local_path, metavar="FILE", help="default: standard output")
    formats = command.add_argument_group(
        "format", "A score is the log probability divided by the length penalty."
    )
    how = formats.add_mutually_exclusive_group()
    how.add_argument("--scores", action="store_true", help="lines of score, tab, translation")
    how.add_argument(
        "--json",
        action="store_true",
        help="lines of JSON: the source, and text, score, log_prob and tokens of each hypothesis",
    )
    formats.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help='the N best of the beam, as "line ||| translation ||| score", lines from 0; with '
        "--json: that many hypotheses in each",
    )
    formats.add_argument(
        "--alignments",
        type=local_path,
        metavar="FILE",
        help="write, for each line, the words that the best translation's words come from: "
        '"source-target" pairs, words from 0',
    )
    formats.add_argument(
        "--alignment-layer",
        type=int,
        metavar="N",
        help="decoder layer whose attention aligns, from 1 (default: the last but one)",
    )
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)
    decoding_options.add_prefix_options(command)


def _add_score(commands) -> None:
    command = _command(
        commands,
        "score",
        "score.score",
        "score given translations: log probability divided by the length penalty, line by line",
        """
        jaxformer score --workdir runs/multi30k --source test.en --target test.de
        -0.512345
        -0.734567
        """,
    )
    files = command.add_argument_group(
        "text",
        "A blank target is scored as the empty translation; a blank source is never translated: "
        "0 if the target is blank, too, else -inf.",
    )
    files.add_argument(
        "--source", type=local_path, required=True, metavar="FILE", help="source text"
    )
    files.add_argument(
        "--target", type=local_path, required=True, metavar="FILE", help="translation, line by line"
    )
    files.add_argument("--output", type=local_path, metavar="FILE", help="default: standard output")
    files.add_argument(
        "--json",
        action="store_true",
        help="lines of JSON: score, log_prob (null for -inf) and length in tokens",
    )
    decoding_options.add_model_options(command)
    decoding_options.add_penalty_options(command.add_argument_group("score"))


def _add_evaluate(commands) -> None:
    command = _command(
        commands,
        "evaluate",
        "evaluate.evaluate",
        "translate a file and compare the translations with a reference",
        "jaxformer evaluate --workdir runs/multi30k --source test.en --reference test.de",
    )
    files = command.add_argument_group("text")
    files.add_argument(
        "--source", type=local_path, required=True, metavar="FILE", help="text to translate"
    )
    files.add_argument(
        "--reference", type=local_path, required=True, metavar="FILE", help="its translation"
    )
    files.add_argument(
        "--output", type=local_path, metavar="FILE", help="keep the translations here"
    )
    files.add_argument(
        "--language",
        metavar="CODE",
        help="target language, for the metrics' tokenizers (default: the run's)",
    )
    files.add_argument("--json", action="store_true", help="print the report as JSON")
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)
    decoding_options.add_prefix_options(command)


def _add_compare(commands) -> None:
    command = _command(
        commands,
        "compare",
        "compare.compare",
        "score files of translations and say which differences are significant",
        """
        jaxformer compare --reference newstest2014.de base.de big.de

        jaxformer compare --reference newstest2014.de big.de      # one: scores with 95 % intervals
        """,
        workdir=False,
    )
    command.add_argument(
        "translations",
        type=local_path,
        nargs="+",
        metavar="FILE",
        help="translations as plain text, one a line; all others are compared with the first",
    )
    command.add_argument(
        "--reference",
        type=local_path,
        required=True,
        metavar="FILE",
        help="the reference, line by line",
    )
    command.add_argument(
        "--language",
        metavar="CODE",
        help="target language, for the metrics' tokenizers (default: the ending of the reference's "
        "name)",
    )
    command.add_argument("--json", action="store_true", help="print the figures as JSON")


def _add_generate(commands) -> None:
    command = _command(
        commands,
        "generate",
        "generate.generate",
        "continue prompts with a language model: text appears while it is generated",
        """
        jaxformer generate --workdir runs/shakespeare --prompt "ROMEO:" --tokens 500

        cat prompts.txt | jaxformer generate --workdir runs/shakespeare --samples 3 --top-k 20
        """,
    )
    text = command.add_argument_group(
        "text", "The prompt is written, too. Texts are separated by a line of ---."
    )
    text.add_argument("--prompt", metavar="TEXT", help="default: each line of standard input")
    text.add_argument(
        "--tokens", type=int, default=500, metavar="N", help="to generate (default: %(default)s)"
    )
    model = command.add_argument_group("model")
    model.add_argument(
        "--weights",
        default="auto",
        help="averaged, best (lowest validation loss), latest, or a step (default: averaged if the "
        "newest checkpoint is part of the average, else latest)",
    )
    decoding_options.add_dtype_option(model)
    sampling = command.add_argument_group("sampling", "Defaults are those of the run's config.")
    sampling.add_argument("--samples", type=int, metavar="N", help="texts for each prompt")
    decoding_options.add_sampling_options(sampling)
    search = command.add_argument_group("search, instead of sampling")
    search.add_argument(
        "--beam-size", type=int, metavar="N", help="beam search, of which the best is written"
    )


def _add_parse(commands) -> None:
    command = _command(
        commands,
        "parse",
        "parsing.parse",
        "parse sentences with a model that was trained on trees: a line of words in, a tree out",
        """
        jaxformer parse --workdir runs/parsing --input words.txt --output parsed.trees

        echo "It works ." | jaxformer parse --workdir runs/parsing
        (S (NP (PRP It)) (VP (VBZ works)) (. .))

        jaxformer parse --workdir runs/parsing --trees dev.trees --gold gold.trees --output my.trees
        jaxformer evalb gold.trees my.trees
        """,
    )
    files = command.add_argument_group(
        "text",
        "Words have spaces between them; punctuation is words, as in the treebank. One line of "
        "output for each line of input, blank lines included; every tree has just the words of "
        "its line, ( and ) written as -LRB- and -RRB-.",
    )
    files.add_argument("--input", type=local_path, metavar="FILE", help="default: standard input")
    files.add_argument("--output", type=local_path, metavar="FILE", help="default: standard output")
    treebank = command.add_argument_group("treebank, to see how good the parser is")
    treebank.add_argument(
        "--trees",
        type=local_path,
        metavar="FILE",
        help="parse the words of these trees; the trees written have their parts of speech, too",
    )
    treebank.add_argument(
        "--gold",
        type=local_path,
        metavar="FILE",
        help="write the trees of --trees as the parser's should be: on a line each, without empty "
        "elements, function tags and the top",
    )
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)


def _add_evalb(commands) -> None:
    command = _command(
        commands,
        "evalb",
        "evalb.evalb",
        "score parse trees, one a line, as the program EVALB does",
        """
        jaxformer evalb gold.trees parsed.trees

        jaxformer evalb gold.trees parsed.trees --params COLLINS.prm --json
        """,
        workdir=False,
    )
    command.add_argument(
        "gold",
        type=local_path,
        metavar="GOLD",
        help="the right trees; an outermost pair of brackets without a label counts as a "
        "constituent, one labeled TOP does not",
    )
    command.add_argument(
        "test",
        type=local_path,
        metavar="TEST",
        help="the parser's, line by line; a blank line for a sentence without a parse",
    )
    command.add_argument(
        "--params",
        type=local_path,
        metavar="FILE",
        help="what counts, as a .prm file of EVALB (default: as COLLINS.prm)",
    )
    command.add_argument("--json", action="store_true", help="print the figures as JSON")


def _add_doctor(commands) -> None:
    command = _command(
        commands,
        "doctor",
        "doctor.doctor",
        "print everything a bug report needs; with --config, how much memory training needs on "
        "each device, and what would make it fit",
        """
        jaxformer doctor

        jaxformer doctor --config configs/big.py --memory 16GB

        jaxformer doctor --config configs/big.py --memory 16GB --devices 8 --config.mesh.fsdp=8
        """,
        workdir=False,
    )
    command.add_argument(
        "--config",
        metavar="FILE",
        help="an experiment, as for train.py, with its overrides: "
        "--config.data.tokens_per_batch=8192",
    )
    command.add_argument(
        "--memory", metavar="SIZE", help="of a device, such as 16GB (default: what this one has)"
    )
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="simulate so many, on the CPU (default: the devices of this machine)",
    )
    command.set_defaults(overrides=[])


def _add_average(commands) -> None:
    command = _command(
        commands,
        "average",
        "models.average",
        "average the newest checkpoints, as the paper does; other commands then use the average",
        "jaxformer average --workdir runs/multi30k --last 5",
    )
    command.add_argument("--last", type=int, default=5, help="how many (default: %(default)s)")


def _add_attention(commands) -> None:
    command = _command(
        commands,
        "attention",
        "pictures.attention",
        "translate a sentence and show where each head looks, as a web page or a picture",
        """
        jaxformer attention --workdir runs/multi30k "A dog runs."     # a page, for a browser

        jaxformer attention --workdir runs/multi30k "A dog runs." --figure 3 --output figure3.svg

        jaxformer attention --workdir runs/multi30k "A dog runs." --heads 1,3 --output heads.png
        """,
    )
    command.add_argument("sentence", help="source sentence")
    command.add_argument(
        "--output",
        type=local_path,
        help="file to write, by its ending: .html, a page of all layers, heads and kinds that "
        "needs no network; .png or .svg, a picture (default: attention.html in the workdir)",
    )
    shown = command.add_argument_group("what to draw, or what the page shows first")
    shown.add_argument(
        "--kind",
        choices=("encoder", "decoder", "cross"),
        help="encoder or decoder self-attention, or from decoder to encoder (default: cross)",
    )
    shown.add_argument("--layer", type=int, help="layer, from 1 (default: the last)")
    shown.add_argument(
        "--heads", type=_numbers, metavar="N,N,...", help="heads, from 1 (default: all)"
    )
    shown.add_argument(
        "--figure",
        type=int,
        choices=(3, 4, 5),
        help="the counterpart of this figure of the paper: encoder self-attention as lines, layer "
        "(default: the last but one), heads and word chosen to resemble it",
    )
    shown.add_argument("--word", help="the word that looks, in figures 3 and 4: a source token")
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)


def _add_plot(commands) -> None:
    command = _command(
        commands,
        "plot",
        "pictures.plot",
        "draw the learning curve of a run, as a PNG",
        "jaxformer plot --workdir runs/numerals",
    )
    command.add_argument(
        "--output", type=local_path, help="PNG (default: learning_curve.png in the workdir)"
    )


def _add_quantize(commands) -> None:
    command = _command(
        commands,
        "quantize",
        "models.quantize",
        "round a model's parameters to int8, in a new workdir that every command accepts",
        "jaxformer quantize --workdir runs/multi30k --output runs/multi30k-int8",
    )
    command.add_argument(
        "--output", type=local_path, required=True, metavar="DIR", help="folder to make"
    )
    command.add_argument("--weights", default="auto", help="as for translate")


def _add_import(commands) -> None:
    command = _command(
        commands,
        "import",
        "models.import_model",
        "turn another system's model into a workdir that every command accepts",
        "jaxformer import marian opus-mt-en-de --workdir runs/opus-mt-en-de",
    )
    command.add_argument(
        "system", choices=("marian",), help="marian: Marian or OPUS-MT, as on the Hugging Face hub"
    )
    command.add_argument("directory", type=local_path, help="folder of the model")


def _command(
    commands, name: str, run: str, summary: str, example: str, *, workdir: bool = True
) -> CommandParser:
    lines = [line.removeprefix(8 * " ") for line in example.strip().split("\n")]
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="\n".join(["Example:", *(f"  {line}".rstrip() for line in lines)]),
        # Argparse would join the lines of the example.
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation that works today is ambiguous once there is another option.
        allow_abbrev=False,
    )
    if workdir:
        command.add_argument(
            "--workdir",
            type=local_path,
            required=True,
            metavar="DIR",
            help="folder of a run of train.py",
        )
    command.set_defaults(run=run, parser=command)
    return command


def _numbers(text: str) -> list[int]:
    """Whole numbers separated by commas, in order, each once."""
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"expected numbers such as 1 or 1,3: got {text!r}")
    return sorted({int(number) for number in text.split(",")})
