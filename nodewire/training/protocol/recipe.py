"""A recipe: what is trained and how, as one canonical document; its digest is the "source for the code" of a job.

No code travels: a recipe names a family, a loss, optimizers and their numbers, and every number has a cap. The
products (parameters, memory, operations) are bounded too when a recipe is read, so what was read can be priced, and
allocated, as it says. nips/30-training-recipes.md.
"""

from __future__ import annotations

import math
import tomllib
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from nodewire.errors import BadInput, BadRecipe, TooLarge
from nodewire.protocol.encoding.schema import Count, Label, Name, Schema
from nodewire.protocol.model.families import READING_TOML, Decoder, Encoder, Family, Lora, Real, Shapes, between, count

MAX_PARAMETERS = 2**34
MAX_MEMORY_BYTES = 2**40
MAX_ROUND_FLOPS = 2**62
MAX_WINDOW = 2**17
MAX_BATCH = 2**16
MAX_STEPS = 100_000
MAX_SHARDS = 4_096
"""Parts of the data."""
MAX_SAMPLES = 2**29 - 1
"""In a round; they are the weight of its result, and a weight times a float32 is exact in float64."""

KEPT_BYTES = 16 * 2**20
"""Of a round's snapshots that a provider keeps, or more where it has room for another round like it; what is not kept
is computed again from the one before."""

NOTHING = "0" * 64
"""The digest of what is carried on from a round where that is nothing."""

Share = Annotated[Real, between(0, 1)]
Rate = Annotated[Real, between(0, 1e4)]
Beta = Annotated[Real, between(0, 0.999999)]
Epsilon = Annotated[Real, between(1e-20, 1)]

Loss = Literal["cross_entropy", "squared_error", "next_token", "contrastive"]
Layout = Literal["arrays", "bytes", "tokens", "texts"]


class Data(Schema):
    """How a data set is laid out, split and read.

    arrays: x [n, inputs] and y [n] (or [n, classes] for squared_error). bytes: files, as they are. tokens: ids in one
    row. texts: lines of text, tokenized by the customer; for an encoder two texts a line, parted by a tab.
    """

    layout: Layout
    window: int = Field(default=0, ge=0, le=MAX_WINDOW)
    """Positions of a sample (decoders), tokens of a text (encoders); 0 for arrays."""
    block: int = Field(default=4_096, ge=1, le=2**30)
    """Bytes or tokens that are dealt to a shard, or held out, together; of arrays and pairs it is always one row."""
    deal: Literal["shuffled", "contiguous"] = "shuffled"
    """Shuffled: shards are alike. Contiguous: in the data's own order, so skewed as the data is."""
    held_out: int = Field(default=10, ge=2, le=2**20)
    """Every so-manieth block (or row) is held out from all shards, to validate on."""


class Inner(Schema):
    """The optimizer of a round, fresh in every round; the schedule goes by the global step, rounds before included.

    sgd: lr, momentum, nesterov, weight_decay. adamw: lr, betas, eps, weight_decay. muon: lr, momentum, nesterov and
    weight_decay for the hidden matrices; the rest by adamw with rest_lr. Decay is decoupled, and of matrices only.
    """

    optimizer: Literal["sgd", "adamw", "muon"]
    lr: Rate
    rest_lr: Rate = "0.001"
    momentum: Beta = "0.0"
    nesterov: bool = False
    betas: tuple[Beta, Beta] = ("0.9", "0.95")
    eps: Epsilon = "1e-08"
    weight_decay: Rate = "0.0"
    clip: Rate = "0.0"
    """The gradient's largest norm; 0.0: any."""
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    warmup: int = Field(default=0, ge=0, le=2**40)
    """Steps over which the rate rises from nothing."""
    rise: int = Field(default=0, ge=0, le=MAX_STEPS)
    """Steps of every round over which its rate rises: the first ways of a fresh optimizer go by few gradients."""
    total: int = Field(default=0, ge=0, le=2**40)
    """Steps after which it has fallen to `floor`; 0: all of the recipe's."""
    floor: Share = "0.0"
    """What is left of the rate at the end, as a share."""


