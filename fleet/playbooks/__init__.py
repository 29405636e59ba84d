"""Ansible playbooks on ducks or on the host: chosen from a catalogue, run by ansible-runner, kept, and read."""
