"""Parsers of raw texts, one module a source. Each raises `Unreadable` for a text that is no answer of its kind."""
