"""The options of decoding, which several commands share: flags in, a Translator out."""

import argparse
import dataclasses

from jaxformer.errors import UserError
from jaxformer.files import local_path
from jaxformer.search import BeamSearch, Sampling

_RUN = "(default: the run's config)"
_SAMPLING = ("temperature", "top_k", "top_p", "seed")


def add_model_options(command: argparse.ArgumentParser) -> None:
    """Which model: checkpoint, ensemble, type of the matrix products."""
    group = command.add_argument_group("model")
    group.add_argument(
        "--weights",
        default="auto",
        help="averaged, best (lowest validation loss), latest, or a step; several, with commas "
        "between, are an ensemble (default: averaged if the newest checkpoint is part of the "
        "average, else latest)",
    )
    group.add_argument(
        "--ensemble",
        type=local_path,
        nargs="+",
        default=[],
        metavar="DIR",
        help="workdirs with the same tokenizer, to average probabilities with",
    )
    add_dtype_option(group)


def add_dtype_option(group: argparse._ArgumentGroup) -> None:
    """Adds the dtype of matrix multiplications."""
    group.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8"),
        help="type of what goes into matrix products: bfloat16 and int8 are faster and less exact "
        "(default: the run's)",
    )


def add_search_options(command: argparse.ArgumentParser) -> None:
    """How to search, or to sample, and what is forbidden."""
    group = command.add_argument_group("search")
    group.add_argument("--beam-size", type=int, metavar="N", help=f"1 is greedy {_RUN}")
    add_penalty_options(group)
    group.add_argument(
        "--diversity-groups", type=int, metavar="G", help="search in G groups that differ"
    )
    group.add_argument(
        "--diversity-penalty",
        type=float,
        metavar="X",
        help="what a token costs for each hypothesis of an earlier group that chose it",
    )
    _add_constraints(command.add_argument_group("constraints", "They never change a score."))
    _add_sampling(command.add_argument_group("sampling", "Instead of beam search."))


def add_penalty_options(group: argparse._ArgumentGroup) -> None:
    """What a log probability is divided by."""
    group.add_argument(
        "--penalty",
        choices=("gnmt", "power", "none"),
        help="length penalty for n tokens: gnmt ((5 + n) / 6)^alpha as in the paper, power "
        f"n^alpha, none 1 {_RUN}",
    )
    group.add_argument(
        "--length-penalty", type=float, metavar="ALPHA", help=f"alpha; more favors length {_RUN}"
    )


def add_prefix_options(command: argparse.ArgumentParser) -> None:
    """How every translation has to begin."""
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
        "--min-length", type=int, metavar="N", help="least tokens, end of sentence not counted"
    )
    group.add_argument(
        "--max-length", type=int, metavar="N", help="most tokens, end of sentence counted"
    )
    group.add_argument(
        "--no-repeat-ngram", type=int, metavar="N", help="no N tokens in a row come twice"
    )


def _add_sampling(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--sampling", action="store_true", help="draw --beam-size samples, printed best first"
    )
    add_sampling_options(group)


def add_sampling_options(group: argparse._ArgumentGroup) -> None:
    """Adds the cuts and the seed of sampling."""
    group.add_argument(
        "--temperature",
        type=float,
        metavar="X",
        help="divides the logits: below 1 safer, above 1 more varied",
    )
    group.add_argument("--top-k", type=int, metavar="K", help="only among the K best tokens")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="only among the best tokens of probability P"
    )
    group.add_argument("--seed", type=int, metavar="N", help="same seed, same samples")


def search_settings(options: argparse.Namespace) -> BeamSearch | Sampling:
    """The run's search settings, changed by what was asked for.

    Raises:
      UserError: There is no such run; a value is out of range, or would go unused.
    """
    from jaxformer.config import load_run
    from jaxformer.search import plain
    from jaxformer.workdir import Workdir

    config = load_run(Workdir(options.workdir))
    settings = plain.to_dict(config.search)
    given = {
        name: value for name in settings if (value := getattr(options, name, None)) is not None
    }
    if getattr(options, "sampling", False):
        given["method"] = "sampling"
    method = given.get("method", settings["method"])
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
    return dataclasses.replace(config, search=plain.from_dict(settings | given)).search


def _flag(field: str) -> str:
    return "--" + field.replace("_", "-")
