"""What `make bench` measures: ratios of both sides in one run, never a test that can be late."""
