"""The choice of attempts that give GPUs back, and their notice."""
