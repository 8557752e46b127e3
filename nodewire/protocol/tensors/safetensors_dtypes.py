"""What safetensors files call the dtypes.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

CODE_OF = {
    "float32": "F32",
    "bfloat16": "BF16",
    "float16": "F16",
    "float8_e4m3fn": "F8_E4M3",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
DTYPE_OF = {code: dtype for dtype, code in CODE_OF.items()}
