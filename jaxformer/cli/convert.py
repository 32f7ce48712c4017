"""The commands ``average``, ``quantize``, ``import`` and ``export``, which convert models."""

import argparse

from jaxformer.cli import decoding_options
from jaxformer.inference import quantization, weights
from jaxformer.runs.workdir import Workdir


def average(options: argparse.Namespace) -> None:
    """Averages the newest checkpoints of a run (section 6.1)."""
    folder = Workdir(options.workdir)
    steps = weights.average(folder, options.last)
    print(f"{folder.averaged}: average of steps {', '.join(map(str, steps))}")


def quantize(options: argparse.Namespace) -> None:
    """Quantizes a model's parameters to int8."""
    before, after = quantization.quantize(options.workdir, options.output, weights=options.weights)
    print(
        f"{options.output}: parameters of {after / 1e6:.1f} MB instead of {before / 1e6:.1f} MB "
        f"({before / after:.2f} times smaller)"
    )


def import_model(options: argparse.Namespace) -> None:
    """Converts another system's model to a workdir."""
    from jaxformer.interop.hub import marian_folder
    from jaxformer.interop.marian import COMMAND, import_marian

    Workdir(options.workdir).check_writable(COMMAND)  # before a download
    folder = marian_folder(options.directory)
    print(f"{options.workdir}: {import_marian(folder, options.workdir)}")


def export_model(options: argparse.Namespace) -> None:
    """Converts a model for another system."""
    from jaxformer.export.command import export_model

    summary = export_model(
        options.format,
        options.workdir,
        options.output,
        weights=options.weights,
        search=decoding_options.search_settings(options),
        compute_dtype=options.dtype,
    )
    print(f"{options.output}: {summary}")
