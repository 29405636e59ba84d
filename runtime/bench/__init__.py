"""Benchmarks of the runtime, one module each; `duckctl bench` finds them by name (contract: fleet/benches.py)."""
