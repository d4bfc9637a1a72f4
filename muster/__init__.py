"""The parts that every Muster process shares: domain, wire, database, use cases, client."""

__version__ = "0.1.0"
