"""Alembic's environment: the connection is handed over by `migrate`, and so is its transaction."""

from alembic import context

from duckfleet.inventory.store.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=True,
    render_as_batch=True,
)
context.run_migrations()
