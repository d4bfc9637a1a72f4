"""Whose GPU time is charged."""

from typing import Final

from ledger.accounts import OF_ATTEMPTS, Account

CHARGED: Final = OF_ATTEMPTS - {Account.CLEANING}
"""Accounts that a tenant pays: all time for which its attempt had the GPU. The proof of cleanness is the fleet's."""
