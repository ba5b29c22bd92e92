/* A topic moves from one cell to another, each a database of its own: broker/storage/moving.
 *
 * What is true of a move stands in the table move_state of each of the two cells, which every transaction of the move
 * locks; the placements in the home database are only where brokers look first, and may be out of date: here they try
 * any cell. The topic's row is in the new cell only when the move is decided. The seal takes what changes (here the
 * lease) out of its table in the old cell; it goes into the new cell with the decision, or back when the move is given
 * up. Each step is one database transaction in one database. Movers run in several processes, crash, stand still for as
 * long as they like between two steps, and their COMMITs may come late. A move that has ended is not looked at again.
 */

#ifndef FAULTS
#define FAULTS 1
#endif
#ifndef MESSAGES
#define MESSAGES 2    /* that are sent meanwhile; one was in the log before, and is leased */
#endif
#ifndef MOVES
#define MOVES 2       /* attempts; each but the last may be given up */
#endif
#ifndef RESENDS
#define RESENDS 1
#endif

#define OLD 0
#define NEW 1
#define MOST (MESSAGES + 1)
#define SESSIONS 5                   /* two brokers, two movers, and one in doubt */
#define IN_DOUBT 4

mtype = { NOTHING, SEND, ACK, BEGIN, COPY, SEAL, ACTIVATE, FINISH, GIVE_UP, UNSEAL, WITHDRAW, END }
mtype = { ABSENT, INCOMING, ACTIVE, SEALED, GONE }

/* The topic in each cell, its log, its lease. INCOMING: only the move is noted there, and the log is being copied. */
mtype state[2]
byte move[2]                         /* the number of the move that the state is of */
byte given_up[2]                     /* moves up to this number were given up in the cell */
byte length[2]
typedef Log { byte message[MOST] }
Log log[2]
bool leased[2]
bool taken = false                   /* in the old cell: the lease that the seal took out of its table */
byte noted = 0                       /* in the new cell: the move whose copies are noted there */
byte ended = 0                       /* in the home database: moves up to this number have ended */

mtype work[SESSIONS] = NOTHING
byte cell[SESSIONS]
byte value[SESSIONS]                 /* message, or number of the move */
byte place[SESSIONS]
bool row[SESSIONS]

byte faults = FAULTS, asked[MESSAGES]
bool acknowledged[MESSAGES]
bool lease_acknowledged = false, ack_asked = true
bool settled = false                 /* an acknowledgement took effect */

#define contains(c, m) (log[c].message[0] == m || log[c].message[1] == m || (MOST > 2 && log[c].message[2] == m))

#define append(c, m) assert(length[c] < MOST); log[c].message[length[c]] = m; length[c]++

