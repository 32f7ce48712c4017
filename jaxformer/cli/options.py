"""Options that several commands share."""

import dataclasses
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias, TypeVar

from jaxformer import pretrained
from jaxformer.addresses import Address, fetcher_of
from jaxformer.checks import check_fraction
from jaxformer.cli.signatures import Fields, Option, flag
from jaxformer.cli.source_fields import searches
from jaxformer.errors import UserError
from jaxformer.fields import fields_given
from jaxformer.files import input_path, local_path, model_path, output_path, run_path

if TYPE_CHECKING:
    from jaxformer.inference.autoregressive import AutoregressivePredictor
    from jaxformer.inference.translator import Translator
    from jaxformer.search import BeamSearch, Sampling

PredictorT = TypeVar("PredictorT", bound="AutoregressivePredictor")

_WORKDIR = "run directory of jaxformer train"
_MODEL = f"{_WORKDIR}, or hf://OWNER/NAME on the Hugging Face Hub"
_TRANSLATOR = f"{_MODEL} (default: pretrained, the {pretrained.DESCRIPTION})"
_CHECKPOINT = "auto, averaged, best, latest or a step"
_CHECKPOINTS = f"{_CHECKPOINT}; several, separated by commas, form an ensemble"
_AUTO = " (default: auto, an average with the newest checkpoint that is not worse, else latest)"


def _model(text: str) -> pathlib.Path | Address:
    """Returns a model's workdir, or its address, which :func:`fetch_models` replaces."""
    return Address(text) if fetcher_of(text) else model_path(text)


def fetch_models(values: Any) -> Any:
    """Returns the arguments of a command with a workdir in place of each address."""
    if isinstance(values, Address):
        return model_path(values)
    if isinstance(values, dict):
        return {name: fetch_models(value) for name, value in values.items()}
    if isinstance(values, list):
        return [fetch_models(value) for value in values]
    if isinstance(values, DecoderOptions):
        return dataclasses.replace(values, **fetch_models(vars(values)))
    return values


File: TypeAlias = Annotated[pathlib.Path, Option(metavar="FILE", convert=local_path)]
# Text, which may be a stream; "-" is standard input or standard output.
InputFile: TypeAlias = Annotated[pathlib.Path, Option(metavar="FILE", convert=input_path)]
OutputFile: TypeAlias = Annotated[pathlib.Path, Option(metavar="FILE", convert=output_path)]
Folder: TypeAlias = Annotated[pathlib.Path, Option(metavar="DIR", convert=local_path)]
NewRunDir: TypeAlias = Annotated[
    pathlib.Path,
    Option("workdir to create", metavar="DIR", convert=run_path),
]
RunDir: TypeAlias = Annotated[
    pathlib.Path,
    Option(_WORKDIR, metavar="DIR", convert=run_path),
]
ModelDir: TypeAlias = Annotated[
    pathlib.Path,
    Option(_MODEL, metavar="DIR", convert=_model),
]
# For options whose default is pretrained.WORKDIR.
TranslatorDir: TypeAlias = Annotated[
    pathlib.Path,
    Option(_TRANSLATOR, metavar="DIR", convert=_model),
]

Checkpoint: TypeAlias = Annotated[
    str,
    Option(_CHECKPOINT + _AUTO, group="model", metavar="CHECKPOINT"),
]
Checkpoints: TypeAlias = Annotated[
    str,
    Option(_CHECKPOINTS + _AUTO, group="model", metavar="CHECKPOINT"),
]
Dtype: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "float16", "int8"],
    Option(
        "dtype of the inputs of matrix multiplications: bfloat16, float16 and int8 are faster and "
        "less exact (default: the run's)",
        group="model",
    ),
]
Strict: TypeAlias = Annotated[
    bool,
    Option(
        "refuse an input with a line that is too long or not UTF-8, a file before any work "
        "(default: the line is reported on standard error, and the exit code is 3 when all other "
        "lines are done)",
        group="text",
    ),
]
JsonReport: TypeAlias = Annotated[bool, Option("print the report as JSON")]


def option_names(group: type) -> set[str]:
    """Returns the names of the fields of a dataclass of options."""
    return {field.name for field in dataclasses.fields(group)}


