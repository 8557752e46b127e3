import pytest

from nodewire.protocol.market.snapshot import HeldTasks, Node, Snapshot


@pytest.fixture
def snapshot_of():
    """A snapshot with nodes of (pubkey, held, load_ppm), as far as placement reads it."""

    def make(nodes: list[tuple[str, tuple[HeldTasks, ...], int]]) -> Snapshot:
        made = [
            Node(
                pubkey=pubkey,
                beat="0" * 64,
                ad="0" * 64,
                held=held,
                bond_msat=0,
                region="",
                load_ppm=load_ppm,
                coordinates=(1_000 * index, 0, 500),
                epochs=1,
            )
            for index, (pubkey, held, load_ppm) in enumerate(nodes)
        ]
        return Snapshot(committee="0" * 64, epoch=1, nodes=tuple(made), events=())

    return make
