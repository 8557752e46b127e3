"""`nodewire doctor`: what works from here and what to change where it does not."""

from __future__ import annotations

import asyncio
import importlib.metadata
import os
import platform
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from nodewire.cli.common.roles import enter_market, name_relays, wallet_of
from nodewire.cli.doctor import disk
from nodewire.cli.doctor import network as doctor_network
from nodewire.cli.doctor.reach import Check, CheckResult
from nodewire.cli.output import OPERATORS, Json, console, in_words, one_line, price_of_work, print_json, sats
from nodewire.config import (
    AnyRole,
    CustomerConfig,
    OracleConfig,
    ProviderConfig,
    Serve,
    TrainConfig,
    WorkerConfig,
    load_role,
)
from nodewire.errors import BadConfig, NodewireError, NotFound, OverMemory, PaymentFailed
from nodewire.net import host_port
from nodewire.net.loopback import is_loopback
from nodewire.protocol.model.manifest import Manifest
from nodewire.provider.tasks.loader import price_of, slots_of
from nodewire.store.state_lock import is_held

_ANSWER_S = 5.0
_MOST_SCRAPED = 2**20
_LEAST_TO_TRAIN = 100 * 10**6
"""Bytes: next to no round fits into less."""


def doctor(
    config: Annotated[
        Path | None, typer.Option("--config", "-c", help="A role's TOML file: check all that it names, too.")
    ] = None,
    json: Json = False,
) -> None:
    """Check this machine and, with a configuration, everything that it names. Exits with 1 if anything fails."""
    rows = asyncio.run(_examine(config, show=not json))
    is_ok = all(found.ok for _, found in rows)
    if json:
        checks = [{"what": what, "ok": found.ok, "said": found.said, **found.facts} for what, found in rows]
        print_json({"ok": is_ok, "checks": checks})
    if not is_ok:
        sys.exit(1)


def add_to(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATORS)(doctor)


async def _examine(config: Path | None, *, show: bool = False) -> list[tuple[str, CheckResult]]:
    """What each check found, shown as soon as those before it are; they are made at once, but those of the network."""
    role = load_role(config) if config is not None else None
    checks = [*_machine_checks(role), *(_role_checks(role) if role is not None else ())]
    rows = []
    async with asyncio.TaskGroup() as group:
        under_way = [(what, group.create_task(_finding(check))) for what, check in checks]
        for what, task in under_way:
            found = await task
            rows.append((what, found))
            if show:
                mark = "[green]✓" if found.ok else "[red]✗"
                console.print(f"{mark}[/] {one_line(what)}  [dim]{one_line(found.said)}[/]", soft_wrap=True)
    return rows


def _machine_checks(role: AnyRole | None) -> list[Check]:
    """Checks of this machine that every role needs."""
    checks: list[Check] = [("Python", _python), ("packages", _packages)]
    if isinstance(role, ProviderConfig) or find_spec("torch") is not None:
        level = role.worker.sandbox if role is not None and role.worker is not None else "full"
        checks.append(("worker sandbox", partial(_sandbox, level)))
    return checks


def _role_checks(role: AnyRole) -> list[Check]:
    """Checks of everything that a role's file names."""
    return [*_network_checks(role), *_market_checks(role), *_worker_checks(role), *_money_checks(role)]


def _network_checks(role: AnyRole) -> list[Check]:
    checks: list[Check] = [(f"relay {url}", partial(_relay, url)) for url in role.relays]
    checks += [(f"blob store {url}", partial(_store, url)) for url in role.blossom]
    network = asyncio.Lock()  # they share ports
    checks += [(what, partial(_after, network, check)) for what, check in doctor_network.checks(role)]
    if not isinstance(role, CustomerConfig) and role.metrics.listen:
        checks.append((f"metrics at {role.metrics.listen}", partial(_metrics, role.metrics.listen, role.state)))
    return checks


def _market_checks(role: AnyRole) -> list[Check]:
    """Checks of the disk with the market's records, of the committee, and of people whom the file names."""
    checks: list[Check] = [(f"disk at {role.state}", partial(disk.check, role))]
    checks.append(("committee and epochs", partial(_committee, role)))
    if not isinstance(role, OracleConfig) and role.names:
        checks.append(("[names]", partial(_names, role)))
    return checks