class Outer(Schema):
    """What becomes of a round's pseudo-gradients.

    average: theta + lr x mean. nesterov (DiLoCo): v = momentum v + mean; theta + lr (momentum v + mean). fedadam:
    Adam with betas and eps on the mean. `aggregate` says what stands for the mean: trimmed and krum bear with
    `tolerated` bad ones, clip shortens what is longer than `bound` times the median norm.
    """

    method: Literal["average", "nesterov", "fedadam"] = "average"
    lr: Rate = "1.0"
    momentum: Beta = "0.0"
    betas: tuple[Beta, Beta] = ("0.9", "0.99")
    eps: Epsilon = "0.001"
    aggregate: Literal["mean", "trimmed", "median", "clip", "krum"] = "mean"
    tolerated: int = Field(default=0, ge=0, le=1_024)
    bound: Annotated[Real, between(0, 1e6, open_below=True)] = "2.0"
    stored: Literal["f32", "bf16"] = "f32"
    """What the last step's weights are rounded to; until then they are float32."""
    shards: int = Field(default=0, ge=0, le=MAX_SHARDS)
    """Results that a whole round has. Of fewer the mean is shortened, by the root of their share: it is the noisier. 0
    takes it as it is, and is left out of the document."""

    @model_serializer(mode="wrap")
    def _without_what_it_has_not(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        said: dict[str, Any] = serialize(self)
        if not self.shards:
            del said["shards"]
        return said

    @model_validator(mode="after")
    def _tolerates_some(self) -> Self:
        if self.aggregate in ("trimmed", "krum") and not self.tolerated:
            raise ValueError(f"tolerated: 0, so {self.aggregate} is the mean")
        return self


class Compression(Schema):
    """How a pseudo-gradient travels: whole, in blocks of 8 or 4 bits, or only its largest numbers (topk).

    `error_feedback` is how much of what was lost is carried into the sender's next round: 0.0 none, 1.0 all.
    """

    method: Literal["f32", "int8", "int4", "topk"] = "f32"
    block: Literal[128, 256, 512, 1_024, 2_048, 4_096] = 256
    """Numbers that share a scale, and of which topk keeps the largest."""
    fraction: Annotated[Real, between(0, 0.5, open_below=True)] = "0.0625"
    """What topk keeps."""
    bits: Literal[2, 8] = 8
    """Of a number that topk keeps."""
    error_feedback: Share = "0.0"
    fragments: int = Field(default=1, ge=1, le=64)
    """Of so many parts a round sends and steps one, in turn; the last round all. What is trained of the others goes on
    at its provider (Streaming DiLoCo, arXiv 2501.18512)."""

    @property
    def carries(self) -> bool:
        """Whether a provider takes something of its own from a round into the next one."""
        return self.fragments > 1 or float(self.error_feedback) > 0

    @property
    def kept(self) -> int:
        """Numbers of a block that topk keeps: at least one."""
        return max(1, math.floor(self.block * float(self.fraction)))


class Validation(Schema):
    """When a result is accepted, rejected, or audited before it is paid. Multiples are of the round's median.

    progress: reject if the others' aggregate has a held-out loss lower by more than `gamma`. decay: the moving average
    over `average` rounds of the held-out loss must fall by the share `rate` a round.
    """

    policy: Literal["none", "progress", "decay"] = "none"
    gamma: Rate = "0.05"
    rate: Annotated[Real, between(-1, 1)] = "0.0"
    average: int = Field(default=3, ge=1, le=1_000)
    norm_low: Rate = "0.2"
    norm_high: Rate = "5.0"
    cosine: Share = "0.99"
    """Of two results as alike as this one is a copy: both are audited."""
    gain: Annotated[Real, between(-1e4, 1e4)] = "-0.05"
    """Audited unless the held-out loss falls by more than this when the result alone is applied."""
    own: Annotated[Real, between(-1e4, 1e4)] = "0.0"
    """Audited unless it is ahead of the updates' mean by more than this on the round's own batches, less the same on
    held-out data."""
    samples: int = Field(default=0, ge=0, le=2**16)
    """Samples that a loss is measured on; 0: a tenth of what a shard's round trains on, from 32 to 256."""


class Audit(Schema):
    """Recomputing what was claimed: a share of all segments of so many steps, drawn after the round is closed."""

    fraction: Share = "0.1"
    segment: int = Field(default=10, ge=1, le=MAX_STEPS)
    tolerance: Annotated[Real, between(0, 1)] = "0.02"
    """Largest distance of a recomputed state, as a share of the segment's own way."""
    outer: Share = "0.1"
    """Of an outer step that was bought, the share of its pieces that is computed again; 8 pieces at least."""


class Profile(Schema):
    """What the result's bits depend on. Equal profiles give equal bits; the labels are compared, not interpreted."""

    threads: Literal[1] = 1
    torch: Label = ""
    isa: Label = ""


class Hardware(Schema):
    """The least that a bidder has, above what the recipe itself computes."""

    device: Literal["cpu", "any"] = "any"
    memory_bytes: Count = 0


class Recipe(Schema):
    TAG: ClassVar[str] = "nodewire/recipe/1"
    MAX_BYTES: ClassVar[int] = 32_768
    ERROR: ClassVar[type[BadInput]] = BadRecipe

    v: Literal[1] = 1
    name: Name
    family: Family
    adapter: Lora | None = None
    loss: Loss
    data: Data
    inner: Inner
    outer: Outer = Outer()
    steps: int = Field(ge=1, le=MAX_STEPS)
    """Inner steps of a round at full speed (H); the schedule counts so many a round."""
    batch: int = Field(ge=1, le=MAX_BATCH)
    rounds: int = Field(ge=1, le=100_000)
    precision: Literal["f32", "bf16"] = "f32"
    """Of the products; weights, momenta and results are always float32."""
    seed: Count = 0
    compression: Compression = Compression()
    validation: Validation = Validation()
    audit: Audit = Audit()
    deadline: int = Field(default=3_600, ge=1, le=30 * 86_400)
    """Seconds after which a round's result is not waited for."""
    pace: Literal["equal", "speed"] = "equal"
    """Steps of a round: all have the same, or each as many as it makes in the time that the fastest takes for all."""
    quorum: Share = "1.0"
    """Share of the shards whose results are enough for the outer step, once the rest lets itself be waited for."""
    late: Literal["drop", "half"] = "drop"
    """What a result counts that comes after its round's step, but before the next one's: nothing, or half."""
    profile: Profile = Profile()
    hardware: Hardware = Hardware()

    @classmethod
    def from_toml(cls, text: str) -> Self:
        """The recipe in a TOML file, where real numbers may stand without quotes.

        Raises:
            TooLarge: longer than MAX_BYTES.
            BadRecipe: not TOML, or any fault of `parse`, naming the field.
            BadVersion: its `v` is another.

        """
        if len(text) > cls.MAX_BYTES:
            raise TooLarge("recipe", f"{len(text)} characters, at most {cls.MAX_BYTES}")
        try:
            document = tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadRecipe("recipe", f"not TOML: {str(error)[:160]}") from error
        return cls.from_document({"v": 1} | document, context=READING_TOML)

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        self._family_fits()
        self._adapter_fits()
        self._compression_fits()
        for what, value, most in (
            ("samples", self.steps * self.batch, MAX_SAMPLES),
            ("parameters", self.parameters(), MAX_PARAMETERS),
            ("memory_bytes", self.memory_bytes(), MAX_MEMORY_BYTES),
            ("flops_per_round", self.flops_per_round(), MAX_ROUND_FLOPS),
        ):
            if value > most:
                raise ValueError(f"{what}: {value}, at most {most}")
        return self

    def _family_fits(self) -> None:
        """Loss and data are such as the family is trained with."""
        family, layout = self.family, self.data.layout
        losses: tuple[str, ...]
        layouts: tuple[str, ...]
        if isinstance(family, Decoder):
            losses, layouts = ("next_token",), ("bytes",) if family.tokens == "byte" else ("tokens", "texts")
        elif isinstance(family, Encoder):
            losses, layouts = ("contrastive",), ("texts",)
        else:
            losses, layouts = ("cross_entropy", "squared_error"), ("arrays",)
        if self.loss not in losses:
            raise ValueError(f"loss: {self.family.name} is trained with {' or '.join(losses)}")
        if layout not in layouts:
            raise ValueError(f"data.layout: {self.family.name} is trained on {' or '.join(layouts)}")
        if isinstance(family, Decoder | Encoder):
            if not 2 <= self.data.window <= family.positions:
                raise ValueError(f"data.window: not from 2 to the model's {family.positions} positions")
        elif self.data.window:
            raise ValueError("data.window: arrays have none")
        if self.loss == "contrastive" and self.batch < 2:
            raise ValueError("batch: one pair has nothing to be told from")

    def _compression_fits(self) -> None:
        """What is stored, and the fragments that rounds send, are such as the model has."""
        if self.outer.stored == "bf16" and not isinstance(self.family, Decoder):
            raise ValueError(f"outer.stored: {self.family.name} is stored as float32")
        if self.compression.fragments > self.rounds:
            raise ValueError("compression.fragments: more than rounds")
        if self.compression.fragments > 1 and self.late != "drop":
            raise ValueError("late: of a round of another fragment nothing can count")
        if self.stretches() > self.trained():
            raise ValueError("compression.fragments: more than there are numbers")

    def _adapter_fits(self) -> None:
        if self.adapter is None:
            return
        if not isinstance(self.family, Decoder | Encoder) or self.family.start is None:
            raise ValueError("adapter: there is no model to start from")
        modules = {name.split(".")[-2] for name in self.adapter.adapted(self.family.shapes())}
        missing = [target for target in self.adapter.targets if target not in modules]
        if missing:
            raise ValueError(f"adapter.targets: the model has no matrix {missing[0]}")

    def shapes(self) -> Shapes:
        """Names and shapes of what is trained: of theta, of every pseudo-gradient, in this order."""
        whole = self.family.shapes()
        return whole if self.adapter is None else self.adapter.shapes(whole)

    def parameters(self) -> int:
        """Numbers of the whole model, frozen ones and adapters included."""
        whole = count(self.family.shapes())
        return whole if self.adapter is None else whole + count(self.shapes())

    def measured(self) -> int:
        """Samples that a loss is measured on. A result takes three such losses, which is a tenth of its training."""
        return self.validation.samples or min(256, max(32, self.steps * self.batch // 10))

    def outer_of(self, round: int) -> Outer:
        """The rule of a round's outer step: only the last one rounds what it makes."""
        return self.outer if round >= self.rounds - 1 else self.outer.model_copy(update={"stored": "f32"})

    def trained(self) -> int:
        """Numbers that are trained: the sum of the products of `shapes()`."""
        return count(self.shapes())

    def stretches(self) -> int:
        """Into so many stretches of numbers a model is cut; fragment f has each `fragments`-th, from f on."""
        many = self.compression.fragments
        return many * max(1, getattr(self.family, "layers", 1) // many)

    def needed(self, shards: int) -> int:
        """Results that a round's outer step needs: the quorum, and no fewer than the aggregate can be made of."""
        outer = self.outer
        least = {"trimmed": 2 * outer.tolerated + 1, "krum": 2 * outer.tolerated + 3}.get(outer.aggregate, 1)
        return min(shards, max(least, math.ceil(float(self.quorum) * shards)))

    def total_steps(self) -> int:
        """Where the schedule ends: `inner.total`, or rounds x steps."""
        return self.inner.total or self.rounds * self.steps

    def weight(self, steps: int, late: int = 0) -> int:
        """What a result of so many steps weighs in an outer step.

        It is its samples, half of them (rounded down) where the step is of the round after its own, and nothing later.
        """
        return steps * self.batch >> late if late <= 1 else 0

    def moments(self) -> int:
        """Numbers that the inner optimizer keeps for each that is trained, at most."""
        return {"sgd": int(float(self.inner.momentum) > 0), "adamw": 2, "muon": 2}[self.inner.optimizer]

    def flops_per_sample(self) -> int:
        """Of one sample, there and back: 3 x the family's forward operations (backward costs two forwards)."""
        return 3 * self.family.flops_per_sample(self.data.window)

    def flops_per_round(self) -> int:
        """One provider's round: steps x (batch x `flops_per_sample` + 20 per trained number for the optimizer).

        Muon adds, for each matrix [a, b] with a the shorter side, 5 iterations of 2 (2 a a b + a a a).
        """
        optimizer = 20 * self.trained()
        if self.inner.optimizer == "muon":
            sides = [sorted(shape) for shape in self.shapes().values() if len(shape) == 2]
            optimizer += sum(10 * (2 * a * a * b + a**3) for a, b in sides)
        return self.steps * (self.batch * self.flops_per_sample() + optimizer)

    def memory_bytes(self) -> int:
        """A provider's peak above an empty worker, but for shard and result (`round_bytes`).

        In float32 numbers: of the whole model 1; of each that is trained 3 (theta as it came, its gradient, the delta),
        the optimizer's moments, 3 with error feedback (what is carried into the round and out of it, and what a
        worker's heap loses between rounds), and 5 with fragments (that, where the round begins, and the part that is
        packed); twice the largest tensor, whose gradient is added up; a batch's activations; for Muon what making the
        largest matrix orthogonal takes. bf16 adds half of model and activations, and 4 MiB. Then snapshots
        that are kept (`kept_bytes`), 32 bytes for each of 2^18 numbers that are packed at a time, and 8 MiB.
        """
        how, shapes = self.compression, self.shapes()
        carried = 5 * (how.fragments > 1) + 3 * (float(how.error_feedback) > 0)
        numbers = self.parameters() + self.trained() * (3 + self.moments() + carried)
        numbers += 2 * max(math.prod(shape) for shape in shapes.values())
        if self.inner.optimizer == "muon":
            sides = (sorted(shape) for shape in shapes.values() if len(shape) == 2)
            numbers += max((2 * a * (a + b) for a, b in sides), default=0)
        activations = self.batch * self.family.activations_per_sample(self.data.window)
        cast = 2 * (self.parameters() + activations) + 4 * 2**20 if self.precision == "bf16" else 0
        return 4 * (numbers + activations) + cast + self.kept_bytes() + 32 * min(self.trained(), 2**18) + 8 * 2**20

    def kept_bytes(self) -> int:
        """Of a round's snapshots that a provider keeps until they are audited: each so-manieth.

        So they are no more than KEPT_BYTES; the others are computed again.
        """
        if not float(self.audit.fraction):
            return 0
        segments = -(-self.steps // self.audit.segment)
        every = max(1, -(-segments * self.snapshot_bytes() // KEPT_BYTES))
        return segments // every * self.snapshot_bytes()

    def snapshot_bytes(self) -> int:
        """Of theta and moments, at most."""
        return (1 + self.moments()) * self.state_bytes()

    def round_bytes(self, shard_bytes: int) -> int:
        """All that a round takes at a provider.

        It is `memory_bytes`, the shard, 32 bytes for each of its rows (the order in which they are drawn), and the
        packed result.
        """
        family = self.family
        match family:
            case Decoder():
                rows = 0
            case Encoder():
                rows = shard_bytes // (8 * self.data.window)
            case _:
                row = 4 * (family.inputs + family.classes) if self.loss == "squared_error" else 4 * family.inputs + 8
                rows = shard_bytes // row
        return self.memory_bytes() + shard_bytes + 32 * rows + self.upload_bytes()

    def state_bytes(self) -> int:
        """Tensor bytes of theta or of one uncompressed pseudo-gradient: 4 per trained number."""
        return 4 * self.trained()

    def upload_bytes(self) -> int:
        """Tensor bytes of one result, its safetensors header (some 100 a tensor) not counted.

        With n trained numbers in b = ceil(n / block) blocks: f32 4 n; int8 n + 4 b; int4 ceil(n / 2) + 4 b; topk, of
        k kept a block, b x (ceil(k x bits / 8) + 2 k + 4): values, 16-bit places, and a scale; with 2 bits two scales.
        """
        n, how = self.trained(), self.compression
        blocks = -(-n // how.block)
        match how.method:
            case "f32":
                return 4 * n
            case "int8":
                return n + 4 * blocks
            case "int4":
                return -(-n // 2) + 4 * blocks
            case "topk":
                return blocks * (-(-how.kept * how.bits // 8) + 2 * how.kept + (8 if how.bits == 2 else 4))
