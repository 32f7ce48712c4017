"""Uses untrusted files in every way, under an audit hook; prints what they caused as JSON.

Each use runs twice: the first one imports modules and compiles programs.
"""

import contextlib
import gzip
import json
import os
import pathlib
import shutil
import sys

from hostile_workdirs import FIXTURE, Watch

# Python that would betray itself.
CODE = "__import__('os').system('touch\\tbetrayed')"
MARIAN = pathlib.Path(__file__).parents[1] / "fixtures" / "marian" / "swish_tied"


def use_workdir(root):
    from jaxformer.inference.conversions import average
    from jaxformer.inference.translator import Translator
    from jaxformer.inference.weights import load_model
    from jaxformer.plots.learning_curve import learning_curve, read_metrics
    from jaxformer.runs.workdir import Workdir
    from jaxformer.search import BeamSearch

    run = shutil.copytree(FIXTURE, root / "run", dirs_exist_ok=True)
    translator = Translator.load(run, search=BeamSearch(beam_size=1, max_length=16))
    assert translator.translate(["two hundred and six"])[0]
    translator.translate([CODE], prefixes=[CODE])

    load_model(run, weights="best")
    average(Workdir(run), 1)
    Translator.load(run, weights="averaged")
    learning_curve({"run": read_metrics(run / "metrics.jsonl")}, root / "curve.png")


def import_model(root):
    from jaxformer.interop.marian.importer import import_marian

    shutil.rmtree(root / "imported", ignore_errors=True)
    import_marian(MARIAN, root / "imported")


def read_corpora(root):
    from jaxformer.data.file_corpora import TextCorpus
    from jaxformer.data.text_files import read_file
    from jaxformer.errors import UserError
    from jaxformer.evaluation.evalb import read_parameters, score
    from jaxformer.tasks.parsing.treebank import TreesCorpus, normalized_trees

    text = root / "text"
    (root / "text.en").write_text(f"{CODE}\n")
    (root / "text.de.gz").write_bytes(gzip.compress(f"{CODE}\n".encode()))
    corpus = TextCorpus("en", "de")
    assert list(corpus.pairs(str(text))) == [(CODE, CODE)]
    corpus.fingerprint(str(text))

    trees = root / "trees"
    word = CODE.replace("(", "-LRB-").replace(")", "-RRB-")
    tree = f"(S (NP (NN {word})) (VP (VB x)))\n"
    trees.write_text(tree + "(" * 50_000 + "\n")
    with contextlib.suppress(UserError):
        list(normalized_trees(trees))
    trees.write_text(tree)
    assert len(list(TreesCorpus().pairs(str(trees)))) == 1

    (root / "params.prm").write_text("DELETE_LABEL TOP\n")
    parameters = read_parameters(read_file(root / "params.prm"), "params.prm")
    score([tree], [tree], parameters)


def read_configs(root):
    from jaxformer.config import read_config
    from jaxformer.errors import UserError
    from jaxformer.runs.workdir import Workdir

    config = json.loads((FIXTURE / "config.json").read_bytes())
    for section in config:
        changed = config | {section: {"a": CODE}, CODE: CODE}
        (root / "config.json").write_text(json.dumps(changed))
        with contextlib.suppress(UserError):
            read_config(Workdir(root))


def main(folder):
    os.chdir(folder)  # The hook cannot tell which folder a relative path is in.
    root = pathlib.Path(folder)
    uses = (use_workdir, import_model, read_corpora, read_configs)
    watch = Watch([folder, sys.prefix, sys.base_prefix, str(FIXTURE), str(MARIAN), "/proc"])
    for use in uses:
        use(root)

    seen = {}
    for use in uses:
        watch.seen = []
        watch.on = True
        use(root)
        watch.on = False
        seen[use.__name__] = watch.seen
    print(json.dumps(seen))


if __name__ == "__main__":
    main(sys.argv[1])