def _worker_checks(role: AnyRole) -> list[Check]:
    """Checks of the models and tasks that are served, of a training, and of a draft model."""
    checks: list[Check] = []
    if isinstance(role, ProviderConfig):
        checks.append(("[worker] device", partial(_device, role.worker.device)))
        for number, one in enumerate(role.serve, start=1):
            checks.append((f"[[serve]] number {number}", partial(_serve, role, one)))
        if len(role.serve) > 1:
            checks.append(("[worker] memory", partial(_serve_all, role)))
        if role.specialize is not None:
            checks.append(("specialize", partial(_follows, role)))
        if role.train is not None:
            checks.append(("[train]", partial(_train, role.worker, role.train, _machine_bytes())))
    if not isinstance(role, OracleConfig) and role.worker.draft is not None:
        checks.append(("[worker] draft", partial(_draft, role.worker.draft)))
    return checks


def _money_checks(role: AnyRole) -> list[Check]:
    checks: list[Check] = []
    if not isinstance(role, OracleConfig) or role.bonds is not None:
        checks.append(("wallet", partial(_wallet, role)))
    if isinstance(role, ProviderConfig) and role.bond.amount_msat:
        checks.append(("bond", partial(_bond, role)))
    return checks


async def _after(turn: asyncio.Lock, check: Callable[[], Awaitable[CheckResult | str]]) -> CheckResult | str:
    async with turn:
        return await check()


async def _finding(check: Callable[[], Awaitable[CheckResult | str]]) -> CheckResult:
    try:
        found = await check()
    except NodewireError as error:
        return CheckResult(False, in_words(error), {})
    return found if isinstance(found, CheckResult) else CheckResult(True, found, {})


async def _python() -> str:
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        raise BadConfig("python", f"{platform.python_version()} runs; 3.11, 3.12 or 3.13 is needed")
    return platform.python_version()


async def _packages() -> str:
    if int(importlib.metadata.version("bitstring").split(".")[0]) >= 5:
        raise BadConfig("bitstring", "version 5 breaks bolt11; install what constraints.txt names")
    try:
        return f"torch {importlib.metadata.version('torch')}"
    except importlib.metadata.PackageNotFoundError:
        return "no torch: this installation buys and certifies, and computes nothing itself"


async def _sandbox(level: str) -> str:
    from nodewire.kind import Limits
    from nodewire.worker.client import WorkerProcess

    worker = await WorkerProcess.start("kinds.k8843_worker", Limits(memory_bytes=50_000_000, sandbox=level))
    said = worker.hello.sandbox
    await worker.stop()
    return said


async def _relay(url: str) -> str:
    from nodewire.nostr.nips.nip01 import Filter
    from nodewire.nostr.pool import Pool

    with name_relays([url]):
        async with Pool([url]) as pool:
            await pool.fetch([Filter(limit=1)], timeout_s=_ANSWER_S)
    return "answers"


async def _store(url: str) -> str:
    import aiohttp

    if not url.startswith(("http://", "https://")):
        raise BadConfig("blossom", f"{url!r} is not an http(s) URL")
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ANSWER_S)) as session,
            session.head(f"{url.rstrip('/')}/{'0' * 64}") as answer,  # a blob that nobody has
        ):
            if answer.status >= 500:
                raise NotFound(url, f"it answers {answer.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise NotFound(url, f"does not answer: {str(error) or f'within {_ANSWER_S:.0f} s'}") from error
    return "answers"


async def _metrics(listen: str, state: Path) -> str:
    """Whether the endpoint answers, if its daemon runs; and who else may read it."""
    import aiohttp

    from nodewire.metrics.endpoint import BUILD, PATH

    host, port = host_port.parse(listen, "metrics.listen", least_port=0, error=BadConfig)
    if port == 0:
        return "a free port is taken at each start: Prometheus needs a fixed one"
    said = "its daemon is not running, so nobody was asked"
    if await asyncio.to_thread(is_held, state):
        url = f"http://{host_port.written(doctor_network.from_here(host), port)}{PATH}"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_ANSWER_S)) as session,
                session.get(url) as answer,
            ):
                text = (await answer.content.read(_MOST_SCRAPED)).decode("utf-8", "replace")
                if answer.status != 200 or BUILD.name not in text:
                    raise BadConfig("metrics.listen", f"{url} answers {answer.status}, and is not this daemon's")
        except (aiohttp.ClientError, TimeoutError) as error:
            raise NotFound(
                "metrics.listen",
                f"{url} does not answer: {str(error) or f'within {_ANSWER_S:.0f} s'}. [metrics] counts from"
                " the daemon's next start",
            ) from error
        said = "answers"
    if not is_loopback(host):
        said += (
            "; there is no password: at that address anybody can read the earnings and services of this daemon."
            ' Set listen = "127.0.0.1:…", or let a firewall admit Prometheus alone'
        )
    return said


