"""Version 1: one file per noun, each with its routes in the order create, list, get, change, delete."""
