"""Configuration files: TOML, strict, with errors that name the file and the field. One module per role.

Paths are relative to the file that names them, so that a folder with its configuration can be moved.
"""

from nodewire.config.any_role import AnyRole, load_role
from nodewire.config.customer import CustomerConfig, ProviderChoice
from nodewire.config.fields import (
    DEFAULT_WALLET,
    Address,
    Amount,
    CommitteeAt,
    Congestion,
    Device,
    ManifestAt,
    Person,
    Size,
    SpliceAt,
    WalletKind,
    msat_of,
    parse_msat,
)
from nodewire.config.file import File, Section, line_of
from nodewire.config.oracle import BondsConfig, OracleConfig
from nodewire.config.provider import (
    AutoConfig,
    BondConfig,
    CreditConfig,
    LnurlConfig,
    ProviderConfig,
    Serve,
    TrainConfig,
)
from nodewire.config.registrar import TreasuryConfig
from nodewire.config.role import HolderConfig, MetricsConfig, ModelPin, Role, WalletConfig, WireConfig, WorkerConfig

__all__ = [
    "DEFAULT_WALLET",
    "Address",
    "Amount",
    "AnyRole",
    "AutoConfig",
    "BondConfig",
    "BondsConfig",
    "CommitteeAt",
    "Congestion",
    "CreditConfig",
    "CustomerConfig",
    "Device",
    "File",
    "HolderConfig",
    "LnurlConfig",
    "ManifestAt",
    "MetricsConfig",
    "ModelPin",
    "OracleConfig",
    "Person",
    "ProviderChoice",
    "ProviderConfig",
    "Role",
    "Section",
    "Serve",
    "Size",
    "SpliceAt",
    "TrainConfig",
    "TreasuryConfig",
    "WalletConfig",
    "WalletKind",
    "WireConfig",
    "WorkerConfig",
    "line_of",
    "load_role",
    "msat_of",
    "parse_msat",
]
