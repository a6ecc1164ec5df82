"""Nothing here waits for the disk, or measures the machine for every run."""

from tests.spared import _no_test_waits_for_the_disk, _the_peak_is_measured_once  # noqa: F401 - used by all tests here
