"""The policy: a section a file, and the document that holds them all."""
