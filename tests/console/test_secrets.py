"""Pages of secrets: names, versions and reads are shown, values are written and shown nowhere."""

from collections.abc import Iterator

import pytest
from sqlalchemy import select

from api.secret_keys import keys_of
from console.pages import secrets as pages
from control.secrets import tenant_secrets
from control.secrets.envelopes import Place
from control.secrets.job_secrets import values_for
from muster.db.models import AuditEntry, Secret
from muster.domain.errors import SecretKeyError
from muster.domain.principals import Principal, Role, system_principal
from tests.console.conftest import Console, words_of
from tests.control.secrets.secret_case import KeyService
from tests.console.test_plans import submit

VALUE = "canary-of-a-value"
