"""The pure planner: from fleet, queue, running attempts and policy to placements, holds and reclaims."""
