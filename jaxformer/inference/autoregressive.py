"""The base of predictors that decode token by token, with one model or several."""

import copy
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from jaxtyping import PyTree

from jaxformer.checks import check_fraction
from jaxformer.config import Config
from jaxformer.data.tokenizer import Vocabulary
from jaxformer.errors import UserError
from jaxformer.inference.members import Contrast, Ensemble, Member, Models
from jaxformer.inference.weights import Predictor
from jaxformer.search import Algorithm, BeamSearch, Constraint, Sampling

PredictorT = TypeVar("PredictorT", bound="AutoregressivePredictor")


class AutoregressivePredictor(Predictor):
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
        self.models: Models = Ensemble((member,))

    @classmethod
    def load(
        cls: type[PredictorT],
        workdir: str | pathlib.Path,
        *,
        weights: str | int = "auto",
        search: BeamSearch | Sampling | None = None,
        compute_dtype: str | None = None,
    ) -> PredictorT:
        """Reads config, tokenizer and parameters; arguments and errors as for ``Translator.load``.

        Several weights, separated by commas, form an ensemble.
        """
        predictors = []
        tokenizer = None
        for name in str(weights).split(","):
            predictor = super().load(
                workdir,
                weights=name,
                search=search,
                compute_dtype=compute_dtype,
                tokenizer=tokenizer,
            )
            predictors.append(predictor)
            # The models of a workdir share a tokenizer, which is read once.
            tokenizer = predictor.tokenizer

        first, *others = predictors
        return first.ensemble_with(*others)

    def ensemble_with(self: PredictorT, *others: PredictorT) -> PredictorT:
        """Returns an ensemble with other models, which averages the models' probabilities.

        Args:
          *others: Translators or generators, as this one, with the same tokenizer; their models may
            have other architectures.

        Raises:
          UserError: The tokenizers differ, or one is a contrast.
        """
        predictors = [self, *others]
        members = []
        for each in predictors:
            self._check_tokenizer(each, "models of an ensemble")
            if not isinstance(each.models, Ensemble) and others:
                raise UserError(
                    "an ensemble is made of models: got the contrast of some; form the ensemble "
                    "first, then contrast it"
                )
            members += each.models.experts

        ensemble = copy.copy(self)
        if others:
            ensemble.models = Ensemble(tuple(members))
        ensemble.weights = ", ".join(each.weights for each in predictors)
        return ensemble

    def contrast_with(self: PredictorT, amateur: PredictorT, alpha: float = 0.1) -> PredictorT:
        """Returns a predictor that prefers what an amateur finds less probable (Li et al. 2023).

        The score of a token is its log probability minus the amateur's. Tokens are chosen only
        among those with at least ``alpha`` times the largest probability. Log probabilities of
        hypotheses remain this model's.

        Args:
          amateur: A worse model with the same tokenizer, such as a smaller one, or an ensemble.
          alpha: 0 for all tokens to 1 for the most probable only; the paper's is 0.1.

        Raises:
          UserError: The tokenizers differ, ``alpha`` is out of range, or one is a contrast already.
        """
        self._check_tokenizer(amateur, "expert and amateur")
        check_fraction(alpha, "alpha")
        if not (isinstance(self.models, Ensemble) and isinstance(amateur.models, Ensemble)):
            raise UserError(
                "a contrast is made of two models or ensembles: got the contrast of some"
            )

        contrast = copy.copy(self)
        contrast.models = Contrast(self.models, amateur.models, np.float32(alpha))
        contrast.weights = f"{self.weights}; amateur: {amateur.weights}"
        return contrast

    def _check_n_best(self, n_best: int) -> None:
        num_hypotheses = self.config.search.num_hypotheses
        if not 0 <= n_best <= num_hypotheses:
            raise UserError(
                f"n_best must be from 0 to {num_hypotheses}, the search's hypotheses: got {n_best}"
            )

    def _constrained_search(self, constraints: Sequence[Constraint]) -> Algorithm:
        """Returns the search with further constraints, which apply after its own."""
        search = self.config.search
        all_constraints = (*search.constraints, *constraints)
        return dataclasses.replace(search, constraints=all_constraints)

    def _check_tokenizer(self, other: "AutoregressivePredictor", roles: str) -> None:
        """Checks that another predictor has this one's tokenizer; ``roles`` names the two."""
        if other.tokenizer.sha256 == self.tokenizer.sha256:
            return
        raise UserError(
            f"{roles} must share a tokenizer: got ones with SHA-256 {self.tokenizer.sha256} and "
            f"{other.tokenizer.sha256}; train all with the same"
        )

    @property
    def max_length(self) -> int:
        """Maximum number of tokens of a sequence that all models take."""
        return self.models.max_length