inline execute(s)
{
  done = false;
  if
  :: work[s] == SEND && state[cell[s]] == ACTIVE ->
     if
     :: contains(cell[s], value[s])                      /* its op record: the same answer */
     :: else -> append(cell[s], value[s])
     fi;
     done = true
  :: work[s] == ACK && state[cell[s]] == ACTIVE ->
     if
     :: leased[cell[s]] -> leased[cell[s]] = false; settled = true; done = true
     :: else -> done = settled                             /* otherwise its receipt is refused */
     fi
  :: work[s] == BEGIN && state[NEW] == ABSENT && given_up[NEW] < value[s] ->
     state[NEW] = INCOMING; move[NEW] = value[s]; noted = value[s]
#ifdef BROKEN_COPY_UNGUARDED
  :: work[s] == COPY && state[NEW] != ABSENT -> append(NEW, log[OLD].message[place[s]])
#else
  :: work[s] == COPY && state[NEW] == INCOMING && move[NEW] == value[s] && length[NEW] == place[s] ->
     append(NEW, log[OLD].message[place[s]])
#endif
#ifdef BROKEN_SEALED_THOUGH_GIVEN_UP
  :: work[s] == SEAL && state[OLD] == ACTIVE ->
#else
  :: work[s] == SEAL && state[OLD] == ACTIVE && given_up[OLD] < value[s] ->
#endif
     state[OLD] = SEALED; move[OLD] = value[s]; taken = leased[OLD]; leased[OLD] = false
  :: work[s] == ACTIVATE && state[NEW] == INCOMING && move[NEW] == value[s] && length[NEW] == place[s] ->
     state[NEW] = ACTIVE; leased[NEW] = row[s]; noted = 0
  :: work[s] == FINISH && state[OLD] == SEALED && move[OLD] == value[s] -> state[OLD] = GONE; taken = false
  :: work[s] == GIVE_UP && ((state[NEW] == INCOMING && move[NEW] == value[s]) ||
     (state[NEW] == ABSENT && given_up[NEW] < value[s])) ->
     state[NEW] = ABSENT; given_up[NEW] = value[s]
#ifdef BROKEN_UNSEALED_BY_ANY_MOVE
  :: work[s] == UNSEAL ->
     given_up[OLD] = (given_up[OLD] < value[s] -> value[s] : given_up[OLD]);
     if
     :: state[OLD] == SEALED -> state[OLD] = ACTIVE; leased[OLD] = taken; taken = false
     :: else
     fi
#else
  :: work[s] == UNSEAL && given_up[OLD] < value[s] ->
     given_up[OLD] = value[s];
     if
#ifdef BROKEN_NOT_PUT_BACK
     :: state[OLD] == SEALED && move[OLD] == value[s] -> state[OLD] = ACTIVE; taken = false
#else
     :: state[OLD] == SEALED && move[OLD] == value[s] -> state[OLD] = ACTIVE; leased[OLD] = taken; taken = false
#endif
     :: else
     fi
#endif
#ifdef BROKEN_WITHDRAWN_WITHOUT_NOTE
  :: work[s] == WITHDRAW && given_up[NEW] >= value[s] ->
#else
  :: work[s] == WITHDRAW && given_up[NEW] >= value[s] && noted == value[s] ->
#endif
     length[NEW] = 0; noted = 0;
     log[NEW].message[0] = 0; log[NEW].message[1] = 0; log[NEW].message[MOST - 1] = 0
  :: work[s] == END && ended < value[s] -> ended = value[s]
  :: else
  fi;
  assert(!(state[OLD] == ACTIVE && state[NEW] == ACTIVE));          /* one place to write to */
  assert(!lease_acknowledged || !(state[OLD] == ACTIVE && leased[OLD]));
  assert(!lease_acknowledged || !(state[NEW] == ACTIVE && leased[NEW]));
  /* Nothing skipped, nothing in another order. */
  assert(state[NEW] != ACTIVE || length[NEW] >= length[OLD]);
  assert(length[NEW] < 1 || log[NEW].message[0] == log[OLD].message[0]);
  assert(length[NEW] < 2 || length[OLD] < 2 || log[NEW].message[1] == log[OLD].message[1])
}

inline close(s) { work[s] = NOTHING; cell[s] = 0; value[s] = 0; place[s] = 0; row[s] = false }

/* One database transaction, whose COMMIT is answered, or not; or it comes late. */
inline transact()
{
  if
  :: execute(me); close(me); answered = done
  :: faults > 0 -> faults--; execute(me); close(me); answered = false
  :: faults > 0 && work[IN_DOUBT] == NOTHING ->
     faults--; work[IN_DOUBT] = work[me]; cell[IN_DOUBT] = cell[me]; value[IN_DOUBT] = value[me];
     place[IN_DOUBT] = place[me]; row[IN_DOUBT] = row[me]; close(me); answered = false
  :: faults > 0 -> faults--; close(me); answered = false            /* it never came: the broker crashed */
  fi;
  done = false
}

proctype Server(byte s)
{
  bool done;
end:
  do
  :: atomic { work[s] != NOTHING -> execute(s); close(s); done = false }
  :: atomic { work[s] != NOTHING -> close(s) }
  od
}

