"""Where one gang goes."""
