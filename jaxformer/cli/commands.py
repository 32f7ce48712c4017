"""Commands of the command line: options, help and an example of each.

The module imports no heavy libraries, so that ``--help`` and error messages appear at once.
"""

import argparse
import pathlib
import re
from collections.abc import Callable
from typing import Any, Literal

from jaxformer import pretrained
from jaxformer.cli import decoding_options
from jaxformer.cli.configs import list_configs
from jaxformer.files import local_path, model_path, run_path

# Type and help of --workdir, by what a command does with it.
_WORKDIRS = {
    "read": (model_path, "run directory of train.py"),
    "translate": (
        model_path,
        f"run directory of train.py (default: pretrained, the {pretrained.DESCRIPTION})",
    ),
    "change": (run_path, "run directory of train.py"),
    "create": (run_path, "workdir to create"),
}


def add_commands(commands: Any) -> None:
    """Adds the parsers of all commands to the subparsers of ``jaxformer``."""
    for add in (
        _add_train,
        _add_translate,
        _add_score,
        _add_evaluate,
        _add_compare,
        _add_generate,
        _add_parse,
        _add_evalb,
        _add_doctor,
        _add_replay,
        _add_average,
        _add_quantize,
        _add_attention,
        _add_plot,
        _add_import,
        _add_data,
        _add_export,
    ):
        add(commands)


def _add_train(commands) -> None:
    command = _command(
        commands,
        "train",
        "train.train",
        "train a model, or resume an interrupted run",
        """
        jaxformer train numerals --workdir runs/numerals

        jaxformer train base:tiny --workdir runs/mine --config.training.steps=1000

        jaxformer train my_config.py --workdir runs/mine

        python train.py --config=configs/numerals.py --workdir=runs/numerals     # in a clone

        CONFIG is a file, or the name of a config that comes with jaxformer, with an optional
        variant. The file is Python and is executed; nothing else is.

        """
        + list_configs()
        + """

        Fields: python -c 'import jaxformer; help(jaxformer.ModelConfig)', likewise DataConfig,
        StreamConfig, TrainingConfig and MeshConfig.

        SIGTERM, SIGINT (Ctrl-C) and SIGHUP save a checkpoint and stop the run. Exit codes: 0 done,
        1 failed, 2 a mistake in the input, 75 stopped by a signal (run the same command again),
        130 interrupted at once by a second Ctrl-C.
        """,
        workdir=None,
    )
    command.usage = "%(prog)s CONFIG --workdir DIR [--config.FIELD=VALUE ...]"
    command.add_argument(
        "--config", metavar="CONFIG", help="the same as CONFIG without the name of the option"
    )
    command.add_argument(
        "--workdir",
        type=lambda path: path and run_path(path),
        metavar="DIR",
        help="run directory: config, tokenizer, checkpoints, metrics; required",
    )
    hosts = command.add_argument_group("several processes")
    hosts.add_argument(
        "--coordinator",
        metavar="HOST:PORT",
        help="address of the first process, or 'auto' to ask the cluster (Cloud TPU, SLURM, GKE); "
        "run the same command on every host",
    )
    for name, meaning in (
        ("--num_processes", "number of processes; not with auto"),
        ("--process_id", "number of this process, from 0; not with auto"),
    ):
        hosts.add_argument(name, type=int, metavar="N", help=meaning)
    command.set_defaults(overrides=[])


def _add_translate(commands) -> None:
    command = _command(
        commands,
        "translate",
        "translate.translate",
        "translate lines of text, from standard input or a file",
        """
        echo "Where is the station?" | jaxformer translate
        Wo ist der Bahnhof?

        jaxformer translate --workdir runs/multi30k --input in.txt --output out.txt

        echo "A dog runs." | jaxformer translate --workdir runs/multi30k --n-best 2
        0 ||| Ein Hund rennt. ||| -0.412345
        0 ||| Ein Hund läuft. ||| -0.523456

        jaxformer translate     # type a line, press Enter; Ctrl-D ends
        """,
        workdir="translate",
    )
    files = command.add_argument_group(
        "text",
        "One line of output for each line of input, blank lines included. --output is first "
        "written as OUTPUT.<process id>.partial and renamed at the end; an interrupted run leaves "
        "its finished lines there.",
    )
    _add_path(files, "--input", "source text, one sentence per line (default: standard input)")
    _add_path(files, "--output", "file for the translations (default: standard output)")
    _add_strict(files, "a blank translation, with --json an object with an error")
    formats = command.add_argument_group(
        "format", "A score is the log probability divided by the length penalty."
    )
    how = formats.add_mutually_exclusive_group()
    how.add_argument("--scores", action="store_true", help="print lines of score, tab, translation")
    how.add_argument(
        "--json",
        action="store_true",
        help="print lines of JSON: the source, and text, score, log_prob and tokens of each "
        "hypothesis",
    )
    formats.add_argument(
        "--n-best",
        type=int,
        metavar="N",
        help='print the N best hypotheses as "line ||| translation ||| score", lines from 0; with '
        "--json: N hypotheses in each object",
    )
    _add_path(
        formats,
        "--alignments",
        "write word alignments of the best translations in Pharaoh format: for each line, "
        '"source-target" pairs of word indices from 0, derived from attention',
    )
    formats.add_argument(
        "--alignment-layer",
        type=int,
        metavar="N",
        help="decoder layer whose attention gives the alignments, from 1 (default: the last but "
        "one)",
    )
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)
    decoding_options.add_prefix_options(command)


