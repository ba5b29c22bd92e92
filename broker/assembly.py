"""Builds the broker's parts from settings: which service gets which port. The only module that knows all parts."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from broker.api.access import ChangeRecorder, Gate
from broker.cells.checks import ProducerWatcher, RoutedAnswers, SessionsOfCell
from broker.errors import ConfigurationError
from broker.maintenance import retention, state_sampler
from broker.maintenance.audit_recorder import AuditRecorder
from broker.maintenance.clock_synchroniser import ClockSynchroniser
from broker.maintenance.delay_scheduler import DelayScheduler
from broker.maintenance.end_offset_watcher import EndOffsetWatcher
from broker.maintenance.lease_watcher import LeaseWatcher
from broker.maintenance.primary_watcher import PrimaryWatcher
from broker.maintenance.quota_watcher import QuotaWatcher
from broker.maintenance.readiness_watcher import ReadinessWatcher
from broker.maintenance.retention import RetentionSweeper
from broker.maintenance.rules_watcher import RulesWatcher
from broker.maintenance.state_sampler import StateSampler
from broker.maintenance.status_reporter import StatusReporter
from broker.maintenance.submission_releaser import SubmissionReleaser
from broker.maintenance.transaction_checker import TransactionChecker
from broker.maintenance.turn_keeper import HOLD, INTERVAL, Turn, TurnKeeper
from broker.metrics.gauges import LaneQueue, Sources, Used
from broker.metrics.metrics import Metrics
from broker.ports.connections import BrokerStatus
from broker.ports.observer import NO_OBSERVER, Observer, both
from broker.ports.tracer import NO_TRACER, Tracer
from broker.services.auditing import Audit
from broker.services.catalog import Catalog, CatalogConfig
from broker.services.connections import BrokerReports, Connections
from broker.services.consuming.config import DeliveryConfig
from broker.services.consuming.delivery import DeliveryService
from broker.services.consuming.reading import QueueReader
from broker.services.consuming.receipts import ReceiptService
from broker.services.forwarding import ForwardService
from broker.services.operating.access import AccessOperations
from broker.services.operating.cluster import ClusterOperations
from broker.services.operating.dead_letters import DeadLetterService
from broker.services.operating.groups import GroupService
from broker.services.operating.health import FailureTally, OwnHealth
from broker.services.operating.queries import MessageQueries
from broker.services.operating.topics import TopicService
from broker.services.operating.transactions import TransactionOperations
from broker.services.positions import Positions
from broker.services.producing.check_sessions import CheckSessions
from broker.services.producing.checks import CheckAnswers
from broker.services.producing.epochs import EpochService
from broker.services.producing.sending import SendService
from broker.services.producing.submissions import SubmissionService
from broker.services.producing.transactions import TransactionService
from broker.services.producing.validation import MessageValidator
from broker.services.quotas import Quotas
from broker.services.rights import Rights
from broker.services.wakeups import Wakeups
from broker.storage.adapters.store import Store
from broker.storage.engine.group_commit import LaneConfig
from broker.wire.credentials.authentication import Credentials
from broker.wire.credentials.files import WatchedFile
from broker.wire.credentials.jwt import Jwts, JwtSettings
from broker.wire.credentials.tokens import FIELD, read_tokens

if TYPE_CHECKING:
    from collections.abc import Mapping

    from broker.config import BrokerConfig
    from broker.console.server import ConsoleServer
    from broker.maintenance.loop import Loop
    from broker.ports.checks import CheckStreams
    from broker.rocketmq.gateway import Gateway
    from broker.storage.engine.connection import Database
    from broker.tracing.export import ExportingTracer
    from broker.wire.interceptor import CallInterceptor


OF_FILE = 30.0
"""Seconds between two rounds of what keeps turns, on a database in a file."""


@dataclass(slots=True)
class Parts:
    """The broker's parts, wired together."""

    store: Store
    catalog: Catalog
    wakeups: Wakeups
    sessions: CheckSessions
    delivery_config: DeliveryConfig
    transactions: TransactionService
    sending: SendService
    answers: CheckAnswers
    epochs: EpochService
    delivery: DeliveryService
    receipts: ReceiptService
    forwarding: ForwardService
    reader: QueueReader
    topics: TopicService
    groups: GroupService
    dead_letters: DeadLetterService
    operations: TransactionOperations
    queries: MessageQueries
    cluster: ClusterOperations
    failures: FailureTally
    connections: Connections
    reports: BrokerReports
    reporter: StatusReporter
    access: AccessOperations
    audit: Audit
    quotas: Quotas
    rights: Rights
    readiness: ReadinessWatcher
    turns: TurnKeeper
    loops: list[Loop]


