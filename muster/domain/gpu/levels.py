"""The levels of the tree that are always there; the policy names those between them."""

from typing import Final

FLEET_LEVEL: Final = "fleet"
NODE_LEVEL: Final = "node"
