"""What every Muster process shares: the domain, the wire, the database, the use cases, the client."""

__version__ = "0.1.0"