/* Tries a cell, and the other one if the topic is not there: what a directory that is out of date comes to. */
proctype Broker(byte me)
{
  bool done, answered;
  byte m, where;
end:
  atomic {
    if
    :: asked[0] > 0 -> m = 1; asked[0]--
#if MESSAGES > 1
    :: asked[1] > 0 -> m = 2; asked[1]--
#endif
    :: ack_asked -> ack_asked = false; m = 0
    fi;
    if
    :: where = OLD
    :: where = NEW
    fi }
send:
  atomic { (state[OLD] == ACTIVE || state[NEW] == ACTIVE) ->        /* otherwise it waits a moment, and is refused */
    work[me] = (m == 0 -> ACK : SEND); value[me] = 100 + m; cell[me] = where }
  atomic {
    transact();
    if
    :: answered && m == 0 -> lease_acknowledged = true; goto end
    :: answered && m != 0 -> acknowledged[m - 1] = true; goto end
    :: !answered && faults < FAULTS -> goto end                     /* no answer; the producer may repeat it */
    :: !answered -> where = 1 - where; goto send                    /* the topic is not there */
    fi }
}

proctype Producer()
{
  byte left = RESENDS, m;
  for (m : 0 .. MESSAGES - 1) { asked[m]++ }
end:
  do
  :: atomic { left > 0 -> left--;
       if
       :: asked[0]++
#if MESSAGES > 1
       :: asked[1]++
#endif
       fi }
  :: atomic { left > 0 && !lease_acknowledged && !ack_asked -> left--; ack_asked = true }
  od
}

/* Reads where the move is, then does the next step; what it read may be out of date by then. */
proctype Mover(byte me)
{
  bool done, answered;
  byte n;
end:
  atomic { ended < MOVES -> n = ended + 1 }
  atomic {
    if
    :: given_up[NEW] < n && state[NEW] == ABSENT -> work[me] = BEGIN; value[me] = n
    :: given_up[NEW] < n && state[NEW] == INCOMING && length[NEW] < length[OLD] ->
       work[me] = COPY; value[me] = n; place[me] = length[NEW]
    :: given_up[NEW] < n && state[NEW] == INCOMING && state[OLD] == ACTIVE -> work[me] = SEAL; value[me] = n
#ifdef BROKEN_NOT_SEALED
    :: state[NEW] == INCOMING && length[NEW] == length[OLD] ->
       work[me] = ACTIVATE; value[me] = n; place[me] = length[OLD]; row[me] = leased[OLD]
#elif defined(BROKEN_NOT_COMPARED)
    :: state[NEW] == INCOMING && state[OLD] == SEALED && move[OLD] == n ->
       work[me] = ACTIVATE; value[me] = n; place[me] = length[NEW]; row[me] = taken
#else
    :: state[NEW] == INCOMING && state[OLD] == SEALED && move[OLD] == n && length[NEW] == length[OLD] ->
       work[me] = ACTIVATE; value[me] = n; place[me] = length[OLD]; row[me] = taken
#endif
    :: state[NEW] == ACTIVE && state[OLD] == SEALED && move[OLD] == n -> work[me] = FINISH; value[me] = n
    :: state[NEW] == ACTIVE && state[OLD] == GONE -> work[me] = END; value[me] = n
    :: given_up[NEW] < n && state[NEW] != ACTIVE && n < MOVES ->        /* an operator gives it up */
       work[me] = GIVE_UP; value[me] = n
    :: given_up[NEW] >= n && given_up[OLD] < n -> work[me] = UNSEAL; value[me] = n
    :: given_up[NEW] >= n && noted == n -> work[me] = WITHDRAW; value[me] = n
    :: given_up[NEW] >= n && given_up[OLD] >= n && noted != n -> work[me] = END; value[me] = n
    :: ended >= n -> n = 0; goto end
    fi }
  atomic { transact(); answered = false; n = 0; goto end }
}

proctype Quiet()
{
  byte m;
  timeout ->
  assert(state[OLD] == ACTIVE || state[NEW] == ACTIVE);
  assert(settled == !leased[(state[NEW] == ACTIVE -> NEW : OLD)]);
  for (m : 0 .. MESSAGES - 1) {
    assert(!acknowledged[m] || contains((state[NEW] == ACTIVE -> NEW : OLD), 101 + m)) }
}

init {
  atomic {
    state[OLD] = ACTIVE; state[NEW] = ABSENT; log[OLD].message[0] = 100; length[OLD] = 1; leased[OLD] = true;
    run Broker(0); run Broker(1); run Mover(2); run Mover(3); run Server(IN_DOUBT); run Producer(); run Quiet()
  }
}
