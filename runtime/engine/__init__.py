"""Scheduler, sampler and the request queue."""
