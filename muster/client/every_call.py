"""Every call of the API, described once for both clients."""

from muster.client.bulk import BulkCalls
from muster.client.bundles import BundleCalls
from muster.client.figures import FigureCalls
from muster.client.fleet import FleetCalls
from muster.client.gpu_history import GpuPastCalls
from muster.client.gpus import GpuCalls
from muster.client.jobs import JobCalls
from muster.client.ledger import LedgerCalls
from muster.client.money import MoneyCalls
from muster.client.notifications import NotificationCalls
from muster.client.outputs import OutputCalls
from muster.client.persons import PersonCalls
from muster.client.policies import PolicyCalls
from muster.client.rollups import RollupCalls
from muster.client.secrets import SecretCalls
from muster.client.tenants import TenantCalls


class EveryCall(
    JobCalls,
    OutputCalls,
    BundleCalls,
    GpuCalls,
    GpuPastCalls,
    FleetCalls,
    RollupCalls,
    FigureCalls,
    BulkCalls,
    LedgerCalls,
    TenantCalls,
    PersonCalls,
    PolicyCalls,
    SecretCalls,
    NotificationCalls,
    MoneyCalls,
):
    """A new part of the API adds its calls here."""
