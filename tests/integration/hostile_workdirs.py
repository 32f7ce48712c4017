"""Hostile workdirs: a good one, mutated by a seed as somebody might who wants to do harm.

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
    *(None, True, -1, 0, 1, 3.5, 2**31, 2**63, 10**11, 10**7, 10**400, 1e308, float("nan")),
    *(float("inf"), -float("inf"), "", "x", "x" * 100_000, "a\nb\x1b[31m", "\ud800", "\0"),
    *("../../outside/secret", "/etc/passwd", "file:///etc/passwd", "gs://bucket/x", "~", "."),
    *("__import__('os').abort()", "{0.__class__}", "%s%n", "int8", "float32[1000000000000]"),
    *([], {}, [[]], {"a": {}}, [1] * 10_000, {"__class__": "os.system"}),
]


def make_good(folder):
    """Writes a workdir of this version, whose checkpoint records the model."""
    from jaxformer.checkpoint import write_single
    from jaxformer.config import load
    from jaxformer.inference.weights import load_model

    folder.mkdir()
    for name in ("config.json", "tokenizer.model", "metrics.jsonl", "identity.json"):
        shutil.copy(FIXTURE / name, folder / name)
    _, params = load_model(FIXTURE)
    tokenizer = json.loads((FIXTURE / "identity.json").read_bytes())["tokenizer"]
    model = dataclasses.asdict(load(FIXTURE / "config.json").model)
    metadata = {"tokenizer": tokenizer, "model": model}
    write_single(folder / "checkpoints", STEP, {"params": params}, metadata)
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


# Mutations: functions of a run and a generator that return a description, and whether the
# parameters may differ from the good ones without an error.


def json_value(run, random):
    """Replaces, removes or adds a value of a JSON file."""
    step = f"checkpoints/{STEP}"
    names = ["config.json"] * 4 + ["identity.json", "committed.json", f"{step}/manifest.json"]
    names += [f"{step}/{name}" for name in ("_METADATA", "_CHECKPOINT_METADATA", "_sharding")]
    names += [f"{step}/manifest.json"] * 4
    path = run / random.choice([*names, f"{step}/array_metadatas/process_0"])
    values = json.loads(path.read_bytes())
    sealed = path.name == "manifest.json" and random.random() < 0.8
    root = values["content"] if sealed else values
    what = mutate_json(root, random)
    if sealed:
        write_manifest(path.parent, root)
    else:
        path.write_text(json.dumps(values))
        if path.name not in ("manifest.json", "config.json", "identity.json"):
            seal(run)
    return f"{path.name}{' (sealed)' if sealed else ''}: {what}", False


def mutate_json(root, random):
    node, trail = root, []
    while True:
        keys = list(node) if isinstance(node, dict) else list(range(len(node)))
        if not keys:
            return f"{trail} left empty"
        key = random.choice(keys)
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


def model_of_any_size(run, random):
    """Changes sizes in config and record alike, and in the manifest's arrays, too."""
    name = random.choice(["d_model", "d_ff", "num_heads", "num_layers", "vocab_size", "max_length"])
    size = random.choice([2, 64, 4096, 10**5, 2**20, 10**7, 2**31, 10**11, 10**30])
    config = json.loads((run / "config.json").read_bytes())
    was = config["model"][name]
    config["model"][name] = size
    (run / "config.json").write_text(json.dumps(config))
    step = run / "checkpoints" / str(STEP)
    content = json.loads((step / "manifest.json").read_bytes())["content"]
    content["step"]["metadata"]["model"][name] = size
    leaves = content["step"]["leaves"]
    for leaf, text in leaves.items():
        sizes = [str(size) if n == str(was) else n for n in text[8:-1].split(",")]
        leaves[leaf] = f"float32[{','.join(sizes)}]"
    write_manifest(step, content)
    return f"model.{name}={size} everywhere", name == "max_length"


