// RocketMQ's official client for Node, as a process that is driven by lines of JSON: commands on standard input, their
// answers and what happens to its clients on standard output. The module rocketmq-client-nodejs is found by NODE_PATH.
'use strict';

const { createInterface } = require('node:readline');
const { setTimeout: pause } = require('node:timers/promises');

const write = process.stdout.write.bind(process.stdout);
// The client has a log of its own that may speak up here.
process.stdout.write = process.stderr.write.bind(process.stderr);

const { ConsumeResult, FilterExpression, Producer, PushConsumer, SimpleConsumer } = require('rocketmq-client-nodejs');
const {
  FilterType,
  TransactionResolution,
} = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const clients = new Map();
const transactions = new Map();
const views = new Map();
const held = new Map();
let number = 0;

const say = line => write(`${JSON.stringify(line)}\n`);
const report = (client, event, more) => say({ client, event, at: Date.now(), ...more });

function note(level) {
  return (...words) => process.stderr.write(`${level} ${require('node:util').format(...words)}\n`);
}
const logger = { debug() {}, info() {}, warn: note('warning'), error: note('error') };

function known(table, key) {
  if (!table.has(key)) throw new Error(`there is no ${key}`);
  return table.get(key);
}

function seen(view) {
  number += 1;
  views.set(number, view);
  return {
    token: number,
    message_id: view.messageId,
    topic: view.topic,
    body: view.body.toString('base64'),
    corrupted: view.corrupted === true,
    tag: view.tag,
    message_group: view.messageGroup,
    keys: view.keys,
    properties: Object.fromEntries(view.properties),
    born_host: view.bornHost,
    born_at: view.bornTimestamp?.getTime(),
    deliver_at: view.deliveryTimestamp?.getTime(),
    attempt: view.deliveryAttempt,
    offset: view.offset,
    priority: view.priority,
    receipt_handle: view.receiptHandle,
    sent_out_at: view.transportDeliveryTimestamp?.getTime(),
  };
}

function composed(message) {
  const { body, properties, deliver_at: deliverAt, message_group: messageGroup, ...same } = message;
  return {
    ...same,
    body: Buffer.from(body, 'base64'),
    properties: properties && new Map(Object.entries(properties)),
    deliveryTimestamp: deliverAt === undefined ? undefined : new Date(deliverAt),
    messageGroup,
  };
}

const receipt = ({ messageId, transactionId, recallHandle, offset }) => ({
  message_id: messageId,
  transaction_id: transactionId,
  recall_handle: recallHandle,
  offset,
});

function expression({ tag, sql }) {
  return sql === undefined ? new FilterExpression(tag) : new FilterExpression(sql, FilterType.SQL);
}

function filters(subscriptions) {
  return new Map(Object.entries(subscriptions).map(([topic, filter]) => [topic, expression(filter)]));
}

// What is done with the messages of a body, time after time; the last one counts for all further times.
function planned(plans, usual) {
  const times = new Map();
  return view => {
    const body = view.body.toString('latin1');
    const plan = plans?.[body];
    if (plan === undefined) return usual;
    const time = times.get(body) ?? 0;
    times.set(body, time + 1);
    return plan[Math.min(time, plan.length - 1)];
  };
}

function listener(name, { outcomes, usual, work }) {
  const next = planned(outcomes, usual);
  return {
    async consume(view) {
      const message = seen(view);
      report(name, 'delivered', { message });
      let outcome = next(view);
      if (outcome === 'hold') outcome = await new Promise(resolve => held.set(message.token, resolve));
      if (work) await pause(work);
      report(name, 'handled', { token: message.token, outcome });
      views.delete(message.token);
      if (outcome === 'throw') throw new Error('the handler failed');
      return outcome === 'success' ? ConsumeResult.SUCCESS : ConsumeResult.FAILURE;
    },
  };
}

function checker(name, { verdicts, usual }) {
  const next = planned(verdicts, usual);
  const resolutions = {
    commit: TransactionResolution.COMMIT,
    rollback: TransactionResolution.ROLLBACK,
    unknown: TransactionResolution.TRANSACTION_RESOLUTION_UNSPECIFIED,
    nothing: null,
  };
  return {
    async check(view) {
      const message = seen(view);
      let verdict = next(view);
      report(name, 'checked', { message, verdict });
      if (verdict === 'hold') verdict = await new Promise(resolve => held.set(message.token, resolve));
      if (verdict === 'throw') throw new Error('the checker failed');
      return resolutions[verdict];
    },
  };
}

async function started(name, client) {
  clients.set(name, client);
  await client.startup();
  return client.clientId;
}

const commands = {
  producer({ name, options, checks }) {
    const checking = checks && { checker: checker(name, checks) };
    return started(name, new Producer({ ...options, ...checking, logger }));
  },

  push({ name, options, subscriptions, handling }) {
    const messageListener = listener(name, handling);
    return started(name, new PushConsumer({ ...options, subscriptions: filters(subscriptions), messageListener, logger }));
  },

  simple({ name, options, subscriptions }) {
    return started(name, new SimpleConsumer({ ...options, subscriptions: filters(subscriptions), logger }));
  },

  async send({ name, message }) {
    return receipt(await known(clients, name).send(composed(message)));
  },

  // Many at a time, but not all of them.
  async send_many({ name, messages, together }) {
    const receipts = [];
    const producer = known(clients, name);
    for (let first = 0; first < messages.length; first += together) {
      const some = messages.slice(first, first + together).map(message => producer.send(composed(message)));
      receipts.push(...(await Promise.all(some)).map(receipt));
    }
    return receipts;
  },

  async half({ name, message }) {
    const producer = known(clients, name);
    const transaction = producer.beginTransaction();
    const sent = receipt(await producer.send(composed(message), transaction));
    transactions.set(sent.transaction_id, transaction);
    return sent;
  },

  commit: ({ transaction }) => known(transactions, transaction).commit(),
  rollback: ({ transaction }) => known(transactions, transaction).rollback(),

  async recall({ name, topic, handle }) {
    return (await known(clients, name).recallMessage(topic, handle)).messageId;
  },

  async receive({ name, most, invisible }) {
    return (await known(clients, name).receive(most, invisible)).map(seen);
  },

  ack: ({ name, token }) => known(clients, name).ack(known(views, token)),

  async change_invisible({ name, token, invisible }) {
    const view = known(views, token);
    await known(clients, name).changeInvisibleDuration(view, invisible);
    return view.receiptHandle;
  },

  release({ token, outcome }) {
    known(held, token)(outcome);
    held.delete(token);
  },

  async shutdown({ name }) {
    await known(clients, name).shutdown();
    clients.delete(name);
  },
};

async function obey({ id, command, ...rest }) {
  try {
    say({ id, result: (await commands[command](rest)) ?? null });
  } catch (error) {
    const causes = [];
    for (let each = error; each instanceof Error; each = each.cause) causes.push(`${each.name}: ${each.message}`);
    let root = error;
    while (root?.cause instanceof Error) root = root.cause;
    say({ id, error: { name: root?.name, code: root?.code ?? null, text: causes.join(' <- ') || String(error) } });
  }
}

const lines = createInterface({ input: process.stdin });
lines.on('line', line => obey(JSON.parse(line)));
lines.on('close', () => process.exit(0));
