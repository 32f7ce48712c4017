"""The translation notebook of jax-ai-stack beside jaxformer: lines, parameters and BLEU.

    python benchmarks/translation_notebook.py --notebook JAX_machine_translation.ipynb \
        --peer /path/to/environment/bin/python --train DATA/train --test DATA/test \
        --source en --target de --minutes 30

Both train on the pairs TRAIN.en and TRAIN.de for the same time, one after the other on one machine,
and translate the same sentences of TEST.en. Reading data and compiling count as training.
One scorer scores both. The notebook's translations are lowercased and have no punctuation, so BLEU
is also computed with that rule applied to both systems and the references. A JSON line per system.

The notebook's code is not part of this repository: get the file from the repository
jax-ml/jax-ai-stack, docs/source. Its cells run as they are in the interpreter given by --peer, with
jax, flax, optax, grain, tiktoken and tqdm, but for four changes: pairs come from TRAIN instead of a
download, all of them are trained on, training stops when the time is over instead of after ten
epochs, and TEST is translated instead of ten random sentences.

tiktoken downloads its vocabulary. Without a network, name a folder that has it with
TIKTOKEN_CACHE_DIR.
"""

import argparse
import contextlib
import inspect
import json
import pathlib
import re
import signal
import string
import subprocess
import sys
import tempfile
import time
from typing import Any