@dataclass(frozen=True, slots=True)
class Beside:
    """What another cell's parts share with those of the home database.

    Attributes:
        home: the parts of the home database.
        number: of the cell.
        answers: takes producers' answers to checks.
    """

    home: Parts
    number: int
    answers: RoutedAnswers

    def streams(self, catalog: Catalog) -> SessionsOfCell:
        """The producers' streams, for the checks of a cell with this catalog."""
        return SessionsOfCell(self.home.sessions, self.home.catalog, catalog, self.answers.told_by(self.number))


def assemble(
    config: BrokerConfig,
    database: Database,
    observer: Observer = NO_OBSERVER,
    make_store: type[Store] = Store,
    tracer: Tracer = NO_TRACER,
    beside: Beside | None = None,
) -> Parts:
    """Builds the parts on a database; nothing runs yet.

    Args:
        config: the settings.
        database: the database.
        observer: what the parts report to.
        make_store: the storage's class.
        tracer: what records traces of messages.
        beside: what they share with the parts of the home database, if it is another cell.
    """
    failures = FailureTally()
    database.observer = both(observer, failures)
    policy = config.check_policy()
    store = make_store(
        database,
        broker_id=config.name,
        policy=policy,
        lanes=LaneConfig(reconnect_timeout=config.reconnect_timeout, observer=observer),
        keep_history=config.history_hours > 0,
    )
    audit, quotas = Audit(store), Quotas(store)
    rights = Rights(store, audit, quotas)
    connections = Connections(store.clock) if beside is None else beside.home.connections
    reports = BrokerReports(store, connections, _status(config))
    wakeups, positions = Wakeups(), Positions(store)
    sessions = CheckSessions(observer, tracer) if beside is None else beside.home.sessions
    catalog = Catalog(store, store, store, _catalog_config(config, beside))
    validator = MessageValidator(catalog, store.clock, config.limits())
    transactions = TransactionService(store, catalog, validator, positions, wakeups, observer, tracer)
    sending = SendService(store, validator, positions, wakeups, observer, tracer)
    answers = CheckAnswers(store, store, transactions, observer, tracer)
    streams: CheckStreams = sessions
    if beside is not None:
        streams = seen = beside.streams(catalog)
        beside.answers.add(beside.number, answers, seen)
    delivery_config = replace(DeliveryConfig(), lease_time=int(config.lease * 1e6), has_cells=bool(config.cells))
    readiness, reporter = ReadinessWatcher(store), StatusReporter(reports)
    of_retention = Turn(retention.TASK)
    # A file has one broker: nobody follows it.
    interval, hold = (OF_FILE, int(3e6 * OF_FILE)) if database.dialect.one_writer else (INTERVAL, HOLD)
    turns = TurnKeeper(store, [of_retention], interval=interval, hold=hold)
    return Parts(
        store=store,
        catalog=catalog,
        wakeups=wakeups,
        sessions=sessions,
        delivery_config=delivery_config,
        transactions=transactions,
        sending=sending,
        answers=answers,
        epochs=EpochService(store, catalog, validator, wakeups, observer),
        delivery=DeliveryService(store, store, catalog, wakeups, delivery_config, observer, tracer),
        receipts=ReceiptService(store, positions, wakeups, delivery_config, catalog.numbered_groups),
        forwarding=ForwardService(store, sending, validator, wakeups, catalog.numbered_groups),
        reader=QueueReader(store, catalog, wakeups, delivery_config),
        topics=TopicService(store, catalog),
        groups=GroupService(store, catalog, wakeups),
        dead_letters=DeadLetterService(store, catalog, wakeups),
        operations=TransactionOperations(store, transactions, catalog, positions, policy),
        queries=MessageQueries(store, store, catalog, positions),
        cluster=ClusterOperations(
            store,
            store,
            store.clock,
            OwnHealth(config.name, failures, lambda: readiness.ready, lambda: store.clock.ahead),
            keep_ops=config.retention,
        ),
        failures=failures,
        connections=connections,
        reports=reports,
        reporter=reporter,
        access=AccessOperations(store, store, store, rights),
        audit=audit,
        quotas=quotas,
        rights=rights,
        readiness=readiness,
        turns=turns,
        loops=[
            readiness,
            turns,
            *([PrimaryWatcher(store)] if database.dialect.kind is not None else []),
            *([RulesWatcher(rights), QuotaWatcher(quotas)] if config.access and beside is None else []),
            *([AuditRecorder(audit)] if beside is None else []),
            *([ProducerWatcher(streams)] if isinstance(streams, SessionsOfCell) else []),
            reporter,
            TransactionChecker(store, streams, policy, store.clock),
            EndOffsetWatcher(store, wakeups),
            LeaseWatcher(store, wakeups),
            ClockSynchroniser(store),
            DelayScheduler(store, wakeups, store.clock),
            SubmissionReleaser(SubmissionService(store, validator, wakeups, observer)),
            RetentionSweeper(
                store,
                of_retention,
                keep_ops=config.retention,
                keep_events=int(config.history_hours * 3600e6),
                keep_leftovers=int(config.sink_hours * 3600e6),
                keep_audit=int(config.audit_days * 24 * 3600e6),
            ),
        ],
    )


