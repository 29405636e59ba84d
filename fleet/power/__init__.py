"""Power: how a duck is started, stopped and restarted from outside."""
