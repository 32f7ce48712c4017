"""Options that several commands share."""

import dataclasses
import pathlib
import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from jaxformer import pretrained
from jaxformer.cli.signatures import Fields, Value, flag
from jaxformer.errors import UserError
from jaxformer.files import local_path, model_path, run_path

if TYPE_CHECKING:
    from jaxformer.inference.translator import Translator
    from jaxformer.search import BeamSearch, Sampling


def _path(metavar: str, convert: Callable[[str], pathlib.Path], help: str = "") -> Value:
    return Value(help, metavar=metavar, convert=convert)


def _weights(note: str = "") -> Value:
    default = "auto, the average if it includes the newest checkpoint, else latest"
    help = f"auto, averaged, best, latest or a step{note} (default: {default})"
    return Value(help, "model", "CHECKPOINT")


_WORKDIR = "run directory of train.py"
_TRANSLATOR = f"{_WORKDIR} (default: pretrained, the {pretrained.DESCRIPTION})"

File: TypeAlias = Annotated[pathlib.Path, _path("FILE", local_path)]
Folder: TypeAlias = Annotated[pathlib.Path, _path("DIR", local_path)]
NewRunDir: TypeAlias = Annotated[pathlib.Path, _path("DIR", run_path, "workdir to create")]
RunDir: TypeAlias = Annotated[pathlib.Path, _path("DIR", run_path, _WORKDIR)]
ModelDir: TypeAlias = Annotated[pathlib.Path, _path("DIR", model_path, _WORKDIR)]
# Has a default: pretrained.WORKDIR.
TranslatorDir: TypeAlias = Annotated[pathlib.Path, _path("DIR", model_path, _TRANSLATOR)]
Checkpoint: TypeAlias = Annotated[str, _weights()]
Dtype: TypeAlias = Annotated[
    Literal["float32", "bfloat16", "int8"],
    Value(
        "dtype of the inputs of matrix multiplications: bfloat16 and int8 are faster and less "
        "exact (default: the run's)",
        group="model",
    ),
]
Strict: TypeAlias = Annotated[
    bool,
    Value(
        "refuse an input with a line that is too long or not UTF-8, a file before any work "
        "(default: the line is reported on standard error, and the exit code is 3 when all other "
        "lines are done)",
        group="text",
    ),
]
JsonReport: TypeAlias = Annotated[bool, Value("print the report as JSON")]


def searches() -> tuple[type, ...]:
    """Returns the search algorithms."""
    from jaxformer.search import BeamSearch, Sampling  # They import JAX.

    return BeamSearch, Sampling


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Checkpoints to translate with.

    Model:
      ensemble: workdirs of models with the same tokenizer, whose probabilities are averaged with
        this model's
    """

    weights: Annotated[str, _weights("; several, separated by commas, form an ensemble")] = "auto"
    ensemble: Sequence[ModelDir] = ()
    dtype: Dtype | None = None

    def load(self, workdir: pathlib.Path, search: "BeamSearch | Sampling") -> "Translator":
        """Loads the model or ensemble, and logs its weights to standard error.

        Raises:
          UserError: A model is missing or damaged, or the tokenizers of an ensemble differ.
        """
        from jaxformer.inference.translator import Translator

        settings = {"weights": self.weights, "search": search, "compute_dtype": self.dtype}
        folders = [workdir, *self.ensemble]
        models = [Translator.load(folder, **settings) for folder in folders]
        tokenizer = models[0].tokenizer
        for folder, model in zip(folders, models, strict=True):
            if model.tokenizer.sha256 != tokenizer.sha256:
                raise UserError(
                    f"{folder}: expected the tokenizer of {workdir}, to make an ensemble with it, "
                    "but it has another; train both with the same vocabulary"
                )
            if folder == pretrained.WORKDIR:
                print(f"the {pretrained.DESCRIPTION}; --workdir names another", file=sys.stderr)
            else:
                print(f"{folder}: {model.weights}", file=sys.stderr)
        if codes := tokenizer.language_codes:
            print(f"begin each line with a language code: {', '.join(codes)}", file=sys.stderr)
        return models[0].ensemble_with(*models[1:])


@dataclasses.dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Changes of the run's search.

    Search: Defaults come from the run's config. Scores of allowed hypotheses do not change.

    Beam search: The default, unless the run's config samples.

    Sampling: Instead of beam search.
      sampling: sample instead of searching, and order the samples by score; --samples implies it
    """

    changes: Annotated[dict[str, Any], Fields(searches, "search")]
    sampling: bool = False

    def settings(
        self, workdir: pathlib.Path, default: "BeamSearch | Sampling | None" = None
    ) -> "BeamSearch | Sampling":
        """Returns the run's search settings, changed by the options.

        Args:
          workdir: The run directory.
          default: The search if no option selects an algorithm, for a run with another; None to
            use the run's.

        Raises:
          UserError: There is no such run; a value is out of range or would have no effect.
        """
        from jaxformer.config import load_run
        from jaxformer.runs.workdir import Workdir
        from jaxformer.search import BeamSearch, Sampling

        of_beam, of_sampling = (
            {field.name for field in dataclasses.fields(kind)} for kind in (BeamSearch, Sampling)
        )
        if {"num_samples", "beam_size"} <= self.changes.keys():
            raise UserError("--samples and --beam-size exclude each other; leave one of them out")
        config = load_run(Workdir(workdir))
        run = config.search
        kind = BeamSearch if self.changes.keys() - of_sampling else type(default or run)
        kind = Sampling if self.sampling or "num_samples" in self.changes else kind
        if not isinstance(run, kind):
            number = run.num_hypotheses
            new = Sampling(num_samples=number) if kind is Sampling else BeamSearch(beam_size=number)
            new = default if isinstance(default, kind) else new
            run = dataclasses.replace(new, **{n: getattr(run, n) for n in of_beam & of_sampling})
        for name, value in self.changes.items():
            if name not in (of_sampling if isinstance(run, Sampling) else of_beam):
                beam = "beam search only, not --sampling"
                needs = beam if isinstance(run, Sampling) else "--sampling only; add it"
                raise UserError(f"{flag(name)} {value} works with {needs}")
        if self.changes.get("penalty") == "none" and "length_penalty" in self.changes:
            raise UserError(
                f"--length-penalty {self.changes['length_penalty']} has no effect with --penalty "
                "none; leave one of them out"
            )
        try:
            run = dataclasses.replace(run, **self.changes)
            return dataclasses.replace(config, search=run).search
        except UserError as error:
            names = rf"\b(?:search\.)?({'|'.join(of_beam | of_sampling)})\b"
            raise UserError(re.sub(names, lambda name: flag(name[1]), str(error))) from None
