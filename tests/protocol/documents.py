"""Small valid documents that the protocol's tests change one field of."""

from nodewire.nostr.keys import Keys
from nodewire.protocol.job.plan import Assignment, Plan, Terms, Verification
from nodewire.protocol.model.manifest import BlobRef, Edge, Manifest, Task, Tensor

CUSTOMER = Keys(b"\x01" * 32)
PROVIDERS = [Keys(bytes([i]) * 32) for i in (2, 3, 4)]
HASH = "ab" * 32


def manifest() -> Manifest:
    def task(name: str, engine: str) -> Task:
        return Task(
            name=name,
            engine=engine,
            program=BlobRef(sha256=HASH, bytes=10),
            weights=(BlobRef(sha256=HASH, bytes=1000),),
            memory_bytes=5000,
            slots=2,
            flops=100,
        )

    def edge(name: str, source: str, target: str, back: bool = False) -> Edge:
        hidden = Tensor(name="hidden", dtype="float32", shape=(1, "s", 8))
        return Edge(
            name=name, source=source, target=target, tensors=(hidden,), dims={"s": 64}, bytes_per_position=32, back=back
        )

    return Manifest(
        name="tiny",
        mode="generate",
        context=256,
        tasks=(task("driver", "decoder.driver"), task("stage.0", "decoder.stage"), task("stage.1", "decoder.stage")),
        edges=(
            edge("prompt", "customer", "driver"),
            edge("hidden.0", "driver", "stage.0"),
            edge("hidden.1", "stage.0", "stage.1"),
            edge("return", "stage.1", "driver", back=True),
            edge("tokens", "driver", "customer"),
        ),
    )


def plan(**changes) -> Plan:
    fields = {
        "manifest": manifest().digest(),
        "committee": HASH,
        "epoch": 7,
        "snapshot": HASH,
        "certificate": HASH,
        "beacon": HASH,
        "customer": CUSTOMER.public,
        "k": 0,
        "terms": Terms(max_chunk_msat=10_000, max_total_msat=100_000),
        "tasks": tuple(
            Assignment(task=name, provider=keys.public, price_msat=1000)
            for name, keys in zip(("driver", "stage.0", "stage.1"), PROVIDERS, strict=True)
        ),
        "chunk_msat": 3000,
        "first_result_ms": 10_000,
        "next_result_ms": 5_000,
        "verification": Verification(policy="none", rate_ppm=0, share_ppm=0),
    }
    return Plan(**{**fields, **changes})
