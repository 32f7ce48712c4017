"""Hostile workdirs: a good one, with changes that an attacker might make.

Run as a program, in a process of its own: it loads them one after another under an audit hook, and
prints one JSON line for each.
"""

import contextlib
import dataclasses
import faulthandler
import hashlib
import json
import os
import pathlib
import random
import shutil
import socket
import sys
import time

FIXTURE = pathlib.Path(__file__).parents[1] / "fixtures" / "workdir_8c81d1e" / "run"
STEP = 1200
DEEP = b"[" * 100_000

VALUES = [
    None,
    True,
    -1,
    0,
    3.5,
    2**31,
    10**11,
    10**400,
    float("nan"),
    "",
    "x" * 100_000,
    "\ud800",
    "a\nb\x1b[31m",
    "../../outside/secret",
    "gs://bucket/x",
    "__import__('os').abort()",
    "{0.__class__}",
    "float32[1000000000000]",
    [],
    {},
    [1] * 10_000,
    {"__class__": "os.system"},
]


def make_good(folder):
    """Writes a workdir of this version, whose checkpoint records the model."""
    from jaxformer.inference.weights import TrainedModel
    from jaxformer.runs.checkpoints import write_single

    folder.mkdir()
    for name in ("config.json", "tokenizer.model", "metrics.jsonl", "identity.json"):
        shutil.copy(FIXTURE / name, folder / name)

    trained = TrainedModel.load(FIXTURE)
    tokenizer = json.loads((FIXTURE / "identity.json").read_bytes())["tokenizer"]
    model = dataclasses.asdict(trained.config.model)
    metadata = {"tokenizer": tokenizer, "model": model}
    write_single(
        folder / "checkpoints",
        STEP,
        {"params": trained.params},
        metadata=metadata,
    )
    (folder / "committed.json").write_text(json.dumps({"step": STEP}))


def seal(run):
    """Writes the hashes again, as the author of a workdir can."""
    tokenizer = sha256_of(run / "tokenizer.model")
    step = run / "checkpoints" / str(STEP)
    content = json.loads((step / "manifest.json").read_bytes())["content"]
    content["step"]["metadata"]["tokenizer"] = tokenizer
    for name in content["files"]:
        with contextlib.suppress(OSError):
            content["files"][name] = sha256_of(step / name)
    write_manifest(step, content)

    identity = json.loads((run / "identity.json").read_bytes())
    identity["tokenizer"] = tokenizer
    (run / "identity.json").write_text(json.dumps(identity))


