/* Delivery to one consumer group: first deliveries, acks, nacks, expiry, redelivery, dead letters.
 *
 * Database transaction by database transaction, as in transactions.pml. The log is what transactions.pml and sends.pml
 * commit: here messages only appear in it. A lease holds one or several messages; any unexpired lease may expire at any
 * time.
 *
 *   step here                    code
 *   FIRST                        broker/storage/delivery/dispatch.py; backlog.py, look; claims.py, claim
 *   TAKE_OVER, BURY              broker/storage/delivery/redelivery.py, redeliver, _give_up; dead_letters.py, move
 *   were_made                    broker/storage/delivery/claims.py, were_made
 *   ACK, NACK                    broker/storage/delivery/receipts.py, settle; settlement.py; fencing.py
 *   still_true                   receipts.py, still_true
 */

#ifndef WORKERS
#define WORKERS 2
#endif
#ifndef MESSAGES
#define MESSAGES 2
#endif
#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef RESENDS
#define RESENDS 1     /* acks and nacks that are repeated, together */
#endif
#ifndef NACKS
#define NACKS 1
#endif
#ifndef MAX_ATTEMPTS
#define MAX_ATTEMPTS 2
#endif

#define IN_DOUBT WORKERS
#define SESSIONS (WORKERS + 1)
#define FREE 255
#define LEASES (MESSAGES + NACKS)
#define DELIVERIES 7                 /* MESSAGES * MAX_ATTEMPTS, and those whose COMMIT never came */
#define ALL ((1 << MESSAGES) - 1)
#define holds(mask, m) (((mask) >> (m)) & 1)

mtype = { NOTHING, FIRST, TAKE_OVER, BURY, REMOVE, ACK, NACK, ANSWERED, UNKNOWN }

/* The tables: queue, group_progress, lease. Sets of messages are bitmaps. */
byte next_offset = 0
byte progress = 0
byte progress_lock = FREE
byte leases_made = 0
byte open[LEASES]                    /* not settled; a lease without any is deleted */
byte moved[LEASES]                   /* nacked, into another lease */
byte token[LEASES]                   /* 0: nobody has it */
byte attempt[LEASES]
bool due[LEASES]                     /* available_at has passed */
byte lease_lock[LEASES] = FREE
byte dead = 0                        /* in the dead letter topic */

mtype work[SESSIONS] = NOTHING
byte lease[SESSIONS]
byte messages[SESSIONS]
byte own_token[SESSIONS]

/* What consumers hold, and their calls under way, by the token of the delivery. */
byte held[DELIVERIES + 1]
byte acked_by[DELIVERIES + 1]        /* messages of an ack under way */
byte nacked_by[DELIVERIES + 1]
byte lease_of[DELIVERIES + 1] = FREE /* what its receipt handles name; FREE: the lease was never made */
bool expired[DELIVERIES + 1]         /* the time of its lease is over */

byte faults = FAULTS, resends = RESENDS, nacks = NACKS

/* What the properties are about. */
byte acked = 0
byte tries[MESSAGES]
byte newest[MESSAGES]                /* the delivery under which a message was delivered last */

inline deliver(t, mask)
{
  for (i : 0 .. MESSAGES - 1) {
    if
    :: holds(mask, i) ->
       assert(!holds(acked, i) && !holds(dead, i));      /* terminal states never change */
       tries[i]++;
       assert(tries[i] <= MAX_ATTEMPTS);
       newest[i] = t
    :: else
    fi }
}

inline new_lease(mask, t, tried)
{
  open[leases_made] = mask; token[leases_made] = t; attempt[leases_made] = tried; due[leases_made] = false;
  if
  :: t != 0 -> lease_of[t] = leases_made
  :: else
  fi;
  leases_made++
}

/* Each message behind the mark is in one lease, or settled. */
inline examine()
{
  for (i : 0 .. MESSAGES - 1) {
    count = 0;
    for (k : 0 .. LEASES - 1) { count = count + holds(open[k], i) }
    count = count + holds(acked, i) + holds(dead, i);
    assert(count == (i < progress -> 1 : 0)) };
  i = 0; k = 0; count = 0
}

