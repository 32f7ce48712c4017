"""The scripts of benchmarks/: what they print, and what the docs quote of them."""

import inspect
import json
import pathlib
import runpy
import subprocess
import sys
import textwrap

import pytest

PROJECT = pathlib.Path(__file__).parents[3]


def run(script, *arguments, **settings):
    command = [sys.executable, PROJECT / "benchmarks" / script, *arguments]
    return subprocess.run(command, capture_output=True, text=True, **settings)


def check(figures):
    assert 0 < figures["min"] <= figures["median"] <= figures["max"]


@pytest.mark.nightly
def test_decode_prints_a_json_line_for_every_system_and_setting():
    systems = ("ours float32", "ours bfloat16")
    finished = run("decode.py", "--quick", "--systems", *systems, "--beam=2", "--batch", "8", "1")
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [(line["system"], line["beam"], line["batch"]) for line in lines] == [
        (system, 2, batch) for batch in (8, 1) for system in systems
    ]
    for line in lines:
        check(line["milliseconds" if line["batch"] == 1 else "tokens_per_second"])


@pytest.mark.nightly
def test_train_prints_a_json_line_for_every_system():
    finished = run("train.py", "--size", "tiny", "--steps", "2")
    assert finished.returncode == 0, finished.stderr
    lines = [json.loads(line) for line in finished.stdout.splitlines()]
    assert [line["system"] for line in lines] == ["ours float32", "ours bfloat16"]
    for line in lines:
        check(line["tokens_per_second"])
        assert 0 <= line["mfu"] < 1  # rounded
        assert line["flops_per_second"] > 0
        assert line["padding_efficiency"] == line["compilations"] == 1


@pytest.mark.parametrize(
    ("script", "arguments", "message"),
    [
        ("decode.py", ["--systems", "ctranslate2 int8"], "these --systems need --peers"),
        ("train.py", ["--systems", "torch bfloat16"], "these --systems need --peers"),
        (
            "translation_notebook.py",
            ["--train", "a", "--test", "b", "--notebook", "c.ipynb"],
            "--notebook and --peer need each other",
        ),
    ],
)
def test_peers_need_their_interpreter(script, arguments, message):
    finished = run(script, *arguments)
    assert finished.returncode == 2
    assert message in finished.stderr


def test_docs_are_up_to_date():
    table = runpy.run_path(str(PROJECT / "benchmarks" / "communication.py"))["table"]()
    assert table in (PROJECT / "docs" / "scaling.md").read_text(encoding="utf-8")
    notebook = runpy.run_path(str(PROJECT / "benchmarks" / "translation_notebook.py"))
    count = notebook["count_lines"](inspect.getsource(notebook["train_ours"]))
    page = (PROJECT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert f"| lines of code, without blank lines and comments | 327 | {count} |" in page


# A notebook with the names of the original: it learns nothing, and translates to its input.
CELLS = [
    "# a comment\nimport itertools\n\nimport jax.numpy as jnp\nfrom flax import nnx\n!pip list",
    "import grain.python as grain\nsteps = []",
    "response = requests.get(url)",
    "num_val_samples = 1\ntrain_pairs = val_pairs = test_pairs = text_pairs[:0]",
    """
    class Model(nnx.Module):
        def __init__(self, rngs):
            self.positional_embedding = nnx.Embed(7, 3, rngs=rngs)
            self.layer = nnx.Linear(3, 3, rngs=rngs)
            self.dense = nnx.Linear(3, 7, rngs=rngs)

    class Lengths(grain.MapTransform):
        def map(self, pair):
            return {"lengths": len(pair[0]) + len(pair[1])}
    """,
    """
    model = Model(nnx.Rngs(0))
    sampler = grain.IndexSampler(
        len(train_pairs), shuffle=True, seed=1, shard_options=grain.NoSharding(), num_epochs=1
    )
    loader = grain.DataLoader(
        data_source=train_pairs, sampler=sampler, worker_count=1,
        operations=[Lengths(), grain.Batch(batch_size=2)],
    )

    def train_step(batch):
        steps.append(batch)

    def train_one_epoch(epoch):
        for batch in loader:
            train_step(batch)
    """,
    "for epoch in range(3):\n    train_one_epoch(epoch)",
    "raise AssertionError('cells after training do not run')",
    """
    def decode_sequence(sentence):
        assert steps[0]["lengths"].tolist() == [len("one[start] eins [end]")] * 2
        return f"[start] {sentence} [end]"
    """,
]


@pytest.mark.ci
def test_cells_run_on_the_given_pairs_until_the_time_is_over(tmp_path):
    cells = [{"cell_type": "code", "source": [textwrap.dedent(cell).strip()]} for cell in CELLS]
    (tmp_path / "notebook.ipynb").write_text(json.dumps({"cells": cells}))
    for language, lines in {"en": "one\ntwo\n" * 50, "de": "eins\nzwei\n" * 50}.items():
        (tmp_path / f"text.{language}").write_text(lines)
    options = [
        *("--run", "notebook", "--output", "result.json", "--notebook", "notebook.ipynb"),
        *("--peer", sys.executable, "--minutes", "0.01"),
        *("--train", "text", "--test", "text", "--sentences", "1"),
    ]
    run("translation_notebook.py", *options, cwd=tmp_path, check=True)
    result = json.loads((tmp_path / "result.json").read_text())
    code = "\n".join(textwrap.dedent(cell) for cell in CELLS).split("\n")
    assert result["lines"] == sum(bool(line.strip()) for line in code) - 2  # comment, IPython
    layer = 3 * 3 + 3
    assert result["parameters_in_layers"] == layer
    assert result["parameters"] == 7 * 3 + layer + 3 * 7 + 7
    assert 0.01 <= result["minutes"] < 2
    assert result["translations"] == ["one"]
