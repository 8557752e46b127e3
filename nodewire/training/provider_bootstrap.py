"""Opens the training half of a provider: its ad, and a warm worker for every slot."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nodewire.errors import BadConfig
from nodewire.kind import installed_training
from nodewire.protocol import kinds
from nodewire.provider.outage import disk_check, ledger_check, worker_check
from nodewire.training.fedstr.job import Transfer
from nodewire.training.fedstr.service import Fedstr
from nodewire.training.protocol.trainer_ad import Trainer
from nodewire.training.provider.admission import TrainingAdmission
from nodewire.training.provider.outer_job import OUTER_TASK
from nodewire.training.provider.service import TrainingService
from nodewire.training.provider.shard_job import TASK
from nodewire.training.provider.store import KeptShards
from nodewire.worker.client import LONG_CALL_S
from nodewire.worker.persistent_worker import LastingWorker, maker

if TYPE_CHECKING:
    from contextlib import AsyncExitStack

    from nodewire.config import ProviderConfig, TrainConfig
    from nodewire.pay.accounts.till import Till
    from nodewire.training.provider.node import TrainerNode


async def open_training(
    stack: AsyncExitStack,
    config: ProviderConfig,
    train: TrainConfig,
    node: TrainerNode,
    *,
    till: Till,
    lnurl: str,
    unit_msat: int,
) -> tuple[TrainingService, Fedstr | None, list[LastingWorker]]:
    """What serves the rounds that `train` describes, and those in FEDSTR's layout where that is switched on.

    Their workers, which are the third, are ready when this returns.

    Raises:
        BadConfig: no installed package serves a kind of round that the configuration names.
        WorkerFailed, OverMemory: a worker cannot be started.

    """
    job_kinds = installed_training()
    entries = {job_kinds[kind].worker_entry for kind in train.kinds if kind in job_kinds}
    if len(entries) != 1:
        raise BadConfig("train.kinds", f"no installed package serves {', '.join(map(str, train.kinds))} in one worker")
    (entry,) = entries
    folder = config.state / "training"
    folder.mkdir(exist_ok=True)
    program = folder / "empty"
    program.touch()
    make = maker(stack, config.limits, folder, LONG_CALL_S)
    workers = [make(entry) for _ in range(train.concurrency)]
    tasks = [OUTER_TASK] * (kinds.OUTER in train.kinds) + [TASK] * any(kind != kinds.OUTER for kind in train.kinds)
    await asyncio.gather(*(worker.load(task, task, program, []) for worker in workers for task in tasks))
    kept = KeptShards(folder / "shards.db")
    stack.callback(kept.close)
    ad = _describe(config, train, node.keys.public, lnurl, unit_msat)
    admission = TrainingAdmission(node.keys.public, ad, job_kinds, node.ledger)
    training = TrainingService(
        node=node,
        ad=ad,
        admission=admission,
        kept=kept,
        workers=workers,
        folder=folder,
        checks=[disk_check(folder), ledger_check(node.ledger), worker_check(lambda: [w.revived() for w in workers])],
    )
    if not train.fedstr:
        return training, None, workers
    fedstr = Fedstr(
        node=node,
        till=till,
        ad=ad,
        admission=admission,
        free=training.free,
        folder=folder / "fedstr",
        transfer=Transfer(config.blossom, train.private_endpoints),
        outage=training.outage,
    )
    return training, fedstr, workers


def _describe(config: ProviderConfig, train: TrainConfig, public: str, lnurl: str, unit_msat: int) -> Trainer:
    charges = bool(train.msat_per_pflop or train.least_msat)
    return Trainer(
        # An ad's address is kind and name: it must not replace the one for inference.
        name=f"{config.name or f'nodewire-{public[:8]}'}.train"[-64:],
        kinds=train.kinds,
        families=train.families,
        msat_per_pflop=train.msat_per_pflop,
        least_msat=train.least_msat,
        gflops=train.gflops,
        memory_bytes=config.worker.memory,
        most_bytes=train.most,
        concurrency=train.concurrency,
        deposit_ppm=train.deposit_ppm,
        credit_msat=train.credit_msat,
        unit_msat=unit_msat,
        lnurl=lnurl if charges else "",
        pow_bits=config.pow_bits,
        hardware=config.hardware,
        region=config.region,
        relays=config.relays,
    )