def _status(config: BrokerConfig) -> BrokerStatus:
    """What this broker tells of itself; its address and the time come when it listens."""
    return BrokerStatus(config.name, socket.gethostname(), os.getpid(), config.listen, version("halfmq"), 0)


def _catalog_config(config: BrokerConfig, beside: Beside | None) -> CatalogConfig:
    return CatalogConfig(
        # One that is created by being named is at home. Elsewhere it would be in no list, and found by nobody.
        create_topics=config.auto_create and beside is None,
        create_groups=config.creates_groups,
        queue_count=config.queue_count,
        retention=config.retention,
        client_groups=config.client_groups,
    )


def make_tracer(config: BrokerConfig) -> ExportingTracer | None:
    """Builds what sends traces; None if none are to be sent.

    Raises:
        ConfigurationError: OpenTelemetry is not installed, or its settings in the environment are not usable.
    """
    if not config.traces:
        return None
    try:
        from broker.tracing.export import ExportingTracer  # noqa: PLC0415 - of an extra that is optional
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"traces need {error.name}, which is not installed: pip install 'halfmq[opentelemetry]'.", field="traces"
        ) from None
    try:
        return ExportingTracer(config.name)
    except ValueError as error:
        raise ConfigurationError(f"OpenTelemetry's settings cannot be used: {error}.", field="traces") from None


def make_metrics(config: BrokerConfig) -> Metrics | None:
    """Makes what observes a broker for metrics; None if nobody asks for them."""
    if not config.metrics_listen:
        return None
    return Metrics(
        most_names=config.metrics_names,
        keep_ops=config.retention,
        broker_id=config.name,
    )


def attach_metrics(metrics: Metrics, config: BrokerConfig, parts: Parts, guard: CallInterceptor) -> Loop:
    """Shows the metrics where to read what the parts know; returns the loop that takes samples for them."""
    store, budgets = parts.store, guard.in_use

    metrics.attach(
        Sources(
            budgets=lambda: [Used(*each) for each in budgets()],
            lanes=lambda: [LaneQueue(lane.name, *lane.waiting) for lane in store.lanes],
            producers=parts.sessions.streams,
            consumers=parts.delivery.streams,
            is_away=lambda: store.is_away,
            certificate=config.tls_certificate,
        ),
        store.clock.now,
    )
    turn = Turn(state_sampler.TASK)
    parts.turns.add(turn)
    return StateSampler(store, metrics, turn, config.metrics_interval)