async def _committee(role: AnyRole) -> str:
    async with AsyncExitStack() as stack:
        stack.enter_context(name_relays(role.relays))
        _, _, market = await enter_market(stack, role)
        following = asyncio.create_task(market.follow())
        stack.callback(following.cancel)
        epoch = await market.epoch(timeout_s=15.0)
        snapshot = await market.snapshot(epoch.body.snapshot)
        return f"{market.committee.name}: epoch {epoch.body.epoch} certified, {len(snapshot.nodes)} nodes live"


async def _names(role: CustomerConfig | ProviderConfig) -> str:
    """Whether every pinned model is there, in the version that is pinned."""
    async with AsyncExitStack() as stack:
        stack.enter_context(name_relays(role.relays))
        _, _, market = await enter_market(stack, role)
        for alias, pin in role.names.items():
            try:
                await market.manifest(pin.manifest, pin.digest)
            except NotFound as error:
                raise NotFound(f"names.{alias}", f"{error}; `nodewire models pin {alias} ADDRESS --replace`") from error
    return ", ".join(f"{alias} is {pin.manifest.split(':', 2)[2]}" for alias, pin in role.names.items())


async def _serve(role: ProviderConfig, wanted: Serve) -> str:
    """Whether the manifest has these tasks, and the worker room for them."""
    async with AsyncExitStack() as stack:
        stack.enter_context(name_relays(role.relays))
        _, _, market = await enter_market(stack, role)
        manifest = await market.manifest(wanted.manifest, wanted.digest)
    names = [task.name for task in manifest.tasks]
    if missing := [name for name in wanted.tasks if name not in names]:
        raise BadConfig("tasks", f"{manifest.name} has no {', '.join(missing)}; it has {', '.join(names)}")
    price_msat = price_of(wanted, manifest)
    slots = slots_of((wanted,), (manifest,), role.worker.for_sessions)[0][manifest.digest()]
    sizes = [manifest.bytes_at(name, slots) for name in wanted.tasks]
    least, whole = max(sizes), sum(sizes)
    if role.worker.memory < least:
        raise OverMemory(
            "worker.memory",
            f"{role.worker.memory / 1e6:.1f} MB; {' and '.join(wanted.tasks)} of {manifest.name} may need"
            f' {whole / 1e6:.1f} MB: set [worker] memory = "{-(-whole // 10**6)}MB" or more'
            + _fewer(manifest, wanted, role.worker.memory),
        )
    has = role.worker.memory * role.worker.processes
    return (
        f"{manifest.name}: {', '.join(wanted.tasks)}, {slots} slots, may need {whole / 1e6:.1f} of {has / 1e6:.1f} MB,"
        f" each task for {price_of_work(price_msat, manifest.mode, manifest.chunk)}"
    )


def _fewer(manifest: Manifest, wanted: Serve, memory_bytes: int) -> str:
    """The number of sessions that would fit instead, in words; empty if none does."""
    each = manifest.slot_bytes(wanted.tasks)
    if not each:
        return ""
    most = (memory_bytes - sum(manifest.bytes_at(name, 0) for name in wanted.tasks)) // each
    return f", or slots = {most}" if most > 0 else ""


async def _device(device: str) -> str:
    from nodewire.worker import devices

    await devices.check(device)
    return device


async def _draft(folder: Path) -> str:
    """Whether drivers could guess by this model, which they are not loaded without."""
    from nodewire.llm.checkpoint.checkpoint import open_checkpoint

    try:
        checkpoint = await asyncio.to_thread(open_checkpoint, folder)
    except (NodewireError, OSError) as error:
        raise BadConfig("worker.draft", f"{folder}: {error}"[:300]) from error
    return f"{checkpoint.config.family}, {checkpoint.config.vocab_size} tokens, which a driver's model must have, too"


