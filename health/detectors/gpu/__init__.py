"""The GPU as a whole: lost, misconfigured, its XIDs and its driver's requests."""
