"""Benchmarks of the fleet: boot, placement, probes."""
