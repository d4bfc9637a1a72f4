"""Records of an attempt: output, training lines, exit record."""
