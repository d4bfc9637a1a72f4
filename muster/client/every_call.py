"""Every call of the API, described once for both clients."""

from muster.client.fleet import FleetCalls
from muster.client.gpus import GpuCalls
from muster.client.jobs import JobCalls
from muster.client.persons import PersonCalls
from muster.client.tenants import TenantCalls


class EveryCall(JobCalls, GpuCalls, FleetCalls, TenantCalls, PersonCalls):
    """A new part of the API adds its calls here."""
