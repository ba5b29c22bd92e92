from alembic import context

from broker.storage.migrations.resuming import resume
from broker.storage.schema import metadata

connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=metadata, render_as_batch=True)
resume(context.get_context())
with context.begin_transaction():
    context.run_migrations()
