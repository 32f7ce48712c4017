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
    *(None, True, -1, 0, 3.5, 2**31, 10**11, 10**400, float("nan"), "", "x" * 100_000, "\ud800"),
    *("a\nb\x1b[31m", "../../outside/secret", "gs://bucket/x", "__import__('os').abort()"),
    *("{0.__class__}", "float32[1000000000000]", [], {}, [1] * 10_000, {"__class__": "os.system"}),
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
    write_single(folder / "checkpoints", STEP, {"params": trained.params}, metadata)
    (folder / "committed.json").write_text(json.dumps({"step": STEP}))


def seal(run):
    """Writes the hashes again, as the author of a workdir can."""
    step = run / "checkpoints" / str(STEP)
    content = json.loads((step / "manifest.json").read_bytes())["content"]
    for name in content["files"]:
        with contextlib.suppress(OSError):
            content["files"][name] = hashlib.sha256((step / name).read_bytes()).hexdigest()
    digest = hashlib.sha256((run / "tokenizer.model").read_bytes()).hexdigest()
    content["step"]["metadata"]["tokenizer"] = digest
    write_manifest(step, content)
    identity = json.loads((run / "identity.json").read_bytes())
    (run / "identity.json").write_text(json.dumps({**identity, "tokenizer": digest}))


def write_manifest(step, content):
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
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
        was, config["model"][name] = str(config["model"][name]), size
        (run / "config.json").write_text(json.dumps(config))
        step = run / "checkpoints" / str(STEP)
        content = json.loads((step / "manifest.json").read_bytes())["content"]
        content["step"]["metadata"]["model"][name] = size
        for leaf, text in content["step"]["leaves"].items():
            sizes = [str(size) if n == was else n for n in text[8:-1].split(",")]
            content["step"]["leaves"][leaf] = f"float32[{','.join(sizes)}]"
        write_manifest(step, content)

    return change


def with_array(**changes):
    """Changes the metadata of an array in the database, with the right hashes."""

    def change(run):
        import tensorstore

        step = run / "checkpoints" / str(STEP)
        store = tensorstore.KvStore.open({"driver": "ocdbt", "base": step.as_uri() + "/"}).result()
        key = min(key for key in store.list().result() if key.endswith(b".zarray"))
        values = json.loads(store.read(key).result().value)
        store.write(key, json.dumps(values | changes).encode()).result()
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


MANIFEST, DATABASE = (f"checkpoints/{STEP}/manifest.{end}" for end in ("json", "ocdbt"))
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
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    path.write_bytes(content)


def mutate_json(root, random):
    """Replaces, removes or adds a value."""
    node, trail = root, []
    while True:
        key = random.choice(list(node) if isinstance(node, dict) else range(len(node)))
        trail.append(key)
        if isinstance(node[key], dict | list) and node[key] and random.random() < 0.8:
            node = node[key]
            continue
        kind, value = random.random(), random.choice(VALUES)
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
    what = mutate_json(values.get("content", values), generator)
    if "content" in values:
        write_manifest(path.parent, values["content"])
    else:
        path.write_text(json.dumps(values))
    return f"{path.name}: {what}", False


class Watch:
    """An audit hook that notes what a workdir must not cause. It cannot be removed again."""

    FORBIDDEN = ("pickle.find_class", "subprocess.Popen", "os.system", "os.exec", "socket.connect")
    FORBIDDEN += ("os.posix_spawn", "os.fork", "ctypes.dlopen")
    PATHS = ("open", "os.listdir", "os.scandir", "os.rename", "os.remove", "os.mkdir", "os.rmdir")
    PATHS += ("os.chmod", "os.link", "os.symlink", "os.truncate", "shutil.rmtree")

    def __init__(self, allowed):
        self.allowed = tuple(map(os.path.realpath, allowed))
        self.on, self.seen = False, []
        sys.addaudithook(self)

    def __call__(self, event, arguments):
        if self.on and (path := self._forbidden(event, arguments)):
            self.seen.append(f"{event} {path}")

    def _forbidden(self, event, arguments):
        if event in self.FORBIDDEN:
            return f"{arguments!r:.100}"
        if event in ("compile", "exec"):
            # Modules are imported, and tracebacks parse the lines that they quote.
            file = arguments[-1] if event == "compile" else arguments[0].co_filename
            if not os.fsdecode(file or "").startswith(self.allowed):
                return f"{arguments!r:.200}"
        path = arguments[0] if event in self.PATHS else None
        if not isinstance(path, bytes | str | os.PathLike):
            return None
        folder = arguments[-1] if event in ("os.remove", "os.rmdir") else -1
        folder = os.getcwd() if folder == -1 else os.readlink(f"/proc/self/fd/{folder}")
        path = os.path.realpath(os.path.join(folder, os.fsdecode(path)))
        return None if path.startswith(self.allowed) else path


def memory(name):
    """Returns VmRSS or VmHWM, the largest since it was reset, in bytes."""
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name))


def load(run):
    """Uses a workdir as the commands do; returns its parameters."""
    from jaxformer.inference.translator import Translator
    from jaxformer.plots.learning_curve import read_metrics
    from jaxformer.runs.workdir import Workdir

    translator = Translator.load(run)
    Workdir(run).committed_step()
    read_metrics(run / "metrics.jsonl")
    return translator.models[0][1]


def main(folder, count):
    import jax
    import numpy as np

    from jaxformer.errors import UserError

    root = pathlib.Path(folder)
    good, run = root / "good", root / "run"
    make_good(good)
    shutil.copytree(good, root / "outside")
    expected = load(good)
    watch = Watch([str(run), sys.prefix, sys.base_prefix, os.environ["JAXFORMER_CACHE"], "/proc"])
    for what in (*HOSTILE, *range(count)):
        os.chdir(root)
        shutil.copytree(good, run)
        may_differ = False
        if isinstance(what, str):
            HOSTILE[what](run)
        else:
            what, may_differ = mutate(run, what)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before, began, busy = memory("VmRSS"), time.monotonic(), time.process_time()
        faulthandler.dump_traceback_later(60, exit=True)
        watch.on, watch.seen = True, []
        try:
            params = load(run)
            same = jax.tree.all(jax.tree.map(np.array_equal, params, expected))
            outcome = "good" if same else "other parameters"
        except UserError as error:
            outcome = f"refused: {error}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {str(error)[:500]}"
        watch.on = False
        spent = time.process_time() - busy
        result = {"what": what, "may_differ": may_differ, "outcome": outcome}
        result |= {"bytes": memory("VmHWM") - before, "seen": watch.seen}
        result |= {"seconds": spent, "waited": time.monotonic() - began - spent}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(result), flush=True)
        shutil.rmtree(run)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
