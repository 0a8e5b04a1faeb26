"""Client-level differential privacy: what is released of the shared model hardly depends on any one client."""

from fedapm.privacy.accountant import gaussian_delta, gaussian_epsilon
from fedapm.privacy.method import Private, private
from fedapm.privacy.settings import PrivacySettings

__all__ = ["PrivacySettings", "Private", "gaussian_delta", "gaussian_epsilon", "private"]
