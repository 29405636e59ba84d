"""The site file, node sets, frozen records and the store."""
