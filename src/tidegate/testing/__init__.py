"""Public kit for tests: a real broker with quotas, and a clock that moves only when asked to.

>>> from tidegate.testing import broker
>>> with broker(quotas=[{"client-id": "loader", "producer_byte_rate": "1MiB"}]) as kafka:  # doctest: +SKIP
...     run_my_application(kafka.bootstrap)
...     assert kafka.throttles(client_id="loader")

`docs/testing-applications.md` describes both. Importing this package is cheap: pytest does it in every run, for the
plugin `tidegate.testing.pytest_plugin`.
"""

from tidegate.testing.clock import ManualClock
from tidegate.testing.process import BrokerError
from tidegate.testing.running_broker import Broker, broker
from tidegate.testing.served import ServedRequest

__all__ = ["Broker", "BrokerError", "ManualClock", "ServedRequest", "broker"]
