"""Compares the programs that XLA gets from jaxformer in two commits.

    python tests/lowered_programs.py --since COMMIT
    python tests/lowered_programs.py --list

Trains, searches, samples and exports through the public API, once with the code of this working
tree and once with the code of the commit, and has JAX write every program (``jax_dump_ir_to``). Two
programs are equal if their StableHLO text is, apart from the names of functions and of results. A
refactoring changes none of them. Prints a line for each piece of work, with the files of programs
that only one side has, and exits with 1 if there are any.

Programs of fewer than ``_SMALL`` lines are left out: single operations that run outside ``jit``.
``--list`` prints the hash of each program of the working tree.
"""

import argparse
import collections
import contextlib
import hashlib
import itertools
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator

PROJECT = pathlib.Path(__file__).parents[1]
OUTPUT = PROJECT / "build" / "lowered_programs"
FIXTURES = PROJECT / "tests" / "fixtures" / "huggingface"
SENTENCES = ["A dog runs.", "Where is the station?", "I would like a cup of tea, please."]
_SMALL = 25
# Lines of the source that an operation comes from.
_LOCATION = re.compile(r"^#loc.*\n| loc\((?:[^()]|\([^()]*\))*\)", re.MULTILINE)
# A name of a function, such as @main or @"jit(f)", or of an argument or result for people.
_SYMBOL = re.compile(r'@(?:"[^"]*"|[\w.$-]+)')
_LABEL = re.compile(r'(?:, )?jax\.(?:result_info|arg_info) = "[^"]*"')

Work = Callable[[pathlib.Path], None]
WORKS: dict[str, Work] = {}


def work(function: Work) -> Work:
    """Registers a piece of work: a function that gets an empty folder."""
    WORKS[function.__name__] = function
    return function


def _compile_step(name: str, *settings: str) -> None:
    """Compiles the training step of a config at its own sizes, without data."""
    from jaxformer import load_config
    from jaxformer.memory import step_memory

    overrides = [f"--config.{setting}" for setting in settings]
    step_memory(load_config(name, overrides))


@work
def step_base(folder: pathlib.Path) -> None:
    _compile_step("base")


@work
def step_small(folder: pathlib.Path) -> None:
    _compile_step("multi30k")


@work
def step_student(folder: pathlib.Path) -> None:
    _compile_step("student")


@work
def step_language_model(folder: pathlib.Path) -> None:
    _compile_step("shakespeare")


@work
def step_classifier(folder: pathlib.Path) -> None:
    _compile_step("sst2")


@work
def step_images(folder: pathlib.Path) -> None:
    _compile_step("digits")


@work
def step_layers(folder: pathlib.Path) -> None:
    """Compiles gradients with settings that no other piece of work has."""
    _compile_step("numerals", "model.positions=alibi", "model.norm_position=pre")
    _compile_step("numerals", "model.positions=relative", "model.activation=swish")
    _compile_step("numerals", "training.gradient_accumulation=2", "training.remat=layer")


@work
def training_run(folder: pathlib.Path) -> None:
    """Trains a few steps, with validation and a checkpoint, on the numerals."""
    from jaxformer import load_config, train

    train(load_config("numerals:smoke"), folder / "run")


@work
def beam_search(folder: pathlib.Path) -> None:
    from jaxformer import BeamSearch, Translator

    translator = Translator.load(search=BeamSearch(beam_size=4))
    translator.translate(SENTENCES)
    translator.hypotheses(SENTENCES[:1], prefixes=["Ein"])


@work
def greedy_search(folder: pathlib.Path) -> None:
    from jaxformer import BeamSearch, Translator, score_pairs

    translator = Translator.load(search=BeamSearch(beam_size=1))
    translator.translate(SENTENCES)

    source = translator.source_ids("A dog runs.")
    target = translator.target_ids("Ein Hund läuft.")
    score_pairs(translator, [(source, target)])


@work
def sampling(folder: pathlib.Path) -> None:
    from jaxformer import Sampling, Translator

    search = Sampling(num_samples=2, temperature=0.7, top_p=0.9, seed=1)
    Translator.load(search=search).translate(SENTENCES)


def _import(name: str, folder: pathlib.Path) -> pathlib.Path:
    from jaxformer.interop.huggingface.importer import import_huggingface

    run = folder / "run"
    import_huggingface(FIXTURES / name, run)
    return run


@work
def llama(folder: pathlib.Path) -> None:
    from jaxformer import Generator

    Generator.load(_import("llama", folder)).continuations(["a"], max_tokens=6)


