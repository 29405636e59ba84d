"""Reports to where people read them: mail and webhooks, with what did not arrive kept for the next time."""
