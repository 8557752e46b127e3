"""The one table of typed errors: what went wrong, in which field, whether to try again, and at whose cost.

Every error that crosses a room's border is one of these. `code` is what travels in feedback events, wire close
frames and `--json` output; `field` names the offending part of the input; `retryable` says whether the same request
may succeed later or elsewhere; `pays` says who bears what it cost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

Payer = Literal["sender", "customer", "provider", "nobody"]


class NodewireError(Exception):
    """Base of the table. `str()` reads "field: reason"."""

    code: ClassVar[str] = "error"
    retryable: ClassVar[bool] = False
    pays: ClassVar[Payer] = "nobody"

    def __init__(self, field: str, reason: str = "") -> None:
        field, reason = _in_utf8(field), _in_utf8(reason)
        super().__init__(f"{field}: {reason}" if reason else field)
        self.field = field
        self.reason = reason
        self.by = ""
        """Whose word it is (a public key), of an error that a peer reported over the wire."""

    def as_dict(self) -> dict[str, Any]:
        """The error as plain data, for `--json` and the wire."""
        return {
            "code": self.code,
            "field": self.field,
            "reason": self.reason,
            "retryable": self.retryable,
            "pays": self.pays,
        }


class BadInput(NodewireError):
    """Whatever a peer or a user sent was malformed; it costs the sender."""

    code = "bad-input"
    pays = "sender"


class BadEvent(BadInput):
    """A Nostr event is malformed."""

    code = "bad-event"


class BadTag(BadEvent):
    """A tag of an event is malformed."""

    code = "bad-tag"


class BadSignature(BadInput):
    """A signature or an id does not match what it signs."""

    code = "bad-signature"


class BadHash(BadInput):
    """Content does not have the hash it was cited by."""

    code = "bad-hash"


class BadVersion(BadInput):
    """A version of the protocol that this software does not speak."""

    code = "bad-version"

    @classmethod
    def from_versions(cls, said: object, known: object) -> BadVersion:
        """The error where a document's `v` is `said`: a peer's words in few.

        They are left out where they are nested or a number of thousands of digits, which Python does not write.
        """
        fits = said is None or isinstance(said, str) or (isinstance(said, int) and said.bit_length() <= 64)
        return cls("v", f"{repr(said)[:40] if fits else type(said).__name__}; this software speaks {known}")

    @classmethod
    def check(cls, said: object, known: int) -> None:
        """Raises BadVersion unless `said` is the integer `known`: `1.0` and `true` are none, and equal it in Python."""
        if type(said) is not int or said != known:
            raise cls.from_versions(said, known)


class Unsupported(BadInput):
    """Well-formed, but something that this software does not do."""

    code = "unsupported"


class TooLarge(BadInput):
    """A length, count or rank is above its cap; nothing was allocated for it."""

    code = "too-large"


class BadManifest(BadInput):
    code = "bad-manifest"


class BadRecipe(BadInput):
    """A recipe breaks a cap or contradicts itself, or what it asks for does not train."""

    code = "bad-recipe"


class BadData(BadInput):
    """A data set or shard is empty, or not of the layout that its recipe names."""

    code = "bad-data"


class BadTask(BadInput):
    """A task's program or weights are not what the whitelist and its own types allow."""

    code = "bad-task"


class BadUpdate(BadInput):
    """A result of training is not of the model, the form or the size that its recipe fixes."""

    code = "bad-update"


class BadPlan(BadInput):
    code = "bad-plan"


class BadFrame(BadInput):
    """A frame is malformed, mis-keyed, of the wrong producer, or one that its consumer cannot compute."""

    code = "bad-frame"


class BadPeer(BadInput):
    """The other end of a link is not who it must be."""

    code = "bad-peer"


class BadCiphertext(BadInput):
    code = "bad-ciphertext"


class BadInvoice(BadInput):
    code = "bad-invoice"


class BadZap(BadInput):
    """A zap request, a receipt or a nutzap breaks a clause of NIP-57 or NIP-61."""

    code = "bad-zap"