def refuse_options(given: Iterable[str], reason: str) -> None:
    """Refuses options, by the names of their parameters, that a command would ignore."""
    first = next(iter(given), None)
    if first is not None:
        raise UserError(f"{reason}: leave {flag(first)} out")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DecoderOptions:
    """Checkpoints to decode with.

    Model:
      ensemble: workdirs of models with the same tokenizer, whose probabilities are averaged with
        this model's
      amateur: workdir of a worse model with the same tokenizer, for contrastive decoding: prefer
        tokens that it finds less probable
      contrast: with --amateur, choose among tokens with at least X times the largest probability, 0
        to 1 (default: 0.1)
    """

    weights: Checkpoints = "auto"
    ensemble: Sequence[ModelDir] = ()
    dtype: Dtype | None = None
    amateur: ModelDir | None = None
    contrast: float | None = None

    def __post_init__(self) -> None:
        if self.contrast is None:
            return
        if self.amateur is None:
            raise UserError("--contrast needs --amateur DIR, the model to contrast with")
        check_fraction(self.contrast, "--contrast")

    def check_only(self, *supported: str, reason: str) -> None:
        """Refuses options that a command would ignore, all but the ones that it supports."""
        refuse_options((name for name in fields_given(self) if name not in supported), reason)

    def load_as(
        self,
        kind: "type[PredictorT]",
        workdir: pathlib.Path,
        search: "BeamSearch | Sampling",
    ) -> "PredictorT":
        """Loads the model or ensemble, and logs its weights to standard error."""
        from jaxformer.runs.allocator import keep_freed_memory

        keep_freed_memory(training=False)  # before JAX starts its threads

        def load(folder: pathlib.Path, weights: str) -> Any:
            predictor = kind.load(
                folder,
                weights=weights,
                search=search,
                compute_dtype=self.dtype,
            )
            if folder == pretrained.WORKDIR:
                print(f"the {pretrained.DESCRIPTION}; --workdir names another", file=sys.stderr)
            else:
                print(f"{folder}: {predictor.weights}", file=sys.stderr)
            return predictor

        first, *others = [load(folder, self.weights) for folder in [workdir, *self.ensemble]]
        predictor = first.ensemble_with(*others)
        if self.amateur is None:
            return predictor

        # Steps are the expert's.
        amateur = load(self.amateur, "auto")
        if self.contrast is None:
            return predictor.contrast_with(amateur)
        return predictor.contrast_with(amateur, self.contrast)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions(DecoderOptions):
    """Checkpoints to translate with.

    Model:
      shortlist: generate only the words that the model's shortlist has for a batch of sentences,
        which is faster; see jaxformer shortlist
    """

    shortlist: bool = False

    def load(self, workdir: pathlib.Path, search: "BeamSearch | Sampling") -> "Translator":
        """Loads the model or ensemble, and logs its weights to standard error."""
        from jaxformer.inference.translator import Translator

        translator = self.load_as(Translator, workdir, search)
        if self.shortlist:
            translator.load_shortlist(workdir)

        if codes := translator.tokenizer.language_codes:
            print(f"begin each line with a language code: {', '.join(codes)}", file=sys.stderr)
        return translator


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Changes to the run's search.

    Search: Defaults come from the run's config. Scores of allowed hypotheses do not change.

    Beam search: The default, unless the run's config samples.

    Sampling: Instead of beam search.
      sampling: sample instead of searching, and order the samples by score; --samples implies it
    """

    changes: Annotated[dict[str, Any], Fields(searches, "search")]
    sampling: bool = False

    def given(self) -> list[str]:
        """Returns the names of the options that are given."""
        names = list(self.changes)
        if self.sampling:
            names.append("sampling")
        return names

    def check_none(self, *, reason: str) -> None:
        """Refuses all options of a search."""
        refuse_options(self.given(), reason)

    def settings(
        self, workdir: pathlib.Path, default: "BeamSearch | Sampling | None" = None
    ) -> "BeamSearch | Sampling":
        """Returns the run's search with the changes; the options or ``default`` select its kind."""
        from jaxformer.config import read_config
        from jaxformer.runs.workdir import Workdir
        from jaxformer.search import Sampling

        if {"num_samples", "beam_size"} <= self.changes.keys():
            raise UserError("--samples and --beam-size exclude each other; leave one of them out")
        config = read_config(Workdir(workdir))
        run = config.search
        kind = self._kind(default or run)

        beam_fields, sampling_fields = map(option_names, searches())
        own = sampling_fields if kind is Sampling else beam_fields
        self._check_changes(own, is_sampling=kind is Sampling)

        # Settings that only the run's algorithm has are left out.
        values = {name: getattr(run, name) for name in own if hasattr(run, name)}
        # The number of hypotheses has a name of its own in each algorithm.
        number = "num_samples" if kind is Sampling else "beam_size"
        origin = default if isinstance(default, kind) else run
        values.setdefault(number, origin.num_hypotheses)
        try:
            return dataclasses.replace(config, search=kind(**values | self.changes)).search
        except UserError as error:
            names = "|".join(beam_fields | sampling_fields)
            message = re.sub(rf"\b(?:search\.)?({names})\b", lambda name: flag(name[1]), str(error))
            raise UserError(message) from None

    def _kind(self, usual: "BeamSearch | Sampling") -> "type[BeamSearch] | type[Sampling]":
        """Returns the algorithm that the options select, or else the kind of the usual search."""
        from jaxformer.search import BeamSearch, Sampling

        if self.sampling or "num_samples" in self.changes:
            return Sampling
        _, sampling_fields = map(option_names, searches())
        if self.changes.keys() - sampling_fields:
            return BeamSearch
        return type(usual)

    def _check_changes(self, own: set[str], *, is_sampling: bool) -> None:
        """Refuses changes that are no fields of the algorithm, or have no effect."""
        for name, value in self.changes.items():
            if name in own:
                continue
            needs = "--sampling only; add it"
            if is_sampling:
                needs = "beam search only, not --sampling"
            raise UserError(f"{flag(name)} {value} works with {needs}")

        has_penalty = self.changes.get("penalty") != "none"
        if not has_penalty and "length_penalty" in self.changes:
            raise UserError(
                f"--length-penalty {self.changes['length_penalty']} has no effect with "
                "--penalty none; leave one of them out"
            )
