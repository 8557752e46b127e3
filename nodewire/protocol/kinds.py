"""The numbers of nodewire's event kinds, all of them and only here. NIPS.md."""

from __future__ import annotations

FEDAVG = 8840
DILOCO = 8841
OUTER = 8842
ROUNDS = (FEDAVG, DILOCO)
TRAINING = (*ROUNDS, OUTER)
"""A round of training, by how its results become the next weights; and that outer step itself, as a paid job."""
INFERENCE = 8843
VERIFICATION = 8844
FEDSTR, FEDSTR_RESULT = 8000, 6000
"""Rounds of training in FEDSTR's own layout, behind a switch."""
FEEDBACK = 7000
INVENTORY = 8850
BEACON = 8851
CERTIFICATE = 8852
EVIDENCE = 8853
COMMITMENT = 8854
RECEIPT = 8856
BOND = 8858
CLOSE = 8859
"""Of a round of training: what is drawn of its results follows from it."""
MANIFEST = 38840
COMMITTEE = 38841
AD = 31990
BEAT = 11998
TICKET = 28841
WIRE_AUTH = 28842
OFFER = 28843
"""A rumor: how a node that cannot be dialled is met."""
SPLICE = 28844
"""What is asked of a splice; never published."""


def result_of(request: int) -> int:
    """The kind that answers a job request of kind `request`."""
    return request - 2000