def text_of_json(run, random):
    """Replaces a whole JSON file."""
    step = f"checkpoints/{STEP}"
    names = ["config.json", "identity.json", "committed.json", f"{step}/manifest.json"]
    path = run / random.choice([*names, f"{step}/_METADATA", f"{step}/_CHECKPOINT_METADATA"])
    good = path.read_bytes()
    texts = {
        **{"deep": DEEP, "deep object": b'{"a":' * 100_000, "closed": DEEP + b"]" * len(DEEP)},
        **{"digits": b'{"step": ' + b"9" * 1_000_000 + b"}", "nul": b"\0" * 1000},
        **{"9 MB": b"[" + b"[]," * 3_000_000 + b"[]]", "8 MB": b"[" + b"{}," * 2_700_000 + b"{}]"},
        **{"utf-16": good.decode().encode("utf-16"), "cut": good[: len(good) // 2]},
        **{"null": b"null", "list": b"[]", "empty": b"", "object": b"{}"},
        "pickle": b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x04echo\x85R.",
    }
    name = random.choice(list(texts))
    path.write_bytes(texts[name])
    if path.name.startswith("_"):
        seal(run)
    return f"{path.name}: {name}", False


def other_file(run, random):
    """Replaces a file or a folder by something else, or adds a file."""
    path = random.choice(in_order(run.rglob("*")))
    name, kind = path.relative_to(run).as_posix(), random.choice([*KINDS, "extra", "hidden"])
    if kind in ("extra", "hidden"):
        folder = path if path.is_dir() else path.parent
        (folder / (".hidden" if kind == "hidden" else "0")).write_bytes(b"x")
        return f"{name}: {kind}", False
    elsewhere = run.parent / "outside" / name
    content = path.read_bytes() if path.is_file() else b""
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    KINDS[kind](path, elsewhere, content, random)
    return f"{name}: {kind}", False


def in_order(paths):
    """Sorts paths, since the names of OCDBT's files are random."""
    return sorted(paths, key=lambda path: (path.parent.parts, path.stat().st_size, path.name))


def _socket(path, *_):
    # The names of sockets are short.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _sparse(path, *_):
    with path.open("wb") as file:
        file.truncate(1 << 40)


KINDS = {
    "missing": lambda path, *_: None,
    "link out": lambda path, elsewhere, *_: path.symlink_to(elsewhere),
    "link to a device": lambda path, *_: path.symlink_to("/dev/zero"),
    "link to itself": lambda path, *_: path.symlink_to(path),
    "link to nothing": lambda path, *_: path.symlink_to("nothing"),
    "FIFO": lambda path, *_: os.mkfifo(path),
    "socket": _socket,
    "folder": lambda path, *_: path.mkdir(),
    "empty": lambda path, *_: path.write_bytes(b""),
    "sparse": _sparse,
    "garbage": lambda path, _, __, random: path.write_bytes(random.randbytes(5000)),
    "flipped": lambda path, _, content, random: path.write_bytes(flip(content or b"x", random)),
    "cut": lambda path, _, content, random: path.write_bytes(content[:-1]),
    "doubled": lambda path, _, content, random: path.write_bytes(content * 2 or b"x"),
}


def flip(content, random):
    content = bytearray(content)
    for _ in range(random.choice([1, 1, 10])):
        content[random.randrange(len(content))] ^= 1 << random.randrange(8)
    return bytes(content)


def native(run, random):
    """Flips bits in what orbax, TensorStore and SentencePiece parse, with the right hashes."""
    step = run / "checkpoints" / str(STEP)
    names = [path for path in step.rglob("*") if path.is_file() and path.name[0] not in "m_"]
    names += [step / "manifest.ocdbt", run / "tokenizer.model", run / "tokenizer.model"]
    path = random.choice(in_order(names))
    path.write_bytes(flip(path.read_bytes(), random))
    seal(run)
    return f"{path.relative_to(run)}: flipped (sealed)", True


def arrays(run, random):
    """Changes the metadata or the content of an array in the database, with the right hashes."""
    import tensorstore

    step = run / "checkpoints" / str(STEP)
    database = {"driver": "ocdbt", "base": step.as_uri() + "/"}
    store = tensorstore.KvStore.open(database).result()
    key = random.choice([key for key in store.list().result() if key.endswith(b".zarray")])
    values = json.loads(store.read(key).result().value)
    chunk = key.replace(b".zarray", b".".join([b"0"] * len(values["shape"])))
    huge = [10**9] * len(values["shape"])
    changes = {
        **{"huge shape": {"shape": huge}, "huge chunks": {"chunks": huge}},
        **{"huge": {"shape": huge, "chunks": huge}, "chunks": {"chunks": [10**5] * len(huge)}},
        **{"strings": {"dtype": "|S1000000000"}, "fields": {"dtype": [["a", "<f4", [10**9]]]}},
        **{"object": {"dtype": "|O"}, "float64": {"dtype": "<f8"}},
        "compressor": {"compressor": {"id": "blosc", "cname": "lz4", "clevel": 1, "shuffle": 9}},
        **{"no compressor": {"compressor": None}, "filters": {"filters": [{"id": "pickle"}]}},
        "value": {random.choice(list(values)): random.choice(VALUES[:26])},
        **{"chunk": None, "driver": None},
    }
    name = random.choice(list(changes))
    if name == "chunk":
        store.write(chunk, random.randbytes(100)).result()
    elif name == "driver":
        other = {"driver": "file", "path": str(run.parent / "outside")}
        store.write(key, json.dumps({**values, "kvstore": other}).encode()).result()
    else:
        store.write(key, json.dumps(values | changes[name]).encode()).result()
    # The change has made new files: the listing follows.
    content = json.loads((step / "manifest.json").read_bytes())["content"]
    files = {p.relative_to(step).as_posix() for p in step.rglob("*") if p.is_file()}
    files -= {"manifest.json", "_CHECKPOINT_METADATA", "commit_success.txt"}
    content["files"] = dict.fromkeys(sorted(files), "")
    write_manifest(step, content)
    seal(run)
    return f"{key.decode()}: {name}", True


def metrics(run, random):
    path = run / "metrics.jsonl"
    lines = path.read_bytes().splitlines()
    record = json.loads(lines[0])
    texts = [DEEP, b'{"step":' + DEEP, b"9" * 10**6, b"\0" * 1000, b'{"kind": [], "step": 1}']
    for value in VALUES:
        texts.append(json.dumps({**record, random.choice(list(record)): value}).encode())
    lines[random.randrange(len(lines))] = random.choice(texts)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return "metrics.jsonl: a line", False


MUTATIONS = [json_value] * 5 + [other_file] * 5 + [model_of_any_size, text_of_json, native, arrays]
MUTATIONS += [metrics, arrays]


def mutate(run, seed):
    generator = random.Random(seed)
    return generator.choice(MUTATIONS)(run, generator)


def mutate_model(folder, seed):
    """Mutates a folder with a Marian model."""
    generator = random.Random(seed)
    path = generator.choice(sorted(folder.iterdir()))
    content, kind = path.read_bytes(), generator.random()
    if path.suffix == ".json" and kind < 0.7:
        values = json.loads(content)
        what = mutate_json(values, generator)
        path.write_text(json.dumps(values))
    elif path.suffix == ".safetensors" and kind < 0.7:
        size = int.from_bytes(content[:8], "little")
        values = json.loads(content[8 : 8 + size])
        what = mutate_json(values, generator)
        header = json.dumps(values).encode()
        given = generator.choice([*[len(header)] * 4, 0, len(header) - 1, 10**8, 2**63])
        path.write_bytes(given.to_bytes(8, "little") + header + content[8 + size :])
    else:
        path.unlink()
        what = generator.choice(list(KINDS))
        KINDS[what](path, folder.parent / "elsewhere", content, generator)
    return f"{path.name}: {what}"


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
    from jaxformer.workdir import Workdir

    translator = Translator.load(run)
    Workdir(run).committed_step()
    read_metrics(run / "metrics.jsonl")
    return translator.models[0][1]


def main(folder, first, count):
    import jax
    import numpy as np

    from jaxformer.errors import UserError

    root = pathlib.Path(folder)
    good, run = root / "good", root / "run"
    make_good(good)
    shutil.copytree(good, root / "outside")
    expected = load(good)
    watch = Watch([str(run), sys.prefix, sys.base_prefix, os.environ["JAXFORMER_CACHE"], "/proc"])
    for seed in range(first, first + count):
        os.chdir(root)
        shutil.copytree(good, run)
        what, may_differ = mutate(run, seed)
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
        result = {"seed": seed, "what": what, "may_differ": may_differ, "outcome": outcome}
        result |= {"bytes": memory("VmHWM") - before, "seen": watch.seen}
        result |= {"seconds": spent, "waited": time.monotonic() - began - spent}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(result), flush=True)
        shutil.rmtree(run)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
