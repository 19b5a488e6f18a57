"""Makes the files of core/src/checkpoint/pytorch/tests.rs: what PyTorch writes, and what an attacker could.

    python tests/reference/pytorch_files.py

Values are -1, -0.5, .. 1.5 in every type. Nothing here is executed by loading: the hostile pickles only name what
they would call. Everything lands in tests/fixtures/pytorch/.
"""

import io
import json
import os
import pickle
import zipfile
from pathlib import Path

import torch

OUT = Path(__file__).resolve().parent.parent / "fixtures" / "pytorch"
VALUES = torch.arange(6.0) * 0.5 - 1


def state():
    """Every kind of tensor that a state dict holds, with the `_metadata` that modules add."""
    state = torch.nn.Linear(3, 2, bias=False).state_dict()
    state["weight"] = VALUES.reshape(2, 3).clone()
    state["tied"] = state["weight"]
    state["half"] = VALUES.half()
    state["bf16"] = VALUES.bfloat16()
    state["double"] = VALUES.double()
    state["position_ids"] = torch.arange(4).reshape(1, 4)
    state["mask"] = torch.tensor([True, False])
    state["transposed"] = VALUES.reshape(2, 3).clone().T
    base = VALUES.clone()
    state["slice"] = base[2:5]
    state["column"] = base.reshape(2, 3)[:, 1]
    state["parameter"] = torch.nn.Parameter(VALUES.clone())
    state["scalar"] = torch.tensor(2.5)
    state["empty"] = torch.zeros(0, 3)
    return state


def rezip(source, target, edit=lambda name, data: data, **options):
    """An archive with some of its entries changed."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", **options) as new:
        for entry in old.infolist():
            new.writestr(entry.filename, edit(entry.filename, old.read(entry)), options.get("compression"))


class Calls:
    """Pickled as the call of a function."""

    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    whole = OUT / "zip.bin"
    torch.save(state(), whole)
    torch.save(state(), OUT / "protocol-4.bin", pickle_protocol=4)
    torch.save(state(), OUT / "legacy.bin", _use_new_zipfile_serialization=False)

    shards = {"shard-1.bin": ["weight", "tied", "half"], "shard-2.bin": ["bf16", "transposed", "position_ids"]}
    for shard, names in shards.items():
        torch.save({name: state()[name] for name in names}, OUT / shard)
    index = {"metadata": {}, "weight_map": {name: shard for shard, names in shards.items() for name in names}}
    (OUT / "index.json").write_text(json.dumps(index) + "\n")

    # As if the file had 4 GB: all sizes and places in their 64-bit fields.
    limit, zipfile.ZIP64_LIMIT = zipfile.ZIP64_LIMIT, 0
    rezip(whole, OUT / "wide.bin")
    zipfile.ZIP64_LIMIT = limit

    small = {"weight": VALUES.reshape(2, 3).clone()}
    torch.save({"epoch": 3, "state_dict": small, "note": "a"}, OUT / "nested.bin")
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(VALUES[:3]).sum().backward()
    optimizer.step()
    torch.save({"state_dict": small, "optimizer": optimizer.state_dict()}, OUT / "training.bin")
    torch.save(optimizer.state_dict(), OUT / "optimizer.bin")
    torch.save({"expanded": torch.ones(1).expand(4)}, OUT / "expanded.bin")
    torch.save({"weight": VALUES, "version": 1}, OUT / "number.bin")
    torch.save({"sparse": torch.eye(2).to_sparse()}, OUT / "sparse.bin")
    torch.save(layer, OUT / "module.bin")
    torch.jit.script(layer).save(str(OUT / "script.bin"))

    torch.save(small, OUT / "small.bin")
    rezip(OUT / "small.bin", OUT / "compressed.bin", compression=zipfile.ZIP_DEFLATED)
    big = lambda name, data: b"big" if name.endswith("byteorder") else data
    rezip(OUT / "small.bin", OUT / "big-endian.bin", big)
    calls = {
        "system": Calls(os.system, ("id",)),
        "eval": Calls(eval, ("1",)),
        # The arguments of a function that is allowed are made by one that is not.
        "nested": Calls(torch._utils._rebuild_parameter, (Calls(exec, ("1",)), False, {})),
        # The state of a class, which `BUILD` would put into it.
        "state": Calls(object.__new__, (torch.nn.Linear,), {"forward": Calls(eval, ("1",))}),
    }
    for name, call in calls.items():
        data = pickle.dumps({"weight": call}, protocol=2)
        rezip(OUT / "small.bin", OUT / f"evil-{name}.bin", lambda entry, old: data if entry.endswith("data.pkl") else old)
    stream = io.BytesIO()
    for value in [0x1950A86A20F9469CFC6C, 1001, {"little_endian": True}, {"weight": calls["system"]}, []]:
        pickle.dump(value, stream, protocol=2)
    (OUT / "evil-legacy.bin").write_bytes(stream.getvalue())


if __name__ == "__main__":
    main()
