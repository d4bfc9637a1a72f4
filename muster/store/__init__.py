"""The content store: signed addresses of any S3-compatible store, and our own service where there is none.

The control plane signs, clients and hosts use the addresses with plain HTTP. None of them holds a key of the store, and
no chunk passes the API.
"""