def _add_score(commands) -> None:
    command = _command(
        commands,
        "score",
        "score.score",
        "score given translations: log probability divided by the length penalty, for each line",
        """
        jaxformer score --workdir runs/multi30k --source test.en --target test.de
        -0.512345
        -0.734567
        """,
        workdir="translate",
    )
    files = command.add_argument_group(
        "text",
        "A blank target is scored as the empty translation. A blank source scores 0 if the target "
        "is blank, too, and else -inf.",
    )
    _add_path(files, "--source", "source text", required=True)
    _add_path(files, "--target", "translation, line by line", required=True)
    _add_path(files, "--output", "file for the scores (default: standard output)")
    _add_strict(files, "the score nan, with --json an object with an error")
    files.add_argument(
        "--json",
        action="store_true",
        help="print lines of JSON: score, log_prob (null for -inf) and length in tokens",
    )
    decoding_options.add_model_options(command)
    decoding_options.add_penalty_options(command.add_argument_group("score"))


def _add_evaluate(commands) -> None:
    command = _command(
        commands,
        "evaluate",
        "evaluate.evaluate",
        "translate a file and score the translations against a reference",
        "jaxformer evaluate --workdir runs/multi30k --source test.en --reference test.de",
        workdir="translate",
    )
    files = command.add_argument_group("text")
    _add_path(files, "--source", "text to translate", required=True)
    _add_path(files, "--reference", "reference translation", required=True)
    _add_path(files, "--output", "also write the translations to FILE")
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
        "score files of translations and test which differences are significant",
        """
        jaxformer compare --reference newstest2014.de base.de big.de

        jaxformer compare --reference newstest2014.de big.de      # scores with 95 % intervals
        """,
        workdir=None,
    )
    _add_path(
        command,
        "translations",
        "translations of one system as plain text, one per line; the first is the baseline",
        nargs="+",
    )
    _add_path(command, "--reference", "the reference, line by line", required=True)
    command.add_argument(
        "--language",
        metavar="CODE",
        help="target language, for the metrics' tokenizers (default: the suffix of the reference "
        "file)",
    )
    command.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_generate(commands) -> None:
    command = _command(
        commands,
        "generate",
        "generate.generate",
        "continue prompts with a language model, printing text as it is generated",
        """
        jaxformer generate --workdir runs/shakespeare --prompt "ROMEO:" --tokens 500

        cat prompts.txt | jaxformer generate --workdir runs/shakespeare --samples 3 --top-k 20
        """,
    )
    text = command.add_argument_group(
        "text", "Each text starts with its prompt. Texts are separated by a line of ---."
    )
    text.add_argument(
        "--prompt",
        metavar="TEXT",
        help="text to continue (default: continue each line of standard input)",
    )
    text.add_argument(
        "--tokens",
        type=int,
        default=500,
        metavar="N",
        help="number of tokens to generate (default: %(default)s)",
    )
    _add_strict(text, "empty texts")
    model = command.add_argument_group("model")
    decoding_options.add_weights_option(model)
    decoding_options.add_dtype_option(model)
    sampling = command.add_argument_group("sampling", "Defaults come from the run's config.")
    sampling.add_argument("--samples", type=int, metavar="N", help="number of texts per prompt")
    decoding_options.add_sampling_options(sampling)
    search = command.add_argument_group("beam search, instead of sampling")
    search.add_argument(
        "--beam-size", type=int, metavar="N", help="print the best of N hypotheses; 1 is greedy"
    )


def _add_parse(commands) -> None:
    command = _command(
        commands,
        "parse",
        "parse.parse",
        "parse sentences with a model that was trained on trees; print one tree per line of words",
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
        "Words are separated by spaces; punctuation marks are words, as in the treebank. There is "
        "one line of output for each line of input, blank lines included. Every tree has exactly "
        "the words of its line, with ( and ) written as -LRB- and -RRB-.",
    )
    _add_path(files, "--input", "words, one sentence per line (default: standard input)")
    _add_path(files, "--output", "file for the trees (default: standard output)")
    _add_strict(files, "a blank line of output")
    treebank = command.add_argument_group("treebank, to evaluate the parser")
    _add_path(
        treebank,
        "--trees",
        "parse the words of these trees, and copy their parts of speech to the output",
    )
    _add_path(
        treebank,
        "--gold",
        "write the trees of --trees, normalized for evalb: one per line, without empty "
        "elements, function tags and top brackets",
    )
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)


