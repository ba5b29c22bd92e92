"""The gateway for official RocketMQ 5 clients: their protocol on top of halfmq's services.

Nothing is stored or decided here. A request is translated (names, identities, messages), passed to the same service as
the native protocol's, and the answer is translated back; so messages, transactions and groups are shared by both
protocols.
"""
