from alembic import context

from broker.storage.migrations.resuming import resume

connection, names = (context.config.attributes[given] for given in ("connection", "names"))
context.configure(connection=connection, version_table=names.versions, render_as_batch=True, names=names)
resume(context.get_context())
with context.begin_transaction():
    context.run_migrations()
