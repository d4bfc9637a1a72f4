"""Why a job waits, as sentences and tokens."""
