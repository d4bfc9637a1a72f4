"""GPUs kept for a job: backfill, reclaim, quota and spare holds."""