@work
def gpt2(folder: pathlib.Path) -> None:
    from jaxformer import Generator

    Generator.load(_import("gpt2", folder)).continuations(["a"], max_tokens=6)


@work
def t5(folder: pathlib.Path) -> None:
    from jaxformer import Translator

    Translator.load(_import("t5", folder)).translate(["a"])


@work
def export(folder: pathlib.Path) -> None:
    """Exports a translator, whose program is read from the file."""
    import jax.export

    from jaxformer import pretrained
    from jaxformer.interop.export import export_model

    export_model("stablehlo", pretrained.WORKDIR, folder / "exported")
    stored = (folder / "exported" / "translate.jax").read_bytes()
    program = jax.export.deserialize(bytearray(stored)).mlir_module()
    (folder / "programs" / "exported.mlir").write_text(program)


def normalize(text: str) -> str:
    """Returns a program without names and places in our files; functions are numbered in order.

    >>> normalize("func @main { call @softmax } func @softmax")
    'func @0 { call @1 } func @1'
    """
    numbers: collections.defaultdict[str, int] = collections.defaultdict(itertools.count().__next__)
    text = _LABEL.sub("", _LOCATION.sub("", text))
    return _SYMBOL.sub(lambda found: f"@{numbers[found[0]]}", text)


def read_programs(folder: pathlib.Path) -> dict[str, pathlib.Path]:
    """Returns the file of each program in a folder, by its hash; equal ones once."""
    programs = {}
    for path in sorted(folder.glob("*.mlir")):
        text = normalize(path.read_text())
        if text.count("\n") >= _SMALL:
            digest = hashlib.sha256(text.encode()).hexdigest()
            programs[digest] = path
    return programs


def run(name: str, code: pathlib.Path, output: pathlib.Path) -> dict[str, pathlib.Path]:
    """Does a piece of work with the code in a folder, and returns its programs by their hash."""
    folder = output / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "programs").mkdir(parents=True)
    environment = os.environ | {
        "PYTHONPATH": str(code),
        "JAX_PLATFORMS": "cpu",
        "JAX_DUMP_IR_TO": str(folder / "programs"),
        "JAX_DUMP_IR_MODES": "stablehlo",
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        # Kept programs would not be lowered again.
        "JAXFORMER_CACHE": str(folder / "cache"),
    }
    # JAX prefers this folder.
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)
    command = [sys.executable, __file__, "--work", name, "--folder", str(folder)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if result.returncode:
        sys.exit(f"{name} failed with the code in {code}:\n{result.stderr}")
    return read_programs(folder / "programs")


@contextlib.contextmanager
def checked_out(commit: str) -> Iterator[pathlib.Path]:
    """Yields a folder with the files of a commit."""
    with tempfile.TemporaryDirectory() as folder:
        code = pathlib.Path(folder, "code")
        command = ["git", "worktree", "add", "--quiet", "--detach", str(code), commit]
        subprocess.run(command, cwd=PROJECT, check=True)
        try:
            yield code
        finally:
            command = ["git", "worktree", "remove", "--force", str(code)]
            subprocess.run(command, cwd=PROJECT, check=True)


def compare(commit: str, names: list[str]) -> bool:
    """Prints which programs differ between a commit and now; returns whether none does."""
    equal = True
    with checked_out(commit) as code:
        for name in names:
            before = run(name, code, OUTPUT / "before")
            after = run(name, PROJECT, OUTPUT / "after")
            lost = [path for digest, path in before.items() if digest not in after]
            new = [path for digest, path in after.items() if digest not in before]
            common = len(before.keys() & after.keys())

            print(
                f"{name}: {common} equal, {len(lost)} before only, {len(new)} now only", flush=True
            )
            for path in [*lost, *new]:
                print(f"  {path}")
            equal = equal and not lost and not new
    return equal


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--since", metavar="COMMIT", help="the commit to compare with")
    parser.add_argument("--only", nargs="+", choices=WORKS, default=list(WORKS), metavar="WORK")
    parser.add_argument("--list", action="store_true", help="print hashes, and compare nothing")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()

    if arguments.work:
        WORKS[arguments.work](arguments.folder)
    elif arguments.list:
        for name in arguments.only:
            for digest, path in run(name, PROJECT, OUTPUT / "after").items():
                print(f"{digest[:16]} {name} {path.name}", flush=True)
    elif arguments.since:
        sys.exit(0 if compare(arguments.since, arguments.only) else 1)
    else:
        parser.error("expected --since COMMIT, or --list")


if __name__ == "__main__":
    main()
