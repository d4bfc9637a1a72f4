"""A node's history as records that ``muster health replay`` plays again."""
