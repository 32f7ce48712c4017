"""Reads files like pytorch_model.bin that somebody else made; prints what each caused as JSON.

The files in ``PROGRAMS`` run code if they are unpickled, which this program checks with the real
unpickler, after reading.
"""

import contextlib
import faulthandler
import io
import json
import os
import pathlib
import pickle
import sys
import time
import zipfile

from hostile_workdirs import Watch, memory


def text(value):
    data = value.encode()
    return b"X" + len(data).to_bytes(4, "little") + data


def number(value):
    size = value.bit_length() // 8 + 1
    return b"\x8a" + bytes([size]) + value.to_bytes(size, "little", signed=True)


def numbers(values):
    return b"(" + b"".join(map(number, values)) + b"t"


def tensor(key, size, *, offset=0, shape=None, stride=(1,), dtype=b"Float"):
    """Returns opcodes that build a tensor, as torch.save writes them."""
    storage = b"(" + text("storage") + b"ctorch\n" + dtype + b"Storage\n" + text(key)
    storage += text("cpu") + number(size) + b"tQ"
    views = number(offset) + numbers((size,) if shape is None else shape) + numbers(stride)
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + views + hooks + b"tR"


def state(items):
    """Returns the pickle of a state dictionary, given the opcodes of each value."""
    body = b"".join(text(name) + value for name, value in items.items())
    versions = b"}" + text("_metadata") + b"ccollections\nOrderedDict\n)Rsb"
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + body + b"u" + versions + b"."


def archive(pickled, members=(), compression=zipfile.ZIP_STORED):
    """Returns a zip archive as torch.save writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("archive/data.pkl", pickled)
        for name, content in dict(members).items():
            file.writestr(f"archive/{name}", content)
    return buffer.getvalue()


def one(value, content=bytes(8), **members):
    """Returns an archive with one tensor and the storage "0"."""
    return archive(state({"w": value}), {"data/0": content, **members})


SYSTEM = text("touch betrayed")
# These run a command when they are unpickled.
PROGRAMS = {
    "reduce": lambda: archive(b"\x80\x02cposix\nsystem\n(" + SYSTEM + b"tR."),
    "inst": lambda: archive(b"(S'touch betrayed'\niposix\nsystem\n."),
    "after the names": lambda: archive(
        b"\x80\x02ccollections\nOrderedDict\n)R" + text("w") + b"cposix\nsystem\n" + SYSTEM
        + b"\x85Rs."
    ),
    # PyTorch before 1.6 wrote pickles, one after another.
    "legacy": lambda: b"\x80\x02cposix\nsystem\n(" + SYSTEM + b"tR.",
}  # fmt: skip
# These take memory or time, or are damaged.
HOSTILE = PROGRAMS | {
    # A tuple of two tuples of two tuples would take forever to hash.
    "laughs as a name": lambda: archive(b"\x80\x02})" + b"q\x01h\x01\x86" * 60 + b"Ns."),
    "deep": lambda: archive(b"\x80\x02)" + b"\x85" * 1_000_000 + b"."),
    "long pickle": lambda: archive(b"\x80\x02" + b"}" * 20_000_000 + b"."),
    "claims numbers": lambda: one(tensor("0", 1 << 40)),
    "beyond its storage": lambda: one(tensor("0", 2, offset=1)),
    "storage elsewhere": lambda: one(tensor("../../etc/passwd", 2)),
    "zip bomb": lambda: archive(
        state({"w": tensor("0", 1 << 25)}), {"data/0": bytes(1 << 27)}, zipfile.ZIP_DEFLATED
    ),
    "cut": lambda: one(tensor("0", 2))[:-30],
    "damaged": lambda: one(tensor("0", 2)).replace(bytes(8), bytes(7) + b"x", 1),
}  # fmt: skip


def main(folder):
    from jaxformer.errors import UserError
    from jaxformer.interop.torch_file import read_torch

    root = pathlib.Path(folder)
    os.chdir(root)
    watch = Watch([folder, sys.prefix, sys.base_prefix, "/proc"])
    path = root / "pytorch_model.bin"
    path.write_bytes(one(tensor("0", 2)))
    read_torch(path)
    for name, build in HOSTILE.items():
        path.write_bytes(build())
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        before, busy = memory("VmRSS"), time.process_time()
        faulthandler.dump_traceback_later(60, exit=True)
        watch.on, watch.seen = True, []
        try:
            read_torch(path)
            outcome = "read"
        except UserError as error:
            outcome = f"refused: {error}"
        except BaseException as error:
            outcome = f"{type(error).__name__}: {str(error)[:500]}"
        watch.on = False
        faulthandler.cancel_dump_traceback_later()
        result = {
            "name": name,
            "outcome": outcome,
            "seconds": round(time.process_time() - busy, 3),
            "bytes": memory("VmHWM") - before,
            "seen": watch.seen,
            "ran": pathlib.Path("betrayed").exists(),
        }
        print(json.dumps(result | {"would": name in PROGRAMS and unpickle(path)}), flush=True)


def unpickle(path):
    """Returns whether the real unpickler runs the command in a file."""
    content = path.read_bytes()
    with contextlib.suppress(Exception):
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as file:
                content = file.read("archive/data.pkl")
        pickle.loads(content)
    betrayed = pathlib.Path("betrayed")
    ran = betrayed.exists()
    betrayed.unlink(missing_ok=True)
    return ran


if __name__ == "__main__":
    main(sys.argv[1])