def _add_evalb(commands) -> None:
    command = _command(
        commands,
        "evalb",
        "evalb.evalb",
        "score parse trees, one per line, exactly as the program EVALB does",
        """
        jaxformer evalb gold.trees parsed.trees

        jaxformer evalb gold.trees parsed.trees --params COLLINS.prm --json
        """,
        workdir=None,
    )
    _add_path(
        command,
        "gold",
        "gold trees; outermost brackets count as a constituent if they have no label, and do "
        "not count if the label is TOP",
        metavar="GOLD",
    )
    _add_path(
        command,
        "test",
        "the parser's trees, line by line; a blank line for a sentence without a parse",
        metavar="TEST",
    )
    _add_path(
        command, "--params", "parameter file of EVALB, .prm (default: the settings of COLLINS.prm)"
    )
    command.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_doctor(commands) -> None:
    command = _command(
        commands,
        "doctor",
        "doctor.doctor",
        "print everything a bug report needs; with --config, print how much memory training needs "
        "on each device, and settings that make it fit",
        """
        jaxformer doctor

        jaxformer doctor --config configs/big.py --memory 16GB

        jaxformer doctor --config configs/big.py --memory 16GB --devices 8 --config.mesh.fsdp=8
        """,
        workdir=None,
    )
    command.add_argument(
        "--config",
        metavar="CONFIG",
        help="config of an experiment, as for train; add overrides such as "
        "--config.data.tokens_per_batch=8192",
    )
    command.add_argument(
        "--memory",
        metavar="SIZE",
        help="memory of a device, such as 16GB (default: the memory of this machine's device)",
    )
    command.add_argument(
        "--devices",
        type=int,
        metavar="N",
        help="simulate N devices on the CPU (default: the devices of this machine)",
    )
    command.set_defaults(overrides=[])


def _add_replay(commands) -> None:
    command = _command(
        commands,
        "replay",
        "replay.replay",
        "take one step of training again, and print the loss and gradient norm of each of its "
        "examples, the largest first",
        """
        jaxformer replay --workdir runs/multi30k --step 1234 | head

        The norms are of the examples' shares of the gradient. Examples that cause NaN come first.
        The steps since the newest checkpoint before STEP are computed again; nothing is saved.
        """,
    )
    command.add_argument("--step", type=int, required=True, metavar="STEP", help="step, from 1")


def _add_average(commands) -> None:
    command = _command(
        commands,
        "average",
        "convert.average",
        "average the newest checkpoints, as the paper does; other commands then use the average",
        "jaxformer average --workdir runs/multi30k --last 5",
        workdir="change",
    )
    command.add_argument(
        "--last",
        type=int,
        default=5,
        metavar="N",
        help="number of checkpoints; the paper averages 5 of base models and 20 of big models "
        "(default: %(default)s)",
    )


def _add_attention(commands) -> None:
    command = _command(
        commands,
        "attention",
        "plot.attention",
        "translate a sentence and plot its attention weights, as a web page or an image",
        """
        jaxformer attention "Where is the station?"     # an interactive web page

        jaxformer attention --workdir runs/multi30k "A dog runs." --figure 3 --output figure3.svg

        jaxformer attention --workdir runs/multi30k "A dog runs." --heads 1,3 --output heads.png
        """,
        workdir="translate",
    )
    command.add_argument("sentence", help="source sentence")
    _add_path(
        command,
        "--output",
        "file to write: .html for an interactive page of all layers, heads and kinds, which "
        "works offline; .png or .svg for an image (default: attention.html in --workdir, or here)",
    )
    shown = command.add_argument_group("selection, which the page shows first")
    shown.add_argument(
        "--kind",
        choices=("encoder", "decoder", "cross"),
        help="encoder or decoder self-attention, or encoder-decoder attention (default: cross)",
    )
    shown.add_argument("--layer", type=int, help="layer, from 1 (default: the last)")
    shown.add_argument(
        "--heads", type=_numbers, metavar="N,N,...", help="heads, from 1 (default: all)"
    )
    shown.add_argument(
        "--figure",
        type=int,
        choices=(3, 4, 5),
        help="draw the counterpart of this figure of the paper: encoder self-attention as lines, "
        "with layer (default: the last but one), heads and word chosen to resemble it",
    )
    shown.add_argument(
        "--word", help="query of figures 3 and 4, a source token (default: chosen automatically)"
    )
    decoding_options.add_model_options(command)
    decoding_options.add_search_options(command)


