"""A worker leaves torch's compiler out, and does without it where torch would ask for it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

SCRIPT = """
import json, sys
from nodewire.worker.process import eager_torch
if {left_out}:
    eager_torch.leave_compiler_out()
import torch
import kinds.k8843_worker
from nodewire.kind import Limits
from nodewire.worker.process import serve
serve.warm_up(Limits(2**30))
found = "torch._dynamo" in sys.modules
a, b = (torch.empty_strided((4, 6), (6, 1), device="meta") for _ in range(2))
shape = [*torch.nn.functional.linear(a + b, a.clamp(0).exp()).shape]
print(json.dumps([found, "torch._dynamo" in sys.modules, shape, float((torch.ones(3) + 1).sum())]))
"""


def run(script: str) -> list:
    return json.loads(subprocess.run([sys.executable, "-c", script], check=True, capture_output=True).stdout)


@pytest.mark.parametrize("left_out", [True, False])
def test_shapes_are_inferred_without_the_compiler_or_it_is_imported_before_the_sandbox(left_out):
    assert run(SCRIPT.format(left_out=left_out)) == [not left_out, not left_out, [4, 4], 6.0]


@pytest.mark.parametrize("text", [None, "def another(function): ..."])
def test_a_torch_that_is_built_otherwise_is_left_as_it_is(tmp_path, text):
    torch = tmp_path / "torch"
    torch.mkdir()
    (torch / "__init__.py").write_text("")
    if text is not None:
        (torch / "_compile.py").write_text(text)
    assert run(
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import json\nfrom nodewire.worker.process import eager_torch\neager_torch.leave_compiler_out()\n"
        "import torch\nprint(json.dumps([torch.__file__, 'torch._compile' in sys.modules]))"
    ) == [str(torch / "__init__.py"), False]
