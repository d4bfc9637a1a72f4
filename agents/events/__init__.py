"""What is told beside samples: states when they change, counters when they rose."""
