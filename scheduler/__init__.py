"""Who runs where: a pure planner over fleet state, and the loop that feeds it and commits what it decides."""
