"""Loads the conformance kit's count."""

pytest_plugins = ["det_testing.plugin"]
