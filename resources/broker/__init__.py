"""Work for many machines, through RabbitMQ: the contract that names a queue, the gate before it, and the executor.

Only `contract` is imported without the extra `cluster`; the others need Celery and dagster-celery.
"""