class BadQuorum(BadInput):
    """A certificate lacks 2f+1 valid votes, or votes for something else."""

    code = "bad-quorum"


class BadConfig(NodewireError):
    """A configuration file or command line cannot be used as it is."""

    code = "bad-config"


class NotFound(NodewireError):
    code = "not-found"
    retryable = True


class Withheld(NotFound):
    """The one who has committed to some work does not show what it must keep: inputs, ticket or opening."""

    code = "withheld"
    pays = "provider"


class NotCarried(NotFound):
    """A provider of training has not, or no more, what it would have to carry on from the round before."""

    code = "not-carried"
    pays = "nobody"


class Ambiguous(NodewireError):
    """A name may mean several models, and nobody but the customer can say which."""

    code = "ambiguous"

    def __init__(self, field: str, reason: str = "", candidates: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__(field, reason)
        self.candidates = tuple(candidates)
        """What is known of each, its `address` among it."""

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "candidates": list(self.candidates)}


class NotAllowed(NodewireError):
    """The state or policy does not admit the request."""

    code = "not-allowed"


class Busy(NodewireError):
    """No room for the session or call; another provider, or a later moment, may do."""

    code = "busy"
    retryable = True


class PaymentRequired(NodewireError):
    """Work waits for a payment that is due."""

    code = "payment-required"
    retryable = True
    pays = "customer"


class WorkRequired(NodewireError):
    """The request carries less work than is asked of a key that has not paid; `bits` says how much is."""

    code = "work-required"
    retryable = True
    pays = "customer"

    def __init__(self, field: str, reason: str = "", bits: int = 0) -> None:
        super().__init__(field, reason)
        self.bits = bits


class PaymentFailed(NodewireError):
    """Lightning could not deliver; nothing was paid."""

    code = "payment-failed"
    retryable = True


class OverBudget(NodewireError):
    """The price is above what the customer allowed."""

    code = "over-budget"
    pays = "customer"


class NoQuorum(NodewireError):
    """The committee certified no usable epoch in time."""

    code = "no-quorum"
    retryable = True


class NoProvider(NodewireError):
    """No live provider serves a task under the customer's terms."""

    code = "no-provider"
    retryable = True


class TimedOut(NodewireError):
    code = "timed-out"
    retryable = True


class LinkLost(NodewireError):
    """A connection to a peer ended."""

    code = "link-lost"
    retryable = True


class RelayRefused(NodewireError):
    """A relay answered no (`reason` holds its words)."""

    code = "relay-refused"
    retryable = True


class NodeFailed(NodewireError):
    """A node cannot serve for a reason of its own: a full disk, its database, its memory, an error of its software."""

    code = "node-failed"
    retryable = True
    pays = "provider"


class WorkerFailed(NodeFailed):
    """A worker process died or broke its memory cap."""

    code = "worker-failed"


class OverMemory(NodewireError):
    """The work does not fit the memory it was given."""

    code = "over-memory"
    pays = "sender"


TABLE: dict[str, type[NodewireError]] = {}


def _register(cls: type[NodewireError]) -> None:
    assert cls.code not in TABLE, cls.code
    TABLE[cls.code] = cls
    for child in cls.__subclasses__():
        _register(child)


_register(NodewireError)


def _in_utf8(text: str) -> str:
    r"""`text`, in which a lone surrogate, which no wire and no JSON has, is what it is written as (\ud800).

    Python's `json` makes such of a stranger's document, and the error that quotes it must reach who is told.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def first_of(error: BaseException) -> BaseException:
    """The error itself; of a group of errors its first typed one, or else its first."""
    while isinstance(error, BaseExceptionGroup):
        error = next((e for e in error.exceptions if isinstance(e, NodewireError)), error.exceptions[0])
    return error


def from_dict(data: dict[str, object]) -> NodewireError:
    """The error that a peer reported; an unknown code becomes a plain NodewireError that keeps it in its text."""
    code, field, reason = (str(data.get(k, ""))[:200] for k in ("code", "field", "reason"))
    cls = TABLE.get(code)
    return cls(field, reason) if cls else NodewireError(field, f"{code}: {reason}")