async def _serve_all(role: ProviderConfig) -> str:
    """Whether the workers have room for the tasks of every [[serve]] together."""
    async with AsyncExitStack() as stack:
        stack.enter_context(name_relays(role.relays))
        _, _, market = await enter_market(stack, role)
        found = [await market.manifest(one.manifest, one.digest) for one in role.serve]
    _, needed = slots_of(role.serve, found, role.worker.for_sessions)
    whole, has = sum(needed.values()), role.worker.memory * role.worker.processes
    said = f"all of [[serve]] may need {whole / 1e6:.1f} of {has / 1e6:.1f} MB"
    if whole > has:
        each = -(-whole // role.worker.processes // 10**6)
        raise OverMemory("worker.memory", f'{said}: set [worker] memory = "{each}MB" or more, or serve less')
    return said


async def _follows(role: ProviderConfig) -> str:
    """What a provider that follows demand holds, and why; and whether what it chooses from is to be had."""
    from nodewire.provider.autoscale import store

    async with AsyncExitStack() as stack:
        stack.enter_context(name_relays(role.relays))
        _, _, market = await enter_market(stack, role)
        manifests = [await market.manifest(address) for address in role.auto.manifests]
        known = store.read(role.state)
        held = await market.manifest(known.address, known.digest) if known is not None else None
    chooses = ", ".join(manifest.name for manifest in manifests) or "all that the market holds"
    if known is None or held is None:
        return f"nothing is held yet; chooses from {chooses}"
    return f"{', '.join(known.tasks)} of {held.name} since epoch {known.since}: {known.why}; chooses from {chooses}"


async def _train(worker: WorkerConfig, train: TrainConfig, machine_bytes: int) -> str:
    """Whether the workers' memory is enough for a round, and the machine's for all of them."""
    each, all_ = worker.memory, worker.memory * train.concurrency
    if each < _LEAST_TO_TRAIN:
        raise OverMemory(
            "worker.memory",
            f"{each / 1e6:g} MB; rounds of training need {_LEAST_TO_TRAIN / 1e6:g} MB at the very least:"
            ' set [worker] memory = "2GB", say',
        )
    said = f"{train.concurrency} at a time of {each / 1e6:,.0f} MB each, of the machine's {machine_bytes / 1e6:,.0f} MB"
    if all_ > machine_bytes and not worker.device.startswith("cuda"):
        most = machine_bytes // train.concurrency // 10**6
        raise OverMemory("worker.memory", f'{said}: set [worker] memory = "{most}MB" or less')
    return f"{', '.join(train.families)}; {said}"


def _machine_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


async def _wallet(role: AnyRole) -> str:
    from nodewire.pay import registry

    account = wallet_of(role)
    wallet = registry.wallet_class(account.kind).from_file(account.url, account.token_file)
    try:
        await registry.check_network(wallet, account.kind, account.network)
        balance_msat = await wallet.balance_msat()
    finally:
        await wallet.close()
    if isinstance(role, CustomerConfig) and not balance_msat:
        how = "`nodewire wallet open URL --out FILE --balance 1000sat` opens an account with play money in it"
        raise PaymentFailed("balance", f"it is empty: nothing can be bought; {how}")
    return sats(balance_msat)


async def _bond(role: ProviderConfig) -> str:
    """Whether the bond is there, or the wallet has what it takes."""
    from nodewire.nostr.keys import Keys
    from nodewire.pay import registry
    from nodewire.pay.accounts.payer import Fees

    wallet = registry.wallet_class(role.wallet.kind).from_file(role.wallet.url, role.wallet.token_file)
    try:
        balance_msat = await wallet.balance_msat()
        try:
            bond = await registry.bond_holder(role.wallet.kind, wallet, role.holder).bond(
                Keys.from_file(role.key).public
            )
            held_msat, state = bond.remainder_msat, bond.state
        except NotFound:
            held_msat, state = 0, "released"
    finally:
        await wallet.close()
    if state not in ("locked", "released"):
        raise BadConfig("bond", f"it is {state}: a provider with this key is not bonded")
    lacks_msat = max(0, role.bond.amount_msat - (held_msat if state == "locked" else 0))
    needed_msat = lacks_msat and lacks_msat + Fees().most(lacks_msat)
    if balance_msat < needed_msat:
        raise PaymentFailed(
            "bond",
            f"{sats(needed_msat)} are to be locked, fees included, and the wallet has {sats(balance_msat)}: pay into"
            " it, or lower [bond] amount_msat",
        )
    held = f"{sats(held_msat)} locked" if state == "locked" else "not locked yet"
    return f"{held}, {sats(role.bond.amount_msat)} wanted; the wallet suffices"