def main() -> None:
    """Runs both systems in processes of their own, scores them and prints their lines."""
    options = parse_arguments()
    if options.run:
        return {"ours": ours, "notebook": notebook}[options.run](options)
    from machine import machine

    facts = machine()
    script = pathlib.Path(__file__).resolve()
    given = [f"--{name}={value}" for name, value in vars(options).items() if value is not None]
    interpreters = {"ours": sys.executable}
    if options.peer:
        interpreters["notebook"] = options.peer
    for name, python in interpreters.items():
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "result.json"
            command = [python, script, *given, "--run", name, "--output", str(output)]
            subprocess.run(command, check=True, cwd=folder)
            result = json.loads(output.read_text(encoding="utf-8"))
        translations = result.pop("translations")
        line = {"system": name} | result | scores(translations, options) | facts
        print(json.dumps(line), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )

    def absolute(path: str) -> pathlib.Path:
        return pathlib.Path(path).absolute()

    parser.add_argument("--train", type=absolute, required=True, help="text files, less .en")
    parser.add_argument("--test", type=absolute, required=True, help="text files, less .en")
    parser.add_argument("--source", default="en", help="language (%(default)s)")
    parser.add_argument("--target", default="de", help="language (%(default)s)")
    parser.add_argument("--minutes", type=float, default=30, help="to train (%(default)s)")
    parser.add_argument("--sentences", type=int, default=500, help="to translate (%(default)s)")
    parser.add_argument("--notebook", type=absolute, help="the file of the notebook")
    parser.add_argument("--peer", metavar="PYTHON", help="interpreter for the notebook")
    parser.add_argument("--run", choices=("ours", "notebook"), help=argparse.SUPPRESS)
    parser.add_argument("--output", type=absolute, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if bool(options.notebook) != bool(options.peer):
        parser.error("--notebook and --peer need each other")
    return options


def read(prefix: pathlib.Path, language: str) -> list[str]:
    """Returns the lines of one side."""
    text = pathlib.Path(f"{prefix}.{language}").read_text(encoding="utf-8")
    return text.removesuffix("\n").split("\n")


def scores(translations: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """Computes sacreBLEU as it is, and lowercased without punctuation."""
    from jaxformer.evaluation.bleu_report import corpus_bleu

    references = read(options.test, options.target)[: options.sentences]
    bare_translations = list(map(without_punctuation, translations))
    bare_references = list(map(without_punctuation, references))
    return {
        "sentences": len(references),
        "bleu": corpus_bleu(translations, references, target_language=options.target),
        "bleu_lowercase_without_punctuation": corpus_bleu(
            bare_translations, bare_references, target_language=options.target
        ),
        "examples": translations[:5],
    }


def without_punctuation(line: str) -> str:
    """Returns the line in lowercase, without ASCII punctuation."""
    return re.sub(f"[{re.escape(string.punctuation)}¿]", "", line.lower())


def count_lines(source: str) -> int:
    """Returns the number of lines of code, without blank lines and comments."""
    lines = (line.strip() for line in source.split("\n"))
    return sum(bool(line) and not line.startswith("#") for line in lines)


def write(options: argparse.Namespace, **result: Any) -> None:
    """Writes the result of a system for the process that scores it."""
    options.output.write_text(json.dumps(result), encoding="utf-8")


def ours(options: argparse.Namespace) -> None:
    """Trains a small Transformer until the time is over, and translates."""
    import jax

    from jaxformer import load_model

    sources = read(options.test, options.source)[: options.sentences]
    start = time.monotonic()
    translate = train_ours(options, "run", start + 60 * options.minutes)
    trained = time.monotonic() - start
    translations = translate(sources)
    _, params = load_model("run")
    embedding = params["embedding"].size
    total = sum(leaf.size for leaf in jax.tree.leaves(params))
    write(
        options,
        lines=count_lines(inspect.getsource(train_ours)),
        parameters=total,
        parameters_in_layers=total - embedding,
        minutes=trained / 60,
        translations=translations,
    )


def train_ours(options, workdir, deadline):
    from jaxformer import Config, DataConfig, ModelConfig, TrainingConfig, Translator, train

    config = Config(
        model=ModelConfig(
            vocab_size=8000,
            d_model=256,
            d_ff=1024,
            num_heads=4,
            num_layers=3,
            max_length=256,
            compute_dtype="bfloat16",
        ),
        data=DataConfig(
            corpus="text",
            train=str(options.train),
            valid=str(options.test),
            source_language=options.source,
            target_language=options.target,
            tokens_per_batch=4096,
            max_length=100,
        ),
        training=TrainingConfig(
            steps=10**6, warmup_steps=2000, checkpoint_every=10**6, eval_every=10**6
        ),
    )

    def stop_in_time(step, state, sums):
        if time.monotonic() > deadline:
            signal.raise_signal(signal.SIGTERM)  # saves a checkpoint

    with contextlib.suppress(KeyboardInterrupt):
        train(config, workdir, hooks=[stop_in_time])
    return Translator.load(workdir).translate


def notebook(options: argparse.Namespace) -> None:
    """Runs the notebook's cells until the time is over, and translates with its function."""
    from absl import flags

    flags.FLAGS.mark_as_parsed()  # Grain reads them, and outside a kernel nothing parses them.
    cells = code_cells(options.notebook)
    sides = [read(options.train, language) for language in (options.source, options.target)]
    pairs = [(source, f"[start] {target} [end]") for source, target in zip(*sides, strict=True)]
    sources = read(options.test, options.source)[: options.sentences]
    names: dict[str, Any] = {"__name__": "__main__"}  # as in a kernel
    start = time.monotonic()
    for cell in cells:
        if "requests.get" in cell:
            names["text_pairs"] = pairs
        elif "num_val_samples =" in cell:
            names |= {"train_pairs": pairs, "val_pairs": pairs[:1000], "test_pairs": pairs[:1000]}
        elif re.search(r"^for epoch in", cell, flags=re.M):
            train_in_time(names, start + 60 * options.minutes)
            break
        else:
            exec(compile(cell, str(options.notebook), "exec"), names)
    trained = time.monotonic() - start
    (decode,) = (cell for cell in cells if "def decode_sequence" in cell)
    exec(compile(decode, str(options.notebook), "exec"), names)
    translations = [names["decode_sequence"](source) for source in sources]
    write(
        options,
        lines=count_lines("\n".join(cells)),
        **parameters(names["model"]),
        minutes=trained / 60,
        translations=[re.sub(r"\[start\]?|\[end\]?", "", line).strip() for line in translations],
    )


def code_cells(path: pathlib.Path) -> list[str]:
    """Returns the code of a notebook, without the commands of IPython."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    return [re.sub(r"^[!%].*$", "", source, flags=re.M) for source in sources]


def train_in_time(names: dict[str, Any], deadline: float) -> None:
    """Repeats the notebook's epochs, without validation, and ends within one of them."""
    step = names["train_step"]

    def step_in_time(*arguments: Any) -> Any:
        loss = step(*arguments)
        if time.monotonic() > deadline:
            raise TimeoutError
        return loss

    names["train_step"] = step_in_time
    try:
        for epoch in range(10**6):
            names["train_one_epoch"](epoch)
    except TimeoutError:
        names["model"].eval()  # as the validation at the end of an epoch does


def parameters(model: Any) -> dict[str, int]:
    """Counts parameters; layers are all but the embeddings and the output matrix."""
    import jax
    from flax import nnx

    def size(module: Any) -> int:
        return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(module, nnx.Param)))

    outside = size(model.positional_embedding) + size(model.dense)
    return {"parameters": size(model), "parameters_in_layers": size(model) - outside}


if __name__ == "__main__":
    main()
