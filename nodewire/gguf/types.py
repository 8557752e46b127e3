"""How a GGUF file's tensors are stored: by the number that the file has for it, and by its name in ggml.

https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Numbers of a row lie in blocks of so many, each of so many
bytes; those that are plain numbers are blocks of one.
"""

from __future__ import annotations

from typing import NamedTuple


class Type(NamedTuple):
    name: str
    size: int
    """Numbers to a block."""
    nbytes: int
    """Bytes of a block."""


TYPES = {
    0: Type("F32", 1, 4),
    1: Type("F16", 1, 2),
    2: Type("Q4_0", 32, 18),
    3: Type("Q4_1", 32, 20),
    6: Type("Q5_0", 32, 22),
    7: Type("Q5_1", 32, 24),
    8: Type("Q8_0", 32, 34),
    10: Type("Q2_K", 256, 84),
    11: Type("Q3_K", 256, 110),
    12: Type("Q4_K", 256, 144),
    13: Type("Q5_K", 256, 176),
    14: Type("Q6_K", 256, 210),
    30: Type("BF16", 1, 2),
    39: Type("MXFP4", 32, 17),
}
"""Those that are read."""

OTHERS = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}
"""Those that are not."""
