"""Dynamic loss scaling, for layers that compute in float16 (Micikevicius et al. 2018).

Gradients below 6e-8 are 0 in float16. The loss is therefore multiplied by a scale, and the sum of
its gradients, in float32, is divided by it. A scale that makes gradients overflow is halved, and
their step is skipped; after many steps without overflow, it is doubled.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, Int

from jaxformer.training.placement import replicated

_INITIAL = 2.0**15
_SMALLEST = 1.0
_GROWTH_STEPS = 2000  # as in Micikevicius et al. and in PyTorch


class LossScale(NamedTuple):
    """The state of the scale.

    Attributes:
      value: Factor on the loss, a power of two, float32.
      good_steps: Steps without overflow since the last change of the scale, int32.
    """

    value: Float[Array, ""]
    good_steps: Int[Array, ""]

    @classmethod
    def initial(cls) -> "LossScale":
        return cls(jnp.float32(_INITIAL), jnp.int32(0))

    @classmethod
    def from_json(cls, saved: Mapping[str, Any] | None, mesh: Mesh) -> "LossScale":
        """Returns the scale that :meth:`to_json` saved, or the initial one, on all devices."""
        saved = saved or {"value": _INITIAL, "good_steps": 0}

        def place(value: np.generic) -> jax.Array:
            array = np.asarray(value)
            return jax.make_array_from_callback((), replicated(mesh), lambda _: array)

        return cls(
            value=place(np.float32(saved["value"])),
            good_steps=place(np.int32(saved["good_steps"])),
        )

    def to_json(self) -> dict[str, Any]:
        return {"value": float(self.value), "good_steps": int(self.good_steps)}

    def can_fall(self) -> Bool[Array, ""]:
        """Returns whether a smaller scale may cure an overflow."""
        return self.value > _SMALLEST

    def after(self, finite: Bool[Array, ""]) -> "LossScale":
        """Returns the scale after a step whose gradients were ``finite``, or overflowed."""
        good_steps = self.good_steps + 1
        is_due = good_steps == _GROWTH_STEPS

        grown = jnp.where(is_due, 2 * self.value, self.value)
        fallen = jnp.maximum(self.value / 2, _SMALLEST)
        return LossScale(
            value=jnp.where(finite, grown, fallen),
            good_steps=jnp.where(finite & ~is_due, good_steps, 0),
        )
