"""What every test runs under."""

import os

os.environ["KINFOLK_CHECK_SHAPES"] = "1"
