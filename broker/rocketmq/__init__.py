"""The gateway for official RocketMQ 5 clients: their protocol, spoken by halfmq's own services.

Nothing is stored or decided here. A request is translated (names, identities, messages), handed to the service that
the native protocol uses too, and the answer is translated back; so messages, transactions and groups are the same ones
whichever protocol named them.
"""
