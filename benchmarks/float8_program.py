"""Counts the float8 matmuls in XLA's program of a training step, for the device at hand.

    python benchmarks/float8_program.py
    python benchmarks/float8_program.py --config shakespeare

On NVIDIA GPUs from Hopper on, XLA replaces a conversion from float8, a scale and a matmul by one
call of cuBLASLt; everywhere else it multiplies in bfloat16. Compiles the step of a config in
float8, without data, and prints one JSON line with the number of these calls, the number of other
matmuls, and the device. Not run on a GPU so far.
"""

import argparse
import json
import re

from machine import machine

from jaxformer import load_config
from jaxformer.memory import compile_step

FLOAT8_CALL = '"__cublas$lt$matmul$f8"'
OTHER_MATMUL = re.compile(r' dot\(|"__cublas\$gemm"|"__cublas\$lt\$matmul"')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="base")
    options = parser.parse_args()

    config = load_config(options.config, ["--config.model.compute_dtype=float8"])
    text = compile_step(config).as_text() or ""
    found = {
        "config": options.config,
        "float8_matmuls": text.count(FLOAT8_CALL),
        "other_matmuls": len(OTHER_MATMUL.findall(text)),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