def make_console(
    config: BrokerConfig,
    servicers: Mapping[str, Any],
    gate: Gate | None,
    audit: Audit,
    guard: CallInterceptor,
    *,
    shares_port: bool,
) -> ConsoleServer | None:
    """Builds the console; None if there is none.

    Raises:
        ConfigurationError: what it needs is not installed, or the certificate cannot be used.
    """
    if not config.console_listen:
        return None
    try:
        from broker.console.app import console  # noqa: PLC0415 - of an extra that is optional
        from broker.console.calls import Calls  # noqa: PLC0415
        from broker.console.rendering import FOLDER  # noqa: PLC0415
        from broker.console.server import ConsoleServer  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"The console needs {error.name}, which is not installed: pip install 'halfmq[console]'.",
            field="console_listen",
        ) from None
    if not (FOLDER / "assets" / "vendor" / "versions").exists():
        raise ConfigurationError(
            "The console's scripts are missing: they are in the wheel, and scripts/assets fetches them for a checkout.",
            field="console_listen",
        )
    calls = Calls(servicers, gate, ChangeRecorder(audit), guard)
    hosts = [host.strip().lower() for host in config.console_hosts.split(",") if host.strip()]
    app = console(calls, hosts=hosts, encrypted=bool(config.tls_certificate))
    return ConsoleServer(
        app,
        config.console_listen,
        certificate=config.tls_certificate,
        key=config.tls_key,
        # Where tokens are asked for, a browser needs no certificate; otherwise nothing else tells who may be here.
        client_ca="" if config.access else config.tls_client_ca,
        shares_port=shares_port,
    )


GATEWAY = "apache.rocketmq.v2.MessagingService"
"""The service of RocketMQ's protocol, which judges its calls itself."""


def make_gate(config: BrokerConfig, parts: Parts) -> Gate | None:
    """Builds the gate that all calls go through; None if everybody is let in.

    Raises:
        ConfigurationError: a file of credentials is not usable.
    """
    if not config.access:
        return None
    jwts = None
    if config.jwt_keys:
        jwts = Jwts(JwtSettings(config.jwt_keys, config.jwt_audience, config.jwt_issuer, config.jwt_clock_skew))
    tokens = WatchedFile(config.access_tokens, read_tokens, field=FIELD) if config.access_tokens else None
    credentials = Credentials(tokens, jwts, certificates=config.access_certificates, plain=config.access_without_tls)
    return Gate(credentials, parts.rights, judging=[GATEWAY])


def make_gateway(config: BrokerConfig, parts: Parts, guard: CallInterceptor) -> Gateway:
    """Builds the gateway for RocketMQ's clients.

    Raises:
        ConfigurationError: an address or the file of keys is not usable.
    """
    from broker.rocketmq.gateway import Gateway, GatewayConfig  # noqa: PLC0415 - of an extra that is optional

    return Gateway(
        GatewayConfig(
            host=config.name,
            endpoints=config.rocketmq_endpoints,
            keys=config.rocketmq_keys,
            signature_window=config.signature_window,
            shortest_invisible=int(config.rocketmq_min_invisible * 1e6),
        ),
        clock=parts.store.clock,
        catalog=parts.catalog,
        transactions=parts.transactions,
        sending=parts.sending,
        answers=parts.answers,
        sessions=parts.sessions,
        connections=parts.connections,
        delivery=parts.delivery,
        receipts=parts.receipts,
        delivery_config=parts.delivery_config,
        reader=parts.reader,
        topics=parts.topics,
        groups=parts.groups,
        guard=guard,
        rights=parts.rights if config.access else None,
    )