inline execute(s)
{
  if
  :: work[s] == FIRST ->
     assert(messages[s] == (messages[s] >> progress) << progress && holds(messages[s], progress));   /* in order */
     deliver(own_token[s], messages[s]);
     new_lease(messages[s], own_token[s], 1);
     do
     :: progress < MESSAGES && holds(messages[s], progress) -> progress++
     :: else -> break
     od
  :: work[s] == TAKE_OVER ->
     assert(due[lease[s]] && open[lease[s]] == messages[s]);   /* nobody else has a live lease */
     deliver(own_token[s], messages[s]);
     token[lease[s]] = own_token[s]; attempt[lease[s]]++; due[lease[s]] = false;
     lease_of[own_token[s]] = lease[s]
  :: work[s] == BURY ->
     assert((dead & messages[s]) == 0);                  /* a dead letter once */
     dead = dead | messages[s];
#ifdef BROKEN_DEAD_LETTER_APART
     skip
  :: work[s] == REMOVE -> open[lease[s]] = open[lease[s]] & ~messages[s]
#else
     open[lease[s]] = open[lease[s]] & ~messages[s]
#endif
  :: work[s] == ACK ->
     for (i : 0 .. MESSAGES - 1) {
       assert(!holds(messages[s] & open[lease[s]], i) || newest[i] == own_token[s]) };   /* an old receipt does nothing */
     acked = acked | (messages[s] & open[lease[s]]);
     open[lease[s]] = open[lease[s]] & ~messages[s]
  :: work[s] == NACK ->
     if
     :: (open[lease[s]] & messages[s]) == 0              /* acknowledged before: unchanged */
     :: else ->
        open[lease[s]] = open[lease[s]] & ~messages[s];
        moved[lease[s]] = moved[lease[s]] | messages[s];
        if
        :: attempt[lease[s]] >= MAX_ATTEMPTS -> dead = dead | messages[s]
        :: else -> new_lease(messages[s], 0, attempt[lease[s]])
        fi
     fi
  fi;
#ifndef BROKEN_DEAD_LETTER_APART
  examine()
#endif
}

inline close(s)
{
  if
  :: progress_lock == s -> progress_lock = FREE
  :: else
  fi;
  if
  :: lease_lock[lease[s]] == s -> lease_lock[lease[s]] = FREE
  :: else
  fi;
  work[s] = NOTHING; lease[s] = 0; messages[s] = 0; own_token[s] = 0
}

inline leave_to(s)
{
  work[s] = work[me]; lease[s] = lease[me]; messages[s] = messages[me]; own_token[s] = own_token[me];
  if
  :: progress_lock == me -> progress_lock = s
  :: else
  fi;
  if
  :: lease_lock[lease[me]] == me -> lease_lock[lease[me]] = s
  :: else
  fi;
  close(me)
}

inline commit_now()
{
  if
  :: execute(me); close(me);
     if
     :: outcome = ANSWERED
     :: faults > 0 -> faults--; outcome = UNKNOWN
     fi
  :: faults > 0 && work[IN_DOUBT] == NOTHING -> faults--; leave_to(IN_DOUBT); outcome = UNKNOWN
  fi
}

proctype Server(byte s)
{
  byte i, k, count;
end:
  do
  :: atomic { work[s] != NOTHING ->
       if
       :: execute(s)
       :: skip
       fi;
       close(s) }
  od
}

#define lowest(mask) ((mask) & ~((mask) & ((mask) - 1)))

/* A call is taken on; it may be repeated, or doubled by the network. */
inline taken(call)
{
  if
  :: call = 0
  :: resends > 0 -> resends--
  fi
}

/* Whether some call is under way; and one of them, by its delivery. */
#define asks(calls) (calls[1] || calls[2] || calls[3] || calls[4] || calls[5] || calls[6] || calls[7])
#define pick(calls) \
  if :: calls[1] -> t = 1 :: calls[2] -> t = 2 :: calls[3] -> t = 3 :: calls[4] -> t = 4 :: calls[5] -> t = 5 \
  :: calls[6] -> t = 6 :: calls[7] -> t = 7 fi

