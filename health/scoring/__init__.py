"""The score of a GPU, from its evidence alone."""