def _add_plot(commands) -> None:
    command = _command(
        commands,
        "plot",
        "plot.plot",
        "plot the learning curves of a run, as an image",
        "jaxformer plot --workdir runs/numerals",
    )
    _add_path(
        command,
        "--output",
        "image to write, .png or .svg (default: learning_curve.png in the workdir)",
    )


def _add_quantize(commands) -> None:
    command = _command(
        commands,
        "quantize",
        "convert.quantize",
        "quantize a model's parameters to int8, in a new workdir that every command accepts",
        "jaxformer quantize --workdir runs/multi30k --output runs/multi30k-int8",
    )
    _add_path(command, "--output", "workdir to create", required=True, metavar="DIR", type=run_path)
    decoding_options.add_weights_option(command)


def _add_import(commands) -> None:
    command = _command(
        commands,
        "import",
        "convert.import_model",
        "convert another system's model to a workdir that every command accepts",
        "jaxformer import marian Helsinki-NLP/opus-mt-en-de --workdir runs/opus-mt-en-de",
        workdir="create",
    )
    command.add_argument(
        "system", choices=("marian",), help="marian: Marian or OPUS-MT, as on the Hugging Face Hub"
    )
    command.add_argument(
        "directory",
        type=_model_folder,
        help="folder of the model, or its name on the hub, such as Helsinki-NLP/opus-mt-en-de",
    )


def _model_folder(text: str) -> pathlib.Path:
    """Returns a folder, or the name of a model whose address on the hub is given."""
    address = re.fullmatch(r"https://huggingface\.co/(.+?)(/(tree|blob)/main(/.*)?)?", text)
    return local_path(address[1] if address else text)


def _add_data(commands) -> None:
    command = _command(
        commands,
        "data",
        "catalog.data",
        "download and prepare the public corpora that the shipped configs read",
        """
        jaxformer data                     # lists them, and the folder they are in

        jaxformer data multi30k
        python train.py --config=configs/multi30k.py --workdir=runs/multi30k

        They are in $JAXFORMER_DATA, by default below ~/.cache/jaxformer. An interrupted download
        is completed by the same command.
        """,
        workdir=None,
    )
    command.add_argument(
        "names", nargs="*", metavar="NAME", help="corpora to get (default: list all corpora)"
    )


def _add_export(commands) -> None:
    command = _command(
        commands,
        "export",
        "convert.export_model",
        "convert a model for another system, with a model card",
        "jaxformer export stablehlo --workdir runs/multi30k --output multi30k-stablehlo",
    )
    command.add_argument(
        "format",
        choices=("stablehlo", "ctranslate2", "marian", "safetensors"),
        help="stablehlo: the whole search as a program for JAX; ctranslate2: a model for "
        "CTranslate2; marian: MarianMTModel of the transformers library; safetensors: parameters",
    )
    _add_path(command, "--output", "folder to create", required=True, metavar="DIR")
    decoding_options.add_weights_option(command)
    decoding_options.add_dtype_option(command.add_argument_group("model"))
    decoding_options.add_search_options(command)


def _command(
    commands,
    name: str,
    run: str,
    summary: str,
    example: str,
    *,
    workdir: Literal["read", "translate", "change", "create"] | None = "read",
) -> argparse.ArgumentParser:
    lines = [line.removeprefix(8 * " ") for line in example.strip().split("\n")]
    command = commands.add_parser(
        name,
        help=summary,
        description=f"{summary[0].upper()}{summary[1:]}.",
        epilog="\n".join(["Example:", *(f"  {line}".rstrip() for line in lines)]),
        # The default formatter would join the lines of the example.
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # An abbreviation may become ambiguous when an option is added.
        allow_abbrev=False,
    )
    if workdir is not None:
        kind, text = _WORKDIRS[workdir]
        required, default = workdir != "translate", pretrained.WORKDIR
        _add_path(
            command, "--workdir", text, metavar="DIR", type=kind, required=required, default=default
        )
    command.set_defaults(run=run, parser=command)
    return command


def _add_path(
    group: argparse._ActionsContainer,
    name: str,
    text: str,
    *,
    metavar: str = "FILE",
    type: Callable[[str], pathlib.Path] = local_path,
    **options: Any,
) -> None:
    group.add_argument(name, type=type, metavar=metavar, help=text, **options)


def _add_strict(group: argparse._ArgumentGroup, output: str) -> None:
    group.add_argument(
        "--strict",
        action="store_true",
        help="refuse an input with a line that is too long or not UTF-8, a file before any work "
        f"(default: such a line gives {output}; it is reported on standard error, and the exit "
        "code is 3 when all other lines are done)",
    )


def _numbers(text: str) -> list[int]:
    if not re.fullmatch(r"\d+(,\d+)*", text):
        raise argparse.ArgumentTypeError(f"expected numbers such as 1 or 1,3: got {text!r}")
    return sorted({int(number) for number in text.split(",")})
