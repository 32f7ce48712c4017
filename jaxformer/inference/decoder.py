"""The base of predictors that decode token by token, with one model or several."""

import copy
import pathlib
from typing import Self

from jaxtyping import PyTree

from jaxformer.config import Config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.inference.members import Ensemble, Member
from jaxformer.inference.weights import Predictor, TrainedModel
from jaxformer.search import BeamSearch, Sampling


class Decoder(Predictor):
    """Models with their tokenizer and search; the base of Translator and Generator."""

    def __init__(
        self,
        config: Config,
        params: PyTree,
        tokenizer: Vocabulary,
        weights: str = "given",
    ) -> None:
        """Checks the arguments, which :meth:`load` reads from a workdir."""
        super().__init__(config, params, tokenizer, weights)
        member = Member(config.kind.build(config.model), self.params)
        self.models = Ensemble((member,))

    @classmethod
    def load(
        cls,
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
    ) -> Self:
        """Reads config, tokenizer and parameters; arguments and errors of ``Translator.load``."""
        decoders = []
        for name in str(weights).split(","):
            trained = TrainedModel.load(
                workdir,
                weights=name,
                search=search,
                compute_dtype=compute_dtype,
                kinds=cls.kinds,
            )
            # The models of a workdir share a tokenizer, which is read once.
            tokenizer = decoders[0].tokenizer if decoders else trained.tokenizer
            decoder = cls(
                trained.config,
                trained.params,
                tokenizer,
                weights=trained.weights,
            )
            decoders.append(decoder)

        first, *others = decoders
        return first.ensemble_with(*others)

    def ensemble_with(self, *others: Self) -> Self:
        """Returns an ensemble with other models, which averages the models' probabilities.

        Args:
          *others: Translators or generators, as this one, with the same tokenizer; their models may
            have other architectures.

        Raises:
          UserError: The tokenizers differ.
        """
        decoders = [self, *others]
        for other in others:
            self._check_tokenizer(other, "models of an ensemble")

        together = copy.copy(self)
        members = [member for each in decoders for member in each.models]
        together.models = Ensemble(tuple(members))
        together.weights = ", ".join(each.weights for each in decoders)
        return together

    def _check_tokenizer(self, other: "Decoder", models: str) -> None:
        if other.tokenizer.sha256 == self.tokenizer.sha256:
            return
        raise UserError(
            f"{models} must share a tokenizer: got ones with SHA-256 {self.tokenizer.sha256} and "
            f"{other.tokenizer.sha256}; train all with the same"
        )

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a sequence that all models take."""
        return self.models.max_length
