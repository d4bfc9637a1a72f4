"""What shows while a GPU works or rests: clocks, heat, power."""