def sha256_of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_manifest(step, content):
    text = json.dumps(content, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    (step / "manifest.json").write_text(json.dumps({"sha256": digest, "content": content}))


def with_content(name, content):
    def change(run):
        (run / name).write_bytes(content)

    return change


def with_other(name, make):
    """Replaces a file by something other than a regular file."""

    def change(run):
        (run / name).unlink()
        make(run / name)

    return change


def with_size(name, size):
    """Changes a size in config and record alike, and in the manifest's arrays, too."""

    def change(run):
        config = json.loads((run / "config.json").read_bytes())
        before = str(config["model"][name])
        config["model"][name] = size
        (run / "config.json").write_text(json.dumps(config))

        step = run / "checkpoints" / str(STEP)
        content = json.loads((step / "manifest.json").read_bytes())["content"]
        content["step"]["metadata"]["model"][name] = size
        leaves = content["step"]["leaves"]
        for leaf, text in leaves.items():
            listed = text.removeprefix("float32[").removesuffix("]")
            sizes = listed.split(",")
            new = {before: str(size)}
            changed = ",".join(new.get(each, each) for each in sizes)
            leaves[leaf] = f"float32[{changed}]"
        write_manifest(step, content)

    return change


def with_array(**changes):
    """Changes the metadata of an array in the database, with the right hashes."""

    def change(run):
        import tensorstore

        step = run / "checkpoints" / str(STEP)
        opening = tensorstore.KvStore.open({"driver": "ocdbt", "base": f"{step.as_uri()}/"})
        store = opening.result()
        key = min(key for key in store.list().result() if key.endswith(b".zarray"))
        values = json.loads(store.read(key).result().value)
        content = json.dumps(values | changes).encode()
        store.write(key, content).result()

        # The change has made new files: the listing follows.
        content = json.loads((step / "manifest.json").read_bytes())["content"]
        files = {p.relative_to(step).as_posix() for p in step.rglob("*") if p.is_file()}
        files -= {"manifest.json", "_CHECKPOINT_METADATA", "commit_success.txt"}
        content["files"] = dict.fromkeys(sorted(files), "")
        write_manifest(step, content)
        seal(run)

    return change


def _socket(path):
    # The names of sockets are short.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _sparse(path):
    with path.open("wb") as file:
        file.truncate(1 << 40)


MANIFEST = f"checkpoints/{STEP}/manifest.json"
DATABASE = f"checkpoints/{STEP}/manifest.ocdbt"
HUGE = [10**9] * 2
# Each must be refused, but for what no parameter needs.
HARMLESS = ("deep record", "array of another store")
HOSTILE = {
    "deep config": with_content("config.json", DEEP),
    "deep record": with_content("metrics.jsonl", b'{"step":' + DEEP),
    "large manifest": with_content(MANIFEST, b"[" + b"[]," * 3_000_000 + b"[]]"),
    "many digits": with_content("committed.json", b'{"step": ' + b"9" * 1_000_000 + b"}"),
    "pickle": with_content(MANIFEST, b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04echo\x85R."),
    "link out": with_other(
        DATABASE, lambda path: path.symlink_to("../../../outside/tokenizer.model")
    ),
    "link to a device": with_other("tokenizer.model", lambda path: path.symlink_to("/dev/zero")),
    "link to itself": with_other(MANIFEST, lambda path: path.symlink_to(path)),
    "FIFO": with_other("config.json", os.mkfifo),
    "FIFO in a checkpoint": with_other(DATABASE, os.mkfifo),
    "socket": with_other("tokenizer.model", _socket),
    "folder": with_other("metrics.jsonl", os.mkdir),
    "sparse": with_other(DATABASE, _sparse),
    "large model": with_size("d_model", 10**11),
    "many layers": with_size("num_layers", 2**20),
    "large array": with_array(shape=HUGE, chunks=HUGE),
    "array of objects": with_array(dtype="|O"),
    "array of another store": with_array(kvstore={"driver": "file", "path": "/etc"}),
}


def flip(path, random):
    content = bytearray(path.read_bytes())
    for _ in range(random.choice([1, 10])):
        place = random.randrange(len(content))
        bit = random.randrange(8)
        content[place] ^= 1 << bit
    path.write_bytes(content)


def mutate_json(root, random):
    """Replaces, removes or adds a value; returns a description."""
    node = root
    trail = []
    while True:
        keys = list(node) if isinstance(node, dict) else range(len(node))
        key = random.choice(keys)
        trail.append(key)
        has_more = isinstance(node[key], dict | list) and node[key]
        if not has_more or random.random() >= 0.8:
            break
        node = node[key]

    kind = random.random()
    value = random.choice(VALUES)
    if kind < 0.8:
        node[key] = value
    elif kind < 0.9:
        del node[key]
    elif isinstance(node, dict):
        node["x" * random.choice([1, 100_000])] = value
    return f"{trail} {kind:.2f} {value!r:.40}"


def mutate(run, seed):
    """Returns a description, and whether parameters may differ from the good ones."""
    generator = random.Random(seed)
    path = run / generator.choice(["config.json", MANIFEST, "tokenizer.model", DATABASE])
    if path.suffix != ".json":  # SentencePiece and TensorStore parse these.
        flip(path, generator)
        seal(run)
        return f"{path.name}: flipped (sealed)", True

    values = json.loads(path.read_bytes())
    is_manifest = "content" in values
    what = mutate_json(values["content"] if is_manifest else values, generator)
    if is_manifest:
        write_manifest(path.parent, values["content"])
    else:
        path.write_text(json.dumps(values))
    return f"{path.name}: {what}", False


class Watch:
    """An audit hook that notes what a workdir must not cause. It cannot be removed again."""

    FORBIDDEN = (
        "pickle.find_class",
        "subprocess.Popen",
        "os.system",
        "os.exec",
        "socket.connect",
        "os.posix_spawn",
        "os.fork",
        "ctypes.dlopen",
    )
    # Allowed within some folders only.
    PATHS = (
        "open",
        "os.listdir",
        "os.scandir",
        "os.rename",
        "os.remove",
        "os.mkdir",
        "os.rmdir",
        "os.chmod",
        "os.link",
        "os.symlink",
        "os.truncate",
        "shutil.rmtree",
    )

    def __init__(self, allowed):
        self.allowed = tuple(map(os.path.realpath, allowed))
        self.on = False
        self.seen = []
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if not self.on:
            return
        forbidden = self._forbidden(event, arguments)
        if forbidden:
            self.seen.append(f"{event} {forbidden}")

    def _forbidden(self, event, arguments):
        if event in self.FORBIDDEN:
            return f"{arguments!r:.100}"

        if event in ("compile", "exec"):
            # Modules are imported, and tracebacks parse the lines that they quote.
            file = arguments[-1] if event == "compile" else arguments[0].co_filename
            if not os.fsdecode(file or "").startswith(self.allowed):
                return f"{arguments!r:.200}"

        if event not in self.PATHS or not isinstance(arguments[0], bytes | str | os.PathLike):
            return None
        # Some calls give a path relative to an open folder.
        folder = arguments[-1] if event in ("os.remove", "os.rmdir") else -1
        start = os.getcwd() if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")
        path = os.path.realpath(os.path.join(start, os.fsdecode(arguments[0])))
        return None if path.startswith(self.allowed) else path


def memory(name):
    """Returns VmRSS or VmHWM, the largest since it was reset, in bytes."""
    for line in pathlib.Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            _, kilobytes, _ = line.split()
            return int(kilobytes) << 10
    raise AssertionError(name)


def load(run):
    """Uses a workdir as the commands do; returns its parameters."""
    from jaxformer.inference.translator import Translator
    from jaxformer.plots.learning_curve import read_metrics
    from jaxformer.runs.workdir import Workdir

    translator = Translator.load(run)
    Workdir(run).committed_step()
    read_metrics(run / "metrics.jsonl")
    return translator.models[0].params


def outcome_of(run, expected):
    """Loads a workdir; returns whether it has the expected parameters, or the error."""
    import jax
    import numpy as np

    from jaxformer.errors import UserError

    try:
        params = load(run)
        same = jax.tree.all(jax.tree.map(np.array_equal, params, expected))
        return "good" if same else "other parameters"
    except UserError as error:
        return f"refused: {error}"
    except BaseException as error:
        return f"{type(error).__name__}: {str(error)[:500]}"


def watched_load(run, expected, watch):
    """Returns the outcome, and what loading took and did."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    began = time.monotonic()
    busy = time.process_time()

    faulthandler.dump_traceback_later(60, exit=True)
    watch.seen = []
    watch.on = True
    outcome = outcome_of(run, expected)
    watch.on = False
    faulthandler.cancel_dump_traceback_later()

    seconds = time.process_time() - busy
    return {
        "outcome": outcome,
        "bytes": memory("VmHWM") - before,
        "seen": watch.seen,
        "seconds": seconds,
        "waited": time.monotonic() - began - seconds,
    }


def main(folder, count):
    root = pathlib.Path(folder)
    good = root / "good"
    run = root / "run"
    make_good(good)
    shutil.copytree(good, root / "outside")
    expected = load(good)
    watch = Watch(
        [
            str(run),
            sys.prefix,
            sys.base_prefix,
            os.environ["JAXFORMER_CACHE"],
            "/proc",
        ]
    )

    def print_result(what, may_differ):
        result = watched_load(run, expected, watch)
        print(json.dumps({"what": what, "may_differ": may_differ, **result}), flush=True)
        shutil.rmtree(run)

    for name, change in HOSTILE.items():
        os.chdir(root)
        shutil.copytree(good, run)
        change(run)
        print_result(name, may_differ=False)

    for seed in range(count):
        os.chdir(root)
        shutil.copytree(good, run)
        what, may_differ = mutate(run, seed)
        print_result(what, may_differ)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
