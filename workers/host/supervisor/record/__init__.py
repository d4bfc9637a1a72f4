"""What is recorded of an attempt: output, training lines, exit record."""
