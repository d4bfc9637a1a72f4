"""The planner's input, and the commit of what it decides: placements, holds, sizes and preflights."""
