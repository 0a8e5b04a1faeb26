"""Differential privacy: what is released hardly depends on any one client, or on any one sample of a client."""

from fedapm.privacy.accountant import gaussian_delta, gaussian_epsilon
from fedapm.privacy.method import Private, private
from fedapm.privacy.samples import STEPS, SiteSpending, protection
from fedapm.privacy.settings import PrivacySettings

__all__ = [
    "STEPS",
    "PrivacySettings",
    "Private",
    "SiteSpending",
    "gaussian_delta",
    "gaussian_epsilon",
    "private",
    "protection",
]
