"""Memory: ECC errors, remapped rows, retired pages."""
