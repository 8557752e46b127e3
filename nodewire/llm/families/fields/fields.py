"""Reading a config.json field by field: what is not read, and is not known to leave the numbers alone, is refused."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from nodewire.errors import BadTask
from nodewire.protocol.model.families import real

if TYPE_CHECKING:
    from collections.abc import Mapping

SILENT = frozenset(
    {
        # What the file is and who wrote it.
        *("_name_or_path", "architectures", "auto_map", "model_type", "transformers_version", "transformers.js_config"),
        *("_attn_implementation_autoset", "unsloth_fixed", "unsloth_version", "is_llama_config", "is_decoder"),
        *("_commit_hash", "finetuning_task", "task_specific_params", "tokenizer_class", "model_max_length", "prefix"),
        # Of training, and of what `transformers` returns beside the logits.
        *("initializer_range", "router_aux_loss_coef", "gradient_checkpointing", "label_smoothing", "z_loss_weight"),
        *("router_jitter_noise", "output_router_logits", "output_attentions", "output_hidden_states", "return_dict"),
        *("problem_type", "id2label", "label2id", "num_labels", "chunk_size_feed_forward", "use_return_dict"),
        # Of storage and execution; the order of sums is no part of a model.
        *("dtype", "torch_dtype", "use_cache", "cache_implementation", "pretraining_tp", "_experts_implementation"),
        *("attn_implementation", "_attn_implementation", "torchscript", "use_bfloat16", "tf_legacy_loss"),
        # Of the tokenizer. Ends are read apart, from two files.
        *("bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "unk_token_id", "decoder_start_token_id"),
        # Of how text is drawn from logits, which who asks for it says.
        *("do_sample", "temperature", "top_k", "top_p", "typical_p", "min_length", "max_length", "max_new_tokens"),
        *("num_beams", "num_beam_groups", "diversity_penalty", "length_penalty", "repetition_penalty"),
        *("early_stopping", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "num_return_sequences"),
        *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id"),
        *("output_scores", "return_dict_in_generate", "remove_invalid_values", "exponential_decay_length_penalty"),
    }
)
"""Fields that do not change what a decoder computes."""
_DROPS = re.compile(r"dropout|(^|_)pdrop$")
"""In the names of shares that training leaves out."""
_OFF: Mapping[str, Any] = {
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "tie_encoder_decoder": False,
    "cross_attention_hidden_size": None,
    "pruned_heads": {},
}
"""Fields that every older file has, of what a decoder has only if it says so."""


class Fields:
    """The fields of a config.json, or of an object in it, each taken once."""

    def __init__(self, document: Mapping[str, Any], silent: frozenset[str] = SILENT) -> None:
        self._left = {name: value for name, value in document.items() if name not in silent and not _DROPS.search(name)}

    def pop(self, name: str, default: Any = None) -> Any:
        """A field's value; `default` if it is missing or null."""
        value = self._left.pop(name, None)
        return default if value is None else value

    def needed(self, name: str) -> Any:
        value = self.pop(name)
        if value is None:
            raise BadTask(name, "missing")
        return value

    def number(self, name: str, default: float | None = None) -> str:
        """A number as a Real."""
        value = self.pop(name, default)
        if value is None:
            raise BadTask(name, "missing")
        return as_real(name, value)

    def optional(self, name: str, default: float | None = None) -> str | None:
        """A number as a Real, or None; `default` stands for a field that is missing, not for one that is null."""
        value = self._left.pop(name, default)
        return None if value is None else as_real(name, value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.pop(name, default)
        if not isinstance(value, bool):
            raise BadTask(name, "neither true nor false")
        return value

    def integer(self, name: str, default: int | None = None) -> int:
        value = self.needed(name) if default is None else self.pop(name)
        if value is None:
            return default or 0
        if type(value) is not int or not 0 <= value < 2**31:
            raise BadTask(name, "not a whole number")
        return int(value)

    def either(self, name: str, other: str, default: int) -> int:
        """A whole number that files call by one of two names; where they use both, they must agree."""
        first, second = self.integer(name, -1), self.integer(other, -1)
        if first >= 0 and second >= 0 and first != second:
            raise BadTask(name, f"another number than {other}")
        found = max(first, second)
        return found if found >= 0 else default

    def alias(self, name: str, other: str) -> None:
        """Have what some files call `other` be called `name`; where they use both, they must agree."""
        value = self._left.pop(other, None)
        if value is None:
            return
        if self._left.get(name) not in (None, value):
            raise BadTask(other[:80], f"another value than {name}: one of the two is wrong, and may be left out")
        self._left[name] = value

    def choice(self, name: str, meanings: Mapping[str, str], default: str) -> str:
        """What one of several words means."""
        value = self.pop(name, default)
        if not isinstance(value, str) or value not in meanings:
            raise BadTask(name, f"{str(value)[:40]} is not supported, only {' or '.join(meanings)}")
        return meanings[value]

    def optional_integer(self, name: str, default: int | None = None) -> int | None:
        """A whole number, or None for null; `default` stands for a field that is missing."""
        value = self._left.pop(name, default)
        if value is not None and (type(value) is not int or not 0 <= value < 2**31):
            raise BadTask(name, "not a whole number")
        return value

    def integers(self, name: str) -> list[int]:
        value = self.pop(name, [])
        if not isinstance(value, list) or any(type(item) is not int for item in value):
            raise BadTask(name, "not a list of whole numbers")
        return value

    def numbers(self, name: str) -> list[str]:
        value = self.needed(name)
        if not isinstance(value, list) or len(value) > 4_096:
            raise BadTask(name, "not a list of numbers")
        return [as_real(name, item) for item in value]

    def within(self, name: str) -> dict[str, Any]:
        """An object in the file; empty if it is missing or null."""
        value = self.pop(name, {})
        if not isinstance(value, dict):
            raise BadTask(name, "not an object")
        return value

    def default(self, name: str, value: Any) -> None:
        """What a field is that is missing or null."""
        if self._left.get(name) is None:
            self._left[name] = value

    def __contains__(self, name: str) -> bool:
        return self._left.get(name) is not None

    def layers(self, found: Mapping[str, Any]) -> int:
        """`num_hidden_layers` of what was read, as a bound of lists."""
        count = found["num_hidden_layers"]
        if type(count) is not int or not 0 <= count <= 4_096:
            raise BadTask("num_hidden_layers", "not a whole number, or too large")
        return count

    def only(self, name: str, *values: Any) -> None:
        """A field that may be missing, null or one of `values`: others ask for what the layers do not compute."""
        value = self.pop(name)
        if value is not None and not any(type(value) is type(one) and value == one for one in values):
            raise BadTask(name, f"{str(value)[:40]} is not supported, only {' or '.join(map(str, values))}")

    def end(self) -> None:
        """Raises BadTask for the first field that nothing has taken; null says nothing."""
        for name, value in _OFF.items():
            self.only(name, value)
        for name, value in sorted(self._left.items()):
            if value is not None:
                raise BadTask(
                    name[:80],
                    "an unknown field that could change the model's numbers. Take it out of the model's description if "
                    "it does not",
                )


def as_real(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e300:
        raise BadTask(name, "not a number")
    return real(value)
