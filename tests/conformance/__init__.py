"""Test suites of other projects, run as they are installed, with our objects in between."""
