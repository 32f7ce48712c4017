"""Decoding options that several commands share."""

import argparse
import dataclasses
import sys
from typing import TYPE_CHECKING

from jaxformer.errors import UserError
from jaxformer.files import local_path, model_path

if TYPE_CHECKING:
    from jaxformer.search import BeamSearch, Sampling

_RUN = "(default: the run's config)"
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Adds options for checkpoint, ensemble and dtype."""
    group = command.add_argument_group("model")
    add_weights_option(group, "; several, separated by commas, form an ensemble")
    group.add_argument(
        "--ensemble",
        type=model_path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="workdirs of models with the same tokenizer, whose probabilities are averaged with "
        "this model's",
    )
    add_dtype_option(group)


def add_weights_option(group: argparse._ActionsContainer, note: str = "") -> None:
    """Adds the option that selects a checkpoint."""
    group.add_argument(
        "--weights",
        default="auto",
        metavar="CHECKPOINT",
        help=f"auto, averaged, best, latest or a step{note} (default: auto, the average if it "
        "includes the newest checkpoint, else latest)",
    )


def add_dtype_option(group: argparse._ArgumentGroup) -> None:
    """Adds the option for the dtype of matrix multiplications."""
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8"),
        help="dtype of the inputs of matrix multiplications: bfloat16 and int8 are faster and less "
        "exact (default: the run's)",
    )


def add_search_options(command: argparse.ArgumentParser) -> None:
    """Adds options for beam search, sampling and constraints."""
    group = command.add_argument_group("search")
    group.add_argument(
        "--beam-size", type=int, metavar="N", help=f"hypotheses per sentence; 1 is greedy {_RUN}"
    )
    add_penalty_options(group)
    group.add_argument(
        "--diversity-groups",
        type=int,
        metavar="G",
        help=f"diverse beam search: split the beam into G groups {_RUN}",
    )
    group.add_argument(
        "--diversity-penalty",
        type=float,
        metavar="X",
        help="penalty on a token's log probability, in the choice but not in the score, for each "
        f"hypothesis of an earlier group that chose it {_RUN}",
    )
    _add_constraints(
        command.add_argument_group("constraints", "Scores of allowed hypotheses do not change.")
    )
    _add_sampling(command.add_argument_group("sampling", "Instead of beam search."))


def add_penalty_options(group: argparse._ArgumentGroup) -> None:
    """Adds options for the length penalty, which divides log probabilities."""
    group.add_argument(
        "--penalty",
        choices=("gnmt", "power", "none"),
        help="length penalty for n tokens: gnmt ((5 + n) / 6)^alpha as in the paper, power "
        f"n^alpha, none 1 {_RUN}",
    )
    group.add_argument(
        "--length-penalty",
        type=float,
        metavar="ALPHA",
        help=f"alpha; larger values favor longer translations {_RUN}",
    )


def add_prefix_options(command: argparse.ArgumentParser) -> None:
    """Adds options for forced prefixes."""
    group = command.add_argument_group("forced prefix").add_mutually_exclusive_group()
    group.add_argument("--prefix", metavar="TEXT", help="every translation begins with this text")
    group.add_argument(
        "--prefixes",
        type=local_path,
        metavar="FILE",
        help="each translation begins with its line of this file",
    )


def _add_constraints(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--min-length", type=int, metavar="N", help="minimum tokens, without end-of-sentence"
    )
    group.add_argument(
        "--max-length", type=int, metavar="N", help="maximum tokens, with end-of-sentence"
    )
    group.add_argument(
        "--no-repeat-ngram", type=int, metavar="N", help="forbid repeated n-grams of N tokens"
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sampling",
        action="store_true",
        help="sample instead of searching; translate prints the samples best first",
    )
    group.add_argument(
        "--samples",
        dest="num_samples",
        type=int,
        metavar="N",
        help="number of samples per sentence; implies --sampling",
    )
    add_sampling_options(group)


def add_sampling_options(group: argparse._ArgumentGroup) -> None:
    """Adds options for temperature, top-k and top-p truncation, and the seed."""
    group.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help="divide the logits by X: below 1 is safer, above 1 more varied",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="sample among the K likeliest tokens")
    group.add_argument(
        "--top-p",
        type=float,
        metavar="P",
        help="sample among the likeliest tokens with a total probability of P",
    )
    group.add_argument(
        "--seed", type=int, metavar="N", help="random seed; the same seed gives the same samples"
    )


def search_settings(options: argparse.Namespace) -> "BeamSearch | Sampling":
    """Returns the run's search settings, overridden by the options.

    Raises:
      UserError: There is no such run; a value is out of range or would have no effect.
    """
    from jaxformer.config import load_run
    from jaxformer.runs.workdir import Workdir
    from jaxformer.search import plain

    config = load_run(Workdir(options.workdir))
    settings = plain.to_dict(config.search)
    given = {
        name: value for name in settings if (value := getattr(options, name, None)) is not None
    }
    if "num_samples" in given and "beam_size" in given:
        raise UserError("--samples and --beam-size exclude each other; leave one of them out")
    if getattr(options, "sampling", False) or "num_samples" in given:
        given["method"] = "sampling"
    elif "beam_size" in given:
        given["method"] = "beam"
    method = given.get("method", settings["method"])
    if method == "sampling" and "beam_size" in given:
        print("warning: --beam-size with sampling is now --samples", file=sys.stderr)
        given["num_samples"] = given["beam_size"]
    for name, value in given.items():
        if name in _SAMPLING and method != "sampling":
            raise UserError(f"{_flag(name)} {value} works with --sampling only; add it")
        if name.startswith("diversity") and method == "sampling":
            raise UserError(f"{_flag(name)} {value} works with beam search only, not --sampling")
    if options.penalty == "none" and options.length_penalty is not None:
        raise UserError(
            f"--length-penalty {options.length_penalty} has no effect with --penalty none; leave "
            "one of them out"
        )
    if method != settings["method"]:  # The fields of the run's own method do not apply.
        fields = {field.name for field in dataclasses.fields(plain.SEARCHES[method])}
        kept = fields | {"method", "beam_size"}  # the number of hypotheses stays
        settings = {name: value for name, value in settings.items() if name in kept}
    return dataclasses.replace(config, search=plain.from_dict(settings | given)).search


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
