"""The nightly report: gather what the store knows -> one frozen page -> HTML, Markdown, JSON -> mail and webhooks."""
