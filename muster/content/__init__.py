"""Folders as content: a work folder becomes a manifest of chunks by digest, and a manifest a folder again.

The client reads a folder, a store keeps its chunks, and a host writes and verifies the folder. All three use this
package, so it holds no transport and no policy.
"""
