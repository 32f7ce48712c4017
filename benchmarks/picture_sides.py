"""Operations of Swin and of a Vision Transformer against the side of the picture, and a plot.

    python benchmarks/picture_sides.py --output runs/picture_sides

Counts the floating point operations of one forward pass by XLA's analysis of the program, without
running it: Swin-T, and ViT-S/16, which has about as many parameters and operations at 224 pixels.
"""

import argparse
import dataclasses
import math
import pathlib
import sys

import jax
import jax.numpy as jnp

from jaxformer import SwinConfig, ViTConfig
from jaxformer.inference.parameter_arrays import abstract_params
from jaxformer.kinds.image_classification import IMAGE_CLASSIFICATION
from jaxformer.nn.backend import backend, use_backend
from jaxformer.plots import figure

SWIN = "Swin-T, windows of 7 x 7"
VIT = "ViT-S/16, all patches"
MODELS = {
    SWIN: SwinConfig(),
    VIT: ViTConfig(d_model=384, d_ff=1536, num_heads=6),
}
LOOKS = {
    SWIN: (figure.GREEN, "D"),
    VIT: (figure.BLUE, "o"),
}


def operations(config):
    """Returns the floating point operations of one picture."""
    model = IMAGE_CLASSIFICATION.build(config)
    params = abstract_params(config, IMAGE_CLASSIFICATION)
    pixels = jax.ShapeDtypeStruct((1, *config.image_shape), jnp.float32)

    def forward(params, pixels):
        return model.apply({"params": params}, pixels)

    # XLA counts the body of a loop once: layers and scores must not be in loops.
    plain = dataclasses.replace(
        backend(),
        unroll_layers=True,
        scores_per_chunk=sys.maxsize,
        fused_attention=False,
    )
    with use_backend(plain):
        lowered = jax.jit(forward).lower(params, pixels)
    return lowered.cost_analysis()["flops"]


def count(sides):
    """Returns the operations by model and side."""
    found = {}
    for name, config in MODELS.items():
        for side in sides:
            print(f"lowering {name}, {side} pixels", file=sys.stderr)
            sized = dataclasses.replace(config, height=side, width=side)
            found[name, side] = operations(sized)
    return found


def report(sides, found):
    """Formats a table, with the power of the number of pixels at the largest sides."""
    header = " | ".join(f"{side} x {side}" for side in sides)
    lines = [
        "Billions of floating point operations for one picture, by XLA's analysis, and the power "
        "of the number of pixels with which they grow between the two largest pictures.\n",
        f"| model | {header} | power |",
        "|---|" + "--:|" * (len(sides) + 1),
    ]
    for name in MODELS:
        cells = [f"{found[name, side] / 1e9:,.1f}" for side in sides]
        before, last = sides[-2:]
        growth = math.log(found[name, last] / found[name, before])
        power = growth / (2 * math.log(last / before))
        lines.append(f"| {name} | {' | '.join(cells)} | {power:.2f} |")
    return "\n".join(lines) + "\n"


def draw(sides, found, path):
    """Plots operations against the side, with lines that are proportional to pixels and squares."""
    with figure.open_figure(path, 4.6, 3.2) as page:
        axes = page.subplots()
        for name, (color, marker) in LOOKS.items():
            billions = [found[name, side] / 1e9 for side in sides]
            axes.plot(sides, billions, marker + "-", color=color, label=name, ms=4)

        # Both begin at the smallest picture.
        first = sides[0]
        start = found[SWIN, first] / 1e9
        linear = [start * (side / first) ** 2 for side in sides]
        square = [start * (side / first) ** 4 for side in sides]
        axes.plot(sides, linear, ":", color=figure.GRAY, label="proportional to pixels")
        axes.plot(sides, square, "--", color=figure.GRAY, label="to pixels, squared")

        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(sides, [str(side) for side in sides])
        axes.minorticks_off()
        axes.yaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("side of the picture, pixels")
        axes.set_title("Billions of operations for one picture")
        axes.grid(visible=True)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(loc="upper left")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--output", type=pathlib.Path, required=True, metavar="DIR", help="folder to write to")
    sides = [224, 448, 896, 1792, 3584]
    add("--sides", type=int, nargs="+", default=sides, help="multiples of 224 pixels")
    options = parser.parse_args()

    found = count(options.sides)
    options.output.mkdir(parents=True, exist_ok=True)
    table = report(options.sides, found)
    (options.output / "picture_sides.md").write_text(table)
    draw(options.sides, found, options.output / "picture_sides.png")
    print(table)


if __name__ == "__main__":
    main()
