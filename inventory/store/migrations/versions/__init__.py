"""Migrations of the store, run by `duckfleet.inventory.store.migrate`."""
