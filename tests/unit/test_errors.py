import os
import subprocess
import sys

import pytest

from jaxformer.errors import SomeLinesError, StoppedError, UserError, exit_code


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (UserError("expected x"), 2, "error: expected x\n"),
        (SomeLinesError("2 of 3 lines"), 3, "error: 2 of 3 lines\n"),
        (UserError("a\nb\x1b[31m\u2028\x9bß ¤"), 2, "error: a\\nb\\x1b[31m\\u2028\\x9bß ¤\n"),
        (FloatingPointError("no number"), 1, "error: no number\n"),
        (OSError(28, "No space left on device"), 1, "error: [Errno 28] No space left on device\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
        (StoppedError("step 3 is saved"), 75, "step 3 is saved\n"),
    ],
)
def test_exit_codes(error, code, message, capsys):
    def fail():
        raise error

    assert exit_code(fail) == code
    assert capsys.readouterr().err == message


def test_success_is_silent_and_other_errors_propagate(capsys):
    assert exit_code(lambda: None) == 0
    assert capsys.readouterr().err == ""

    with pytest.raises(ZeroDivisionError):
        exit_code(lambda: print(1 / 0))


USES_A_DEVICE = """
from jaxformer.errors import *
import jax

def fail():
    try:
        jax.numpy.ones(1)
    except BaseException as error:
        raise UserError(error)

raise SystemExit(exit_code(fail))
"""


@pytest.mark.parametrize(
    ("platforms", "cause"),
    [
        ("cuda", "there is none; unset it to use a device"),
        ("cpu,nonsense", "Unable to initialize backend 'nonsense': "),
    ],
)
def test_a_missing_accelerator_is_reported_in_one_line(platforms, cause):
    """Whatever the error is: a reader of checkpoints takes it for damage."""
    result = subprocess.run(
        [sys.executable, "-c", USES_A_DEVICE],
        capture_output=True,
        text=True,
        env={**os.environ, "JAX_PLATFORMS": platforms},
    )

    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"error: expected a device of JAX_PLATFORMS={platforms}: {cause}")


PRINTS_A_SURROGATE = r"""
import sys
from jaxformer.errors import exit_code

sys.exit(exit_code(lambda: print("\u6f22", "\udcff")))
"""


def test_standard_output_is_utf8():
    """A name of a file that is not UTF-8 holds a surrogate."""
    result = subprocess.run(
        [sys.executable, "-c", PRINTS_A_SURROGATE],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
    )

    assert result.returncode == 0
    assert result.stdout == "\u6f22 \\udcff\n".encode()


# Writes to standard error in all the ways of a training run, with old and new handlers.
PROGRAM = """
import logging, os, sys
from tqdm import tqdm
from jaxformer.errors import exit_code

logging.getLogger().addHandler(logging.StreamHandler())

def command():
    for _ in range(3):
        logging.warning("a handler that has the original stream")
        print("a message", file=sys.stderr)
        tqdm.write("above a bar", file=sys.stderr)
        for _ in tqdm(range(3), mininterval=0):
            pass
        if len(sys.argv) > 1:
            os.write(2, b"XLA")
    print("done")

sys.exit(exit_code(command))
"""


@pytest.mark.parametrize("stderr", ["a dead reader", "closed"])
def test_commands_survive_a_closed_standard_error(stderr):
    command = [sys.executable, "-c", PROGRAM]
    if stderr == "closed":
        command = ["sh", "-c", 'exec "$@" 2>&-', "sh", *command]
    else:
        command.append("and descriptor")

    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr
    process.stderr.close()
    out, _ = process.communicate(timeout=60)

    assert process.returncode == 0
    assert out == "done\n"
