"""Reads files like pytorch_model.bin that somebody else made; prints what each caused as JSON.

``HOSTILE`` has a builder for each. The files in ``PROGRAMS`` run code if they are unpickled, which
this program checks with the real unpickler, after reading.
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

COMMAND = "touch betrayed"


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


def legacy():
    """Returns a file of PyTorch before 1.6: pickles, one after another."""
    return b"\x80\x02" + b"cposix\nsystem\n(" + text(COMMAND) + b"tR."


def encrypted():
    content = bytearray(archive(state({})))
    content[content.index(b"PK\x03\x04") + 6] |= 1
    content[content.index(b"PK\x01\x02") + 8] |= 1
    return bytes(content)


def laughs(end):
    """Returns opcodes of a tuple of two tuples of two tuples, which would take forever to hash."""
    return b")" + b"".join(b"q\x01h\x01\x86" for _ in range(60)) + end


SYSTEM = text(COMMAND)
# These run a command when they are unpickled.
PROGRAMS = {
    "reduce": lambda: archive(b"\x80\x02cposix\nsystem\n(" + SYSTEM + b"tR."),
    "eval": lambda: archive(
        b"\x80\x02cbuiltins\neval\n" + text("__import__('os').system('touch betrayed')") + b"\x85R."
    ),
    "stack global": lambda: archive(b"\x80\x04" + text("posix") + text("system") + b"\x93"
                                    + SYSTEM + b"\x85R."),
    "inst": lambda: archive(b"(S'touch betrayed'\niposix\nsystem\n."),
    "obj": lambda: archive(b"(cposix\nsystem\n" + SYSTEM + b"o."),
    "process": lambda: archive(
        b"\x80\x02csubprocess\nPopen\n(" + text("touch") + text("betrayed") + b"l\x85R."
    ),
    "after the names": lambda: archive(
        b"\x80\x02ccollections\nOrderedDict\n)R" + text("w") + b"cposix\nsystem\n" + SYSTEM
        + b"\x85Rs."
    ),
    "legacy": legacy,
}  # fmt: skip
# These take memory or time, or are damaged.
HOSTILE = PROGRAMS | {
    "other persistent id": lambda: archive(b"Pstorage\n."),
    "extension": lambda: archive(b"\x80\x02\x82\x01."),
    "state of a tensor": lambda: one(tensor("0", 2) + b"}b"),
    "arguments of a dictionary": lambda: archive(
        b"\x80\x02ccollections\nOrderedDict\n(" + numbers([1, 2]) + b"tR."
    ),
    "numpy": lambda: archive(b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n)R."),
    "laughs as a dtype": lambda: archive(
        b"\x80\x02(" + text("storage") + laughs(b"") + text("0") + text("cpu") + number(1) + b"tQ."
    ),
    "laughs as a function": lambda: archive(b"\x80\x02" + laughs(b")R.")),
    "laughs as a name": lambda: archive(b"\x80\x02}" + laughs(b"Ns.")),
    "deep": lambda: archive(b"\x80\x02)" + b"\x85" * 1_000_000 + b"."),
    "many dictionaries": lambda: archive(b"\x80\x02" + b"}" * 1_000_000 + b"N."),
    "long pickle": lambda: archive(b"\x80\x02" + b"}" * 20_000_000 + b"."),
    "many digits": lambda: archive(b"L" + b"9" * 900_000 + b"L\n."),
    "contains itself": lambda: archive(b"\x80\x02}q\x01" + text("w") + b"h\x01s."),
    "no tensor": lambda: archive(state({"w": number(3)})),
    "claims numbers": lambda: one(tensor("0", 1 << 40)),
    "repeats one number": lambda: one(tensor("0", 2, shape=(1 << 40,), stride=(0,))),
    "beyond its storage": lambda: one(tensor("0", 2, offset=1)),
    "negative stride": lambda: one(tensor("0", 2, stride=(-1,))),
    "many axes": lambda: one(tensor("0", 2, shape=(1,) * 99, stride=(1,) * 99)),
    "no strides": lambda: one(tensor("0", 2, stride=())),
    "integers": lambda: one(tensor("0", 2, dtype=b"Long")),
    "no such storage": lambda: one(tensor("1", 2)),
    "storage elsewhere": lambda: one(tensor("../../etc/passwd", 2)),
    "big-endian": lambda: one(tensor("0", 2), byteorder=b"big"),
    "zip bomb": lambda: archive(
        state({"w": tensor("0", 1 << 25)}), {"data/0": bytes(1 << 27)}, zipfile.ZIP_DEFLATED
    ),
    "encrypted": encrypted,
    "two pickles": lambda: archive(state({}), {"x/data.pkl": state({})}),
    "no end": lambda: archive(state({})[:-1]),
    "empty stack": lambda: archive(b"\x80\x02R."),
    "no mark": lambda: archive(b"\x80\x02}u."),
    "no memo": lambda: archive(b"\x80\x02h\x07."),
    "cut": lambda: one(tensor("0", 2))[:-30],
    "damaged": lambda: one(tensor("0", 2)).replace(bytes(8), bytes(7) + b"x", 1),
    "empty": lambda: b"",
    "text": lambda: b"<html>404</html>",
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
        process = pickle.loads(content)
        process.wait()
    betrayed = pathlib.Path("betrayed")
    ran = betrayed.exists()
    betrayed.unlink(missing_ok=True)
    return ran


if __name__ == "__main__":
    main(sys.argv[1])
