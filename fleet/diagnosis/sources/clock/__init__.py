"""Sources about the real-time clock and its battery."""
