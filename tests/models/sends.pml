/* Ordinary messages: sends with one id for each message, repeated to any broker, into one queue that a consumer reads.
 *
 * Database transaction by database transaction, as in transactions.pml.
 *
 *   step here                 code
 *   look, take_offsets, SEND  broker/storage/log/log.py, send, _append; log/offsets.py, take_offsets
 *   SEND_KNOWN                log.py, _send_new; log/queue_ends.py
 *   Reader                    broker/storage/delivery/backlog.py: what the group has not got, up to the queue's end
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
#define RESENDS 1
#endif

#define IN_DOUBT WORKERS
#define SESSIONS (WORKERS + 1)
#define FREE 255
#define MOST 6                       /* offsets; a correct broker takes no more than there are messages */

mtype = { NOTHING, SEND, SEND_KNOWN, ANSWERED, STARTS_OVER, UNKNOWN }

/* The tables: queue, message, op_record. */
byte next_offset = 0
byte queue_lock = FREE
byte log[MOST]                       /* the message at an offset, from 1 on; 0: no row */
byte place[MESSAGES]                 /* in its op record, from 1 on; 0: no row */

mtype work[SESSIONS] = NOTHING
byte message[SESSIONS]
byte offset[SESSIONS]

byte asked[MESSAGES]                 /* copies of a send under way */
byte stored[MESSAGES]                /* how often it is in the log */
byte faults = FAULTS
byte known_end[2]                    /* what a broker's last COMMIT left: queue_ends.py; both know the empty queue */

inline append(m, at)
{
  assert(log[at] == 0);                                  /* one message at an offset */
  log[at] = m + 1;
  next_offset = at + 1;
  stored[m]++;
  assert(stored[m] <= 1);                                /* one effect of one id */
  place[m] = at + 1
}

inline execute(s)
{
  done = true;
  if
#ifdef BROKEN_RESEND_STORED_AGAIN
  :: work[s] == SEND -> append(message[s], offset[s])
#else
  :: work[s] == SEND && place[message[s]] == 0 -> append(message[s], offset[s])
#endif
#ifdef BROKEN_GUESS_UNGUARDED
  :: work[s] == SEND_KNOWN && place[message[s]] == 0 -> append(message[s], offset[s])
#else
  :: work[s] == SEND_KNOWN && place[message[s]] == 0 && next_offset == offset[s] -> append(message[s], offset[s])
#endif
  :: else -> done = false
  fi
}

inline close(s)
{
  if
  :: queue_lock == s -> queue_lock = FREE
  :: else
  fi;
  work[s] = NOTHING; message[s] = 0; offset[s] = 0
}

inline leave_to(s)
{
  work[s] = work[me]; message[s] = message[me]; offset[s] = offset[me];
  if
  :: queue_lock == me -> queue_lock = s
  :: else
  fi;
  close(me)
}

inline commit_now()
{
  if
  :: queue_lock == FREE || queue_lock == me ->
     execute(me); close(me);
     if
     :: outcome = (done -> ANSWERED : STARTS_OVER)
     :: faults > 0 -> faults--; outcome = UNKNOWN
     fi
  :: faults > 0 && work[IN_DOUBT] == NOTHING -> faults--; leave_to(IN_DOUBT); outcome = UNKNOWN
  fi;
  done = false
}

proctype Server(byte s)
{
  bool done;
end:
  do
  :: atomic { work[s] != NOTHING && (queue_lock == FREE || queue_lock == s) ->
       if
       :: execute(s)
       :: skip
       fi;
       close(s); done = false }
  od
}

proctype Worker(byte me)
{
  bool done;
  byte m, at;
  mtype outcome = ANSWERED;

end_idle:
  atomic {
    if
    :: asked[0] > 0 -> m = 0
    :: asked[1] > 0 -> m = 1
#if MESSAGES > 2
    :: asked[2] > 0 -> m = 2
#endif
    fi;
    asked[m]--;
    goto look }
look:
  atomic {
    if
    :: known_end[me % 2] != FREE ->
       work[me] = SEND_KNOWN; message[me] = m; offset[me] = known_end[me % 2]; goto commit
    :: goto look_first
    fi }
look_first:
  atomic {
#ifndef BROKEN_RESEND_STORED_AGAIN
    if
    :: place[m] != 0 -> goto answered
    :: place[m] == 0
    fi
#else
    skip
#endif
  }
  atomic { queue_lock == FREE ->
    work[me] = SEND; message[me] = m; offset[me] = next_offset;
#ifdef BROKEN_OFFSETS_APART
    next_offset++                                        /* as an AUTO_INCREMENT does: taken, whatever becomes of it */
#else
    queue_lock = me
#endif
  }
commit:
  atomic {
    at = offset[me];
    if
    :: commit_now()
    :: faults > 0 -> faults--; close(me); known_end[me % 2] = FREE; goto finished   /* it crashes */
    fi;
    if
    :: outcome == ANSWERED -> known_end[me % 2] = at + 1; goto answered
    :: outcome == UNKNOWN -> goto look
    :: outcome == UNKNOWN -> goto finished               /* patience ended */
    :: outcome == STARTS_OVER -> known_end[me % 2] = FREE; goto look_first   /* a wrong guess, or error 1062 */
    fi }
answered:
  /* What is acknowledged is in the log, at the place of its op record, which a repetition is told as well. */
  atomic { assert(place[m] != 0 && log[place[m] - 1] == m + 1) }
finished:
  atomic { m = 0; at = 0; outcome = ANSWERED; goto end_idle }
}

/* Repeats its call as often as it likes; the network may have done that. */
proctype Producer(byte own)
{
  byte left = RESENDS;
  asked[own]++;
end:
  do
  :: atomic { left > 0 -> left--; asked[own]++ }
  od
}

/* Reads up to the end that it sees: each offset once, in order. */
proctype Reader()
{
  byte read;
end:
  do
  :: d_step { next_offset > read ->
       do
       :: read < next_offset -> assert(log[read] != 0); read++           /* no skip */
       :: else -> break
       od }
  od
}

proctype Quiet()
{
  byte m;
  timeout ->
  assert(queue_lock == FREE);
  for (m : 0 .. MESSAGES - 1) { assert(stored[m] == (place[m] != 0 -> 1 : 0)) }
}

init {
  byte i;
  atomic {
    for (i : 0 .. WORKERS - 1) { run Worker(i) }
    run Server(IN_DOUBT);
    for (i : 0 .. MESSAGES - 1) { run Producer(i) }
    run Reader(); run Quiet();
    i = 0
  }
}
