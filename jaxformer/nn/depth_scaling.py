"""Factors that keep the updates of deep stacks small, of DeepNorm and of GPT-2."""

from typing import Literal, NamedTuple

DepthScalings = Literal["none", "deepnorm", "gpt2"]


class DepthScaling(NamedTuple):
    """Factors of all layers of a stack.

    Attributes:
      residual: Factor on the input of each post-norm residual connection.
      inner_gain: Gain of the initial values of the matrices of attention's values, and of the first
        matrices of feed-forward networks.
      output_gain: Gain of the matrices whose products are added to the residual stream.
    """

    residual: float = 1.0
    inner_gain: float = 1.0
    output_gain: float = 1.0


UNSCALED = DepthScaling()


def scaling_of_stack(name: DepthScalings, num_layers: int) -> DepthScaling:
    """Returns the factors of the only stack of a model: an encoder, or a decoder.

    "deepnorm" is of Wang et al. 2022, table 2. "gpt2" divides the matrices whose products are added
    to the residual stream by the square root of their number (Radford et al. 2019, section 2.3).
    """
    if name == "deepnorm":
        return _deepnorm((2 * num_layers) ** 0.25, (8 * num_layers) ** -0.25)
    return _scaling_by_number(name, 2 * num_layers)


def scaling_of_encoder(
    name: DepthScalings,
    num_layers: int,
    decoder_layers: int,
) -> DepthScaling:
    """Returns the factors of an encoder that has a decoder."""
    if name == "deepnorm":
        product = num_layers**4 * decoder_layers
        return _deepnorm(0.81 * product**0.0625, 0.87 * product**-0.0625)
    return _scaling_by_number(name, 2 * num_layers)


def scaling_of_decoder(name: DepthScalings, num_layers: int) -> DepthScaling:
    """Returns the factors of a decoder that has an encoder, and so three sub-layers a layer."""
    if name == "deepnorm":
        return _deepnorm((3 * num_layers) ** 0.25, (12 * num_layers) ** -0.25)
    return _scaling_by_number(name, 3 * num_layers)


def _deepnorm(alpha: float, beta: float) -> DepthScaling:
    return DepthScaling(residual=alpha, inner_gain=beta, output_gain=beta)


def _scaling_by_number(name: DepthScalings, sublayers: int) -> DepthScaling:
    if name == "gpt2":
        return DepthScaling(output_gain=sublayers**-0.5)
    return UNSCALED
