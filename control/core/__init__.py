"""One unit of work for every change, and what follows each one: events, audit entries and outbox messages."""