/* One that nobody has, or can have. */
inline new_token()
{
  t = 1;
  do
  :: lease_of[t] != FREE || own_token[0] == t || own_token[1] == t || own_token[IN_DOUBT] == t -> t++
  :: else -> break
  od
}

proctype Worker(byte me)
{
  byte i, k, count, t, mask;
  bool valid_before;
  mtype outcome = ANSWERED, doing = NOTHING;

#define crash() faults > 0 -> faults--; close(me); goto finished

end_idle:
  atomic {
    if
    :: progress < next_offset && progress_lock == FREE -> goto first
    :: due[0] && open[0] != 0 && lease_lock[0] == FREE -> k = 0; goto redeliver
#if LEASES > 1
    :: due[1] && open[1] != 0 && lease_lock[1] == FREE -> k = 1; goto redeliver
#endif
#if LEASES > 2
    :: due[2] && open[2] != 0 && lease_lock[2] == FREE -> k = 2; goto redeliver
#endif
#if LEASES > 3
    :: due[3] && open[3] != 0 && lease_lock[3] == FREE -> k = 3; goto redeliver
#endif
    :: asks(acked_by) -> pick(acked_by); mask = acked_by[t]; taken(acked_by[t]); goto ack
    :: asks(nacked_by) -> pick(nacked_by); mask = nacked_by[t]; taken(nacked_by[t]); goto nack
    fi }

first:
  atomic {
    if                                                   /* SKIP LOCKED, and looked at again */
    :: progress_lock == FREE && progress < next_offset -> progress_lock = me
    :: else -> goto finished
    fi;
    new_token();
    own_token[me] = t; work[me] = FIRST;
    mask = 1 << progress;
    if
    :: skip                                              /* no more fits */
    :: next_offset > progress + 1 -> mask = mask | (2 << progress)
    fi;
    messages[me] = mask;
    goto commit }
redeliver:
  atomic {
    if                                                   /* SKIP LOCKED, and looked at again */
#ifdef BROKEN_TAKE_OVER_UNLOCKED
    :: attempt[k] < MAX_ATTEMPTS
    :: attempt[k] >= MAX_ATTEMPTS && lease_lock[k] == FREE && due[k] && open[k] != 0 -> lease_lock[k] = me
#else
    :: lease_lock[k] == FREE && due[k] && open[k] != 0 -> lease_lock[k] = me
#endif
    :: else -> goto finished
    fi;
    lease[me] = k; messages[me] = open[k];
    mask = open[k];
    if
    :: attempt[k] >= MAX_ATTEMPTS -> work[me] = BURY
    :: else -> new_token(); own_token[me] = t; work[me] = TAKE_OVER
    fi;
    goto commit }
#ifdef BROKEN_DEAD_LETTER_APART
remove_apart:                                            /* the lease, after its messages are dead letters */
  atomic { lease_lock[k] == FREE ->
    lease_lock[k] = me; work[me] = REMOVE; lease[me] = k; messages[me] = mask; goto commit }
#endif
were_made:
  atomic { work[IN_DOUBT] == NOTHING || own_token[IN_DOUBT] != t ->
    if
    :: lease_of[t] != FREE && token[lease_of[t]] == t -> mask = mask & open[lease_of[t]]
    :: else -> goto finished                             /* claimed again */
    fi }
hand_out:
  atomic {
    assert(lease_of[t] != FREE);                         /* what consumers get is theirs */
    held[t] = mask;
    goto finished }

ack:
  atomic { lease_lock[lease_of[t]] == FREE ->
    if
#ifdef BROKEN_NO_TOKEN
    :: open[lease_of[t]] != 0 && (moved[lease_of[t]] & mask) == 0 ->
#else
    :: open[lease_of[t]] != 0 && token[lease_of[t]] == t && (moved[lease_of[t]] & mask) == 0 ->
#endif
       lease_lock[lease_of[t]] = me;
       work[me] = ACK; lease[me] = lease_of[t]; messages[me] = mask; own_token[me] = t; goto commit
    :: else ->
#ifdef BROKEN_STILL_TRUE_WITHOUT_TIME
       assert(!valid_before || (acked & mask) == mask);  /* told as done, by the first run: it is */
#else
       assert(!valid_before || expired[t] || (acked & mask) == mask);   /* told as done, in time, by the first run: it is */
#endif
       goto finished
    fi }
nack:
  atomic { lease_lock[lease_of[t]] == FREE ->
    if
    :: open[lease_of[t]] != 0 && token[lease_of[t]] == t && (moved[lease_of[t]] & mask) == 0 ->
       lease_lock[lease_of[t]] = me;
       work[me] = NACK; lease[me] = lease_of[t]; messages[me] = mask; own_token[me] = t; goto commit
    :: else -> goto finished
    fi }

commit:
  atomic {
    doing = work[me];
    if
    :: commit_now()
    :: crash()
    fi;
    if
    :: outcome == UNKNOWN -> goto finished               /* nobody has them, until the lease expires */
#ifdef BROKEN_REDO_WITHOUT_LOOK
    :: outcome == UNKNOWN && (doing == FIRST || doing == TAKE_OVER) -> goto hand_out
#else
    :: outcome == UNKNOWN && (doing == FIRST || doing == TAKE_OVER) -> own_token[me] = t; goto were_made
#endif
    :: outcome == UNKNOWN && doing == ACK -> valid_before = true; goto ack
    :: outcome == UNKNOWN && doing == NACK -> goto nack
    :: outcome == ANSWERED && (doing == FIRST || doing == TAKE_OVER) -> goto hand_out
    :: outcome == ANSWERED && doing == ACK -> assert((acked & mask) == mask); goto finished
#ifdef BROKEN_DEAD_LETTER_APART
    :: outcome == ANSWERED && doing == BURY -> goto remove_apart
    :: outcome == ANSWERED && (doing == NACK || doing == REMOVE) -> goto finished
#else
    :: outcome == ANSWERED && (doing == NACK || doing == BURY) -> goto finished
#endif
    fi }

finished:
  atomic { own_token[me] = 0; i = 0; k = 0; count = 0; t = 0; mask = 0; valid_before = false; outcome = ANSWERED;
    doing = NOTHING; goto end_idle }
}

