"""The base of predictors that read arrays, such as pictures or sound, and write texts."""

from collections.abc import Callable, Sequence
from typing import ClassVar

from jaxformer.data.characters import replace_controls
from jaxformer.inference.array_inputs import ArrayInput, ArrayInputs
from jaxformer.inference.autoregressive import AutoregressivePredictor
from jaxformer.inference.decoder import Decoder
from jaxformer.inference.hypotheses import Hypothesis, with_texts
from jaxformer.search import Constraint


class ArrayPredictor(AutoregressivePredictor):
    """Models whose encoders read arrays of a fixed shape, with their tokenizer and search."""

    # Most inputs of a batch, which bounds the memory of their encoding.
    most_rows: ClassVar[int] = ArrayInputs.most_rows

    def decode_arrays(
        self,
        inputs: Sequence[ArrayInput],
        *,
        n_best: int = 0,
        max_tokens: int | None = None,
        constraints: Sequence[Constraint] = (),
        report: Callable[[int], object] = lambda finished: None,
    ) -> list[list[Hypothesis]]:
        """Returns the hypotheses of every input, best first, in the order given.

        Args:
          inputs: The inputs. Results do not depend on how they are batched.
          n_best: Number of hypotheses; 0 for all of the search.
          max_tokens: Most tokens of an output; None for as many as the model reads.
          constraints: Constraints in addition to ``config.search.constraints``.
          report: Called with the number of inputs in each finished batch.

        Raises:
          UserError: ``n_best`` is out of range, or a prompt is longer than the model reads.
        """
        self._check_n_best(n_best)
        search = self._constrained_search(constraints)

        plan = ArrayInputs(max_tokens, n_best, self.most_rows)
        found = Decoder(self.models, search, plan).decode(inputs, report=report)
        return [with_texts(found[number], self.detokenize) for number in range(len(inputs))]

    def detokenize(self, ids: Sequence[int]) -> str:
        """Returns the text of token ids, which is one line.

        Control characters such as tabs and line breaks, which byte pieces can spell, become spaces.
        """
        return replace_controls(self.tokenizer.decode(ids))
