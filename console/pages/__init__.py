"""The pages, a module each: read through services as the viewer, render, change through services."""
