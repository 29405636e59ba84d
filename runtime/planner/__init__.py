"""Pure planning of shards: who holds which columns."""