/* Consumers: of each delivery they ack all or one message, nack one, or leave it: its consumer dies. */
proctype Consumers()
{
  byte t, answered;
end:
  do
  :: atomic { asks(held) -> pick(held);
       answered = held[t];
       if
       :: acked_by[t] == 0 -> acked_by[t] = answered
       :: acked_by[t] == 0 && lowest(answered) != answered -> answered = lowest(answered); acked_by[t] = answered
       :: nacked_by[t] == 0 && nacks > 0 -> nacks--; answered = lowest(answered); nacked_by[t] = answered
       :: skip
       fi;
#ifndef TWO_ANSWERS
       held[t] = held[t] & ~answered;
#else
       if
       :: held[t] = held[t] & ~answered
       :: resends > 0 -> resends--                       /* it answers for the same message once more, otherwise */
       fi;
#endif
       t = 0; answered = 0 }
  od
}

/* Messages are committed to the log, and leases end. */
proctype Time()
{
end:
  do
  :: next_offset < MESSAGES -> next_offset++
  :: atomic { open[0] != 0 && !due[0] -> due[0] = true; expired[token[0]] = true }
#if LEASES > 1
  :: atomic { open[1] != 0 && !due[1] -> due[1] = true; expired[token[1]] = true }
#endif
#if LEASES > 2
  :: atomic { open[2] != 0 && !due[2] -> due[2] = true; expired[token[2]] = true }
#endif
#if LEASES > 3
  :: atomic { open[3] != 0 && !due[3] -> due[3] = true; expired[token[3]] = true }
#endif
  od
}

/* Whatever happens, each message is acknowledged or a dead letter in the end. */
proctype Quiet()
{
  timeout ->
  assert(progress == MESSAGES && (acked | dead) == ALL && (acked & dead) == 0)
}

init {
  byte i;
  atomic {
    for (i : 0 .. WORKERS - 1) { run Worker(i) }
    run Server(IN_DOUBT); run Consumers(); run Time(); run Quiet();
    i = 0
  }
}
