"""Nothing from a peer is executed: no source file names a loader or an evaluator of code."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(file for folder in ("nodewire", "relay", "kinds", "simnet") for file in (ROOT / folder).rglob("*.py"))

MODULES = {"pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "joblib", "sympy"}
SIZES = {"nodewire/graph/trace/reader.py": {"sympy"}, "nodewire/graph/trace/guards.py": {"sympy"}}
"""They take apart the sizes of an export that was made here, expressions and never text; no worker loads them."""
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {"torch.load", "torch.export.load", "torch.jit.load", "torch.package", "numpy.load", "np.load", "sympify"}
KEYWORDS = {"trust_remote_code", "allow_pickle"}


def dotted(node):
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) else ""


def banned(tree):
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (n.name for n in names if n.name.split(".")[0] in MODULES)
            case ast.ImportFrom(module=str(module), names=names):
                whole = [f"{module}.{n.name}" for n in names]
                yield from (w for w in whole if w.split(".")[0] in MODULES or w in ATTRIBUTES)
            case ast.Call(func=ast.Name(id=name)) if name in CALLS:
                yield name
            case ast.Attribute() if dotted(node) in ATTRIBUTES or node.attr == "sympify":
                yield dotted(node)
            case ast.keyword(arg=str(name)) if name in KEYWORDS:
                yield name


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_source_file_executes_nothing_that_it_was_sent(file):
    allowed = SIZES.get(str(file.relative_to(ROOT)), set())
    assert [name for name in banned(ast.parse(file.read_text())) if name not in allowed] == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from pickle import loads",
        "import torch\ntorch.load('x')",
        "import torch\ntorch.export.load('x')",
        "from torch import load",
        "from torch.export import load",
        "eval('1')",
        "exec('1')",
        "import sympy",
        "AutoModel.from_pretrained('x', trust_remote_code=True)",
        "np.load('x', allow_pickle=True)",
    ],
)
def test_the_ban_sees(source):
    assert list(banned(ast.parse(source)))


def test_putting_a_module_into_evaluation_mode_is_not_evaluating_code():
    assert not list(banned(ast.parse("model.eval()\nre.compile('x')")))
