"""Torch without its compiler, which a worker never runs and which takes as long to import as all the rest of torch.

Shape inference on the meta device imports the compiler at its first call, to be left out of what it compiles
(`torch._compile._disable_dynamo`). Where nothing is compiled, the plain function is the same function.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

_MODULE = "torch._compile"
_WRAPPER = "_disable_dynamo"


def leave_compiler_out() -> None:
    """Have functions of torch not ask for the compiler. Torch must not have been imported yet.

    A torch that is built otherwise is left as it is: then the compiler is imported where it is first asked for.
    """
    assert "torch" not in sys.modules
    torch = importlib.util.find_spec("torch")
    if torch is None or not torch.submodule_search_locations:
        return
    file = Path(torch.submodule_search_locations[0]) / "_compile.py"
    spec = importlib.util.spec_from_file_location(_MODULE, file) if file.is_file() else None
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    if hasattr(module, _WRAPPER):
        setattr(module, _WRAPPER, _plain)
        sys.modules[_MODULE] = module


def _plain(function: Callable[..., Any] | None = None, recursive: bool = True) -> Any:
    """The decorator in `torch._compile`, with and without arguments, but for the wrapper."""
    return function if function is not None else lambda decorated: decorated
