"""The policy's versions."""

from muster.db.models.versions import DocumentVersion


class PolicyVersion(DocumentVersion):
    """The whole policy as it was stored, ``muster.domain.policy.document.Policy``."""

    __tablename__ = "policy_versions"
