"""How a text is cut before byte pairs are joined, by the name that a GGUF file gives it.

Names and expressions are facts of llama.cpp (https://github.com/ggml-org/llama.cpp/blob/master/src/llama-vocab.cpp),
which quotes them from each model's own tokenizer.json.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokenizers import Regex, pre_tokenizers

from nodewire.llm.tokens.meta_tokenizer import LLAMA_3

if TYPE_CHECKING:
    from collections.abc import Callable

_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_QWEN_2 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_END = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_BEFORE, _SLASHED = r"[^\r\n\p{L}\p{N}]?", r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT_4O = rf"{_BEFORE}{_UPPER}*{_LOWER}+{_END}|{_BEFORE}{_UPPER}+{_LOWER}*{_END}|\p{{N}}{{1,3}}{_SLASHED}"
_TEKKEN = rf"{_BEFORE}{_UPPER}*{_LOWER}+|{_BEFORE}{_UPPER}+{_LOWER}*|\p{{N}}{_SLASHED}"


class Way(NamedTuple):
    """`whole`: a piece that is a token is one, whatever the merges say.

    `begins`: whether a text begins with the beginning's token, where the file does not say so.
    """

    made: Callable[[], pre_tokenizers.PreTokenizer]
    whole: bool = False
    begins: bool = False


def _by(expression: str) -> Callable[[], pre_tokenizers.PreTokenizer]:
    def made() -> pre_tokenizers.PreTokenizer:
        cut = pre_tokenizers.Split(Regex(expression), "isolated")
        return pre_tokenizers.Sequence([cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])

    return made


def _gpt_2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt_2()])


_LLAMA = Way(_by(LLAMA_3), whole=True, begins=True)

WAYS = {
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "exaone4"), Way(_gpt_2)),
    **dict.fromkeys(("smollm", "starcoder", "refact", "codeshell"), Way(_digits)),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3"), _LLAMA),
    **dict.fromkeys(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), Way(_by(LLAMA_3))),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), Way(_by(_QWEN_2))),
    **dict.fromkeys(("gpt-4o", "llama4"), Way(_by(_GPT_4O))),
    **dict.fromkeys(("tekken", "pixtral"), Way(_by(_TEKKEN), whole=True, begins=True)),
}
